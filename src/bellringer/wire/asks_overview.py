"""Calls about how it goes: the overview, and the history of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bellringer.wire import job_history
from bellringer.wire import overview as told
from bellringer.wire.asks import Ask, _at, _get


def pulse() -> Ask[told.Pulse]:
    """Marks that differ when something has changed."""
    return _get(told.Pulse, "/pulse")


def overview(range: str | None = None) -> Ask[told.Overview]:  # noqa: A002 - as the parameter is called
    """How it goes: over 1h, 6h or 24h."""
    return _get(told.Overview, "/overview", range=range)


def strips(jobs: Sequence[str], *, limit: int | None = None) -> Ask[job_history.Strips]:
    """The last runs of some jobs, by their ids."""
    return _get(job_history.Strips, "/jobs/strips", ids=",".join(jobs) or None, limit=limit)


def ledger(
    job: str,
    *,
    start: str | None = None,
    end: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Ask[job_history.Ledger]:
    """What became of a job's occurrences, the newest first."""
    bounds = {"from": start, "to": end}
    return _get(job_history.Ledger, _at("jobs", job, "ledger"), **bounds, limit=limit, cursor=cursor)


def job_days(job: str, *, year: int | None = None) -> Ask[job_history.Days]:
    """A job's year, day by day."""
    return _get(job_history.Days, _at("jobs", job, "days"), year=year)


def job_stats(job: str) -> Ask[job_history.JobStats]:
    """How the last attempts of a job went."""
    return _get(job_history.JobStats, _at("jobs", job, "stats"))


def run_counts(**filters: Any) -> Ask[told.RunCounts]:
    """How many runs are in which state; filters as of runs, but for state."""
    return _get(told.RunCounts, "/runs/counts", **filters)


def settings() -> Ask[told.Settings]:
    """The settings of the server, and where each comes from."""
    return _get(told.Settings, "/settings")
