"""The ledger of a job: every occurrence, newest first, and what became of it, whether it ran or not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import BigInt, Call, check_utc, no_job, reply
from bellringer.api.job_history import seconds_of
from bellringer.api.operations import CURSOR, LIMIT, moment, operation
from bellringer.lifecycle.objective import WITHIN
from bellringer.schedule.instants import write_instant
from bellringer.store import job_history as stored
from bellringer.store import jobs
from bellringer.store.job_history import END, HIGHEST, START, Gap, PastRun, Skip
from bellringer.wire import instant
from bellringer.wire.job_history import Ledger, LedgerEntry
from bellringer.wire.reading import Gathering

Kind = Literal["skip", "gap", "run"]
_RANKS: Final[Mapping[str, int]] = {"skip": 0, "gap": 1, "run": 2}  # of those at one instant
_LARGEST: Final = (1 << 31) - 1
_ENDS: Final[Mapping[str, str]] = {"dead": "failed", "cancelled": "cancelled", "skipped": "skipped"}


class EntryMark(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of a page: its instant and kind, the slot of a run, the end and the schedule of a gap."""

    at: datetime
    kind: Kind
    slot: BigInt = 0
    to_at: datetime = END
    schedule_id: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)] = 0

    def __post_init__(self) -> None:
        check_utc(self.at)
        check_utc(self.to_at)


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: Ledger},
    query=(
        moment("from", "only occurrences of then or later"),
        moment("to", "only occurrences before then"),
        LIMIT,
        CURSOR,
    ),
)
async def listing(call: Call) -> Response:
    """What became of a job's occurrences, the newest first: runs, gaps, and skips to come."""
    query, limit = call.query(), call.limit()
    g = Gathering()
    start = g.take("/from", lambda: instant(query.get("from"), what="from"), None) or START
    end = g.take("/to", lambda: instant(query.get("to"), what="to"), None) or END
    g.done()
    job_id = await call.job_id()
    of = f"ledger {job_id} {write_instant(start)} {write_instant(end)}"
    mark = call.cursor(of, EntryMark)
    job = await jobs.get(call.store, job_id, call.tenant_id)
    if job is None:
        raise no_job()
    found = await _page(call, job, start, mark or EntryMark(end, "run"), limit + 1)
    following = call.cursor_to(of, found[limit - 1][0]) if len(found) > limit else None
    return reply(Ledger(items=[entry for _, entry in found[:limit]], next_cursor=following))


async def _page(
    call: Call, job: jobs.Job, start: datetime, mark: EntryMark, most: int
) -> list[tuple[EntryMark, LedgerEntry]]:
    """The next entries after a mark. At one instant skips come before gaps, and these before runs."""
    tenant_id, job_id, rank = call.tenant_id, job.job_id, _RANKS[mark.kind]
    runs_before = (mark.at, mark.slot if mark.kind == "run" else HIGHEST)
    gaps_before = (mark.at, mark.to_at, mark.schedule_id)
    if rank != _RANKS["gap"]:
        gaps_before = (mark.at, END if rank < _RANKS["gap"] else START, _LARGEST if rank < _RANKS["gap"] else 0)
    runs = await stored.last_runs(call.reads, tenant_id, [job_id], most, start=start, before=runs_before)
    gaps = await stored.gaps(call.reads, job_id, start, gaps_before, most)
    skips = await stored.skips(call.reads, tenant_id, job_id, start, mark.at, most)
    by = job.late_after or WITHIN
    found = [
        *((EntryMark(skip.at.astimezone(UTC), "skip"), _skip(skip)) for skip in skips),
        *((EntryMark(gap.from_at, "gap", 0, gap.to_at, gap.schedule_id), _gap(gap)) for gap in gaps),
        *((EntryMark(run.key.scheduled_for, "run", run.key.slot), _run(run, job.jitter_by, by)) for run in runs),
    ]
    # Within a kind they are in order, and the kinds by their ranks: sorting keeps that.
    return sorted(found, key=lambda one: one[0].at, reverse=True)[:most]


def _skip(skip: Skip) -> LedgerEntry:
    return LedgerEntry(kind="skip", at=skip.at, outcome="planned", reason=skip.reason or "", who=skip.who)


def _gap(gap: Gap) -> LedgerEntry:
    outcome = "coalesced" if gap.into_at else "paused" if gap.reason == "paused" else "missed"
    return LedgerEntry(
        kind="gap",
        at=gap.from_at,
        outcome=outcome,
        reason=gap.reason,
        start=gap.from_at,
        end=gap.to_at,
        count=gap.count,
        into=gap.into_at,
    )


def _run(run: PastRun, jitter_by: timedelta, late_after: timedelta) -> LedgerEntry:
    late: timedelta | None = None
    if run.first_started_at is not None:
        late = run.first_started_at - run.key.scheduled_for
        late -= jitter_by if run.cause == "schedule" else timedelta(0)
    return LedgerEntry(
        kind="run",
        at=run.key.scheduled_for,
        outcome=_outcome(run, late is not None and late > late_after),
        reason=run.reason,
        run_id=run.key.id,
        state=run.state,
        cause=run.cause,
        lateness_ms=None if late is None else round(late / timedelta(milliseconds=1)),
        seconds=seconds_of(run),
    )


def _outcome(run: PastRun, is_late: bool) -> str:
    if run.state == "succeeded":
        # A backfill's runs are of the past; late is only what was due.
        return "late" if is_late and run.cause in {"schedule", "send"} else "ran"
    if run.state == "skipped" and run.reason.startswith("coalesced"):
        return "coalesced"
    return _ENDS.get(run.state, "pending")
