"""Every call of the API, described once: what is sent, and the shape of what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from bellringer.payload import check_payload
from bellringer.wire import answers, fairness, reasons
from bellringer.wire import backfills as past
from bellringer.wire import calendars as resting
from bellringer.wire import cluster as holding
from bellringer.wire import events as news
from bellringer.wire import forecast as forecasts

T = TypeVar("T")
Document = Mapping[str, Any]

PREFIX: Final = "/api/v1"
BODY_LIMIT: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Generic[T]):
    """One call: what is sent, and the shape of what comes back."""

    method: str
    path: str
    shape: type[T]
    query: Document = field(default_factory=dict)
    body: Document | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    accepts: tuple[int, ...] = ()  # statuses beyond 2xx that carry the shape too
    limit: int = BODY_LIMIT  # bytes of a body

    def content(self) -> bytes | None:
        """The body. One that is too large is refused here: a server that cuts it off may go unheard."""
        if self.body is None:
            return None
        return check_payload(self.body, limit=self.limit, what="the request")


def _get(shape: type[T], path: str, **query: Any) -> Ask[T]:
    given = {name: value for name, value in query.items() if value is not None}
    return Ask(method="GET", path=PREFIX + path, shape=shape, query=given)


def _post(shape: type[T], path: str, body: Document) -> Ask[T]:
    given = {name: value for name, value in body.items() if value is not None}
    return Ask(method="POST", path=PREFIX + path, shape=shape, body=given)


def _at(*parts: str) -> str:
    return "".join("/" + quote(part, safe="") for part in parts)


def job(job: str) -> Ask[answers.Job]:
    """A job by its id or name."""
    return _get(answers.Job, _at("jobs", job))


def create_job(document: Document) -> Ask[answers.Job]:
    return Ask(method="POST", path=f"{PREFIX}/jobs", shape=answers.Job, body=document)


def patch_job(job: str, patch: Document, *, revision: int | None = None) -> Ask[answers.Job]:
    """Change what the merge patch names; with a revision, only if the job still has it."""
    headers = {"Content-Type": "application/merge-patch+json"}
    if revision is not None:
        headers["If-Match"] = f'"{revision}"'
    path = PREFIX + _at("jobs", job)
    return Ask(method="PATCH", path=path, shape=answers.Job, body=patch, headers=headers)


def dry_run(
    job: str, patch: Document, *, days: int | None = None, revision: int | None = None
) -> Ask[forecasts.DryRun]:
    """What a merge patch would do to a job and its fires of the next days; nothing is changed."""
    real = patch_job(job, patch, revision=revision)
    return Ask(
        method=real.method,
        path=real.path,
        shape=forecasts.DryRun,
        query={"dry_run": "true", **({} if days is None else {"days": days})},
        body=real.body,
        headers=real.headers,
    )


def pause(job: str, *, reason: str | None = None, until: str | float | None = None) -> Ask[answers.Job]:
    return _post(answers.Job, _at("jobs", job, "pause"), {"reason": reason, "until": until})


def resume(job: str, *, missed: str | None = None) -> Ask[answers.Resumed]:
    """Let a paused job go on; `missed` says what becomes of what it missed: skip, latest or all."""
    return _post(answers.Resumed, _at("jobs", job, "resume"), {"missed": missed})


def trigger(job: str, *, args: Sequence[Any] | None = None, kwargs: Document | None = None) -> Ask[answers.Run]:
    """Run a job now, whatever its schedule says."""
    return _post(answers.Run, _at("jobs", job, "run"), {"args": args, "kwargs": kwargs})


def job_runs(job: str, *, limit: int | None = None, cursor: str | None = None) -> Ask[answers.RunPage]:
    return _get(answers.RunPage, _at("jobs", job, "runs"), limit=limit, cursor=cursor)


def why(job: str, *, at: str | None = None) -> Ask[reasons.Explanation]:
    """Why a job does not run now, or what became of it at a time."""
    return _get(reasons.Explanation, _at("jobs", job, "why"), at=at)


def baseline(job: str) -> Ask[news.Baseline]:
    """How long a job usually takes."""
    return _get(news.Baseline, _at("jobs", job, "baseline"))


def events(
    *, kind: str | None = None, job: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Ask[news.EventPage]:
    """The newest events: what is late, missed, slow or outgrown."""
    return _get(news.EventPage, "/events", kind=kind, job=job, limit=limit, cursor=cursor)


def tz_moves(*, limit: int | None = None) -> Ask[news.TzMoves]:
    """What new rules of the time zones have moved."""
    return _get(news.TzMoves, "/cluster/tz-moves", limit=limit)


def run(run_id: str) -> Ask[answers.Run]:
    """A run with its attempts."""
    return _get(answers.Run, _at("runs", run_id))


def explain(run_id: str) -> Ask[reasons.Explanation]:
    """Why a run is where it is."""
    return _get(reasons.Explanation, _at("runs", run_id, "explain"))


def cancel(run_id: str, *, reason: str | None = None) -> Ask[answers.Run]:
    return _post(answers.Run, _at("runs", run_id, "cancel"), {"reason": reason})


def retry(run_id: str) -> Ask[answers.Run]:
    return _post(answers.Run, _at("runs", run_id, "retry"), {})


def execute(task: str, *, args: Sequence[Any] = (), kwargs: Document | None = None, **options: Any) -> Ask[answers.Run]:
    """Run a task without a job; options are at, delay, pool, priority, timeout, retry, delivery and key."""
    return _post(answers.Run, "/jobs/execute", {"task": task, "args": args, "kwargs": kwargs or {}, **options})


def plan_backfill(job: str, start: str, end: str, **terms: Any) -> Ask[past.BackfillPlan]:
    """What a backfill would do; nothing is made. Terms are order, reprocess, parallelism and rate."""
    body = {"job": job, "from": start, "to": end, "dry_run": True, **terms}
    return _post(past.BackfillPlan, "/backfills", body)


def start_backfill(job: str, start: str, end: str, *, plan: str | None = None, **terms: Any) -> Ask[past.Backfill]:
    """Run the occurrences of a job from one time up to another; with a plan, only if it still holds."""
    body = {"job": job, "from": start, "to": end, "plan": plan, **terms}
    return _post(past.Backfill, "/backfills", body)


def backfills(*, job: str | None = None, limit: int | None = None, cursor: str | None = None) -> Ask[past.BackfillPage]:
    """The newest backfills and catch-ups, of all jobs or of one."""
    return _get(past.BackfillPage, "/backfills", job=job, limit=limit, cursor=cursor)


def backfill(backfill_id: str) -> Ask[past.Backfill]:
    """A backfill with what became of its runs."""
    return _get(past.Backfill, _at("backfills", backfill_id))


def pause_backfill(backfill_id: str) -> Ask[past.Backfill]:
    return _post(past.Backfill, _at("backfills", backfill_id, "pause"), {})


def resume_backfill(backfill_id: str) -> Ask[past.Backfill]:
    return _post(past.Backfill, _at("backfills", backfill_id, "resume"), {})


def cancel_backfill(backfill_id: str, *, reason: str | None = None) -> Ask[past.Backfill]:
    return _post(past.Backfill, _at("backfills", backfill_id, "cancel"), {"reason": reason})


def calendars(*, limit: int | None = None, cursor: str | None = None) -> Ask[resting.CalendarPage]:
    """Calendars by their names."""
    return _get(resting.CalendarPage, "/calendars", limit=limit, cursor=cursor)


def calendar(name: str) -> Ask[resting.Calendar]:
    """A calendar with its dates."""
    return _get(resting.Calendar, _at("calendars", name))


def put_calendar(
    name: str, *, dates: Sequence[str] | None = None, ics: str | None = None, weekend: Sequence[str] | None = None
) -> Ask[resting.Calendar]:
    """Make a calendar what is given; the jobs that use it follow. Repeat it while some are `outdated`."""
    body = {"dates": dates, "ics": ics, "weekend": weekend}
    given = {name: value for name, value in body.items() if value is not None}
    return Ask(method="PUT", path=PREFIX + _at("calendars", name), shape=resting.Calendar, body=given)


def delete_calendar(name: str) -> Ask[None]:
    return Ask(method="DELETE", path=PREFIX + _at("calendars", name), shape=type(None))


def freezes(*, limit: int | None = None, cursor: str | None = None) -> Ask[resting.FreezePage]:
    """Freezes, those that end last first."""
    return _get(resting.FreezePage, "/freezes", limit=limit, cursor=cursor)


def freeze(freeze: str) -> Ask[resting.Freeze]:
    """A freeze by its id or name."""
    return _get(resting.Freeze, _at("freezes", freeze))


def create_freeze(
    name: str, end: str | float, *, start: str | None = None, policy: str | None = None,
    tags: Sequence[str] | None = None, reason: str | None = None,
) -> Ask[resting.Freeze]:  # fmt: skip
    """Let schedules rest from the start, or now, to an instant or for a length of time."""
    body = {"name": name, "from": start, "to": end, "policy": policy, "tags": tags, "reason": reason}
    return _post(resting.Freeze, "/freezes", body)


def patch_freeze(freeze: str, patch: Document) -> Ask[resting.Freeze]:
    """Give a freeze another `to` or `reason`."""
    headers = {"Content-Type": "application/merge-patch+json"}
    path = PREFIX + _at("freezes", freeze)
    return Ask(method="PATCH", path=path, shape=resting.Freeze, body=patch, headers=headers)


def lift_freeze(freeze: str) -> Ask[resting.Lifted]:
    """End a freeze now."""
    return Ask(method="DELETE", path=PREFIX + _at("freezes", freeze), shape=resting.Lifted)


def workers() -> Ask[answers.Workers]:
    return _get(answers.Workers, "/workers")


def cluster() -> Ask[holding.Cluster]:
    return _get(holding.Cluster, "/cluster")


def forecast(*, start: str | None = None, end: str | None = None, bucket: str | None = None) -> Ask[forecasts.Forecast]:
    """The expected fires by bucket and pool, and how herds could be spread."""
    return _get(forecasts.Forecast, "/forecast", **{"from": start, "to": end, "bucket": bucket})


def objective(*, window: str | None = None) -> Ask[fairness.Objective]:
    """Which part of the tenant's runs started in time, and who used the capacity when they did not."""
    return _get(fairness.Objective, "/objective", window=window)


def preview(
    schedule: Document, *, n: int | None = None, after: str | None = None, job: str | None = None
) -> Ask[answers.Preview]:
    """What a schedule means, and its next occurrences; a job's name chooses the values of H."""
    return _post(answers.Preview, "/schedules/preview", {"schedule": schedule, "n": n, "from": after, "job": job})


def version() -> Ask[answers.Version]:
    return _get(answers.Version, "/version")


def ready() -> Ask[answers.Readiness]:
    """Whether the server can serve, and what stands in the way."""
    return Ask(method="GET", path="/readyz", shape=answers.Readiness, accepts=(503,))
