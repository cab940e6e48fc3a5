"""The history of a job: its revisions, its days, and the ledger of its occurrences."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.objective import round_share
from bellringer.api.endpoints.overview import Steps, percentile
from bellringer.api.http.operation import (
    CURSOR_PARAMETER,
    LIMIT_PARAMETER,
    Query,
    choice,
    moment,
    number,
    operation,
    string,
)
from bellringer.api.http.request import BigInt, RequestContext, check_utc, no_job, reply
from bellringer.api.render import documents
from bellringer.durations import format_duration
from bellringer.engine import monitor
from bellringer.engine.objective import DEFAULT_MAX_MISSED, DEFAULT_START_WITHIN, missed_share
from bellringer.errors import InvalidInput, NotFound
from bellringer.forecast import ForecastWindow, JobGroup, count_fires, list_fires
from bellringer.schedule.instants import write_instant
from bellringer.store import job_history as stored
from bellringer.store import jobs, partitions, revisions
from bellringer.store.job_history import (
    MAX_ATTEMPTS_PER_SPAN,
    MAX_INSTANT,
    MAX_RUNS_PER_DAY,
    MAX_SLOT,
    MIN_INSTANT,
    AttemptRecord,
    MissedRow,
    PastRun,
    SkippedRow,
)
from bellringer.store.jobs import JobRow
from bellringer.wire import job_history as wire
from bellringer.wire.decode import Gathering, instant
from bellringer.wire.job_history import Ledger, LedgerEntry
from bellringer.wire.jobs import FieldChange, Revision, RevisionItem, RevisionPage
from bellringer.wire.routes import Routes

_MAX_INT32: Final = (1 << 31) - 1
MISSED_WINDOW: Final = timedelta(days=30)
MAX_OCCURRENCES_COUNTED: Final = 50_000
# Fields that are not part of the definition, or follow from it.
_NOT_COMPARED: Final = frozenset(
    {"job_id", "revision", "created_at", "updated_at", "next_at", "description", "app", "app_version"}
)


class RevisionMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a revision in a list."""

    revision: BigInt

    def __post_init__(self) -> None:
        if self.revision > _MAX_INT32:
            raise ValueError("not a cursor of this list")


def no_revision() -> NotFound:
    return NotFound("there is no such revision")


@operation(Routes.revisions, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def list_revisions(call: RequestContext) -> Response:
    """Lists the revisions of a job, the newest first."""
    call.query()
    job_id, limit = await call.job_id(), call.limit()
    of = f"revisions of {job_id}"
    mark = call.cursor(of, RevisionMark)
    if await jobs.get(call.store, job_id, call.tenant_id) is None:
        raise no_job()
    found = await revisions.before(call.reads, job_id, mark.revision if mark else None, limit + 1)
    following = call.cursor_to(of, RevisionMark(found[limit - 1].revision)) if len(found) > limit else None
    return reply(
        RevisionPage(items=[RevisionItem(**_render_revision(r)) for r in found[:limit]], next_cursor=following)
    )


@operation(
    Routes.revision,
    role=Role.VIEWER,
    query=(number("against", "the revision to compare with; the previous one if omitted", 1, _MAX_INT32),),
)
async def get(call: RequestContext) -> Response:
    """Returns a job as of a revision, and the differences to another revision."""
    query = call.query()
    job_id, this = await call.job_id(), _revision_number(call.part("n"))
    other = _revision_number(query["against"]) if "against" in query else None
    if "against" in query and other is None:
        raise InvalidInput("against must be the number of a revision", code="limit_range")
    if this is None or await jobs.get(call.store, job_id, call.tenant_id) is None:
        raise no_revision() if this is None else no_job()
    found = await revisions.one(call.reads, job_id, call.tenant_id, this)
    if found is None:
        raise no_revision()
    against = other or this - 1
    before = await revisions.one(call.reads, job_id, call.tenant_id, against) if against else None
    if other is not None and before is None:
        raise no_revision()
    change, job = found
    return reply(
        Revision(
            **_render_revision(change),
            job=documents.render_job(job),
            against=against if before else None,
            changes=_changes(before[1], job) if before else [],
        )
    )


def _revision_number(text: str) -> int | None:
    value = int(text) if re.fullmatch("[0-9]{1,10}", text, re.ASCII) else 0
    return value if 1 <= value <= _MAX_INT32 else None


def _render_revision(r: revisions.RevisionRow) -> dict[str, Any]:
    return {"revision": r.revision, "at": r.effective_at, "what": r.what, "by": r.who, "why": r.why}


def _changes(before: jobs.JobRow, after: jobs.JobRow) -> list[FieldChange]:
    """Returns the fields that differ, as responses have them."""
    hidden = [*before.spec.redact, *after.spec.redact]
    old, new = (msgspec.to_builtins(documents.render_job(job, also_hidden=hidden)) for job in (before, after))
    fields = [name for name in {**old, **new} if name not in _NOT_COMPARED]
    differs = {"args": before.spec.args != after.spec.args, "kwargs": before.spec.kwargs != after.spec.kwargs}
    return [
        FieldChange(field=name, before=old.get(name), after=new.get(name))
        for name in fields
        if old.get(name) != new.get(name) or (hidden and "http" not in new and differs.get(name))
    ]


MAX_STRIPS: Final = 100
STRIP_LENGTHS: Final = range(1, 61)
DEFAULT_STRIP_LENGTH: Final = 20
MAX_ATTEMPTS_READ: Final = 1_000
YEARS: Final = range(1970, 9999)
MAX_MERGED_FIRES: Final = 20_000  # fires of jobs with several schedules, which are merged one by one
_DAY: Final = timedelta(days=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


@operation(
    Routes.strips,
    role=Role.VIEWER,
    query=(
        string("ids", f"ids of jobs, comma-separated or repeated; at most {MAX_STRIPS}"),
        Query(
            "limit",
            {
                "type": "integer",
                "minimum": STRIP_LENGTHS[0],
                "maximum": STRIP_LENGTHS[-1],
                "default": DEFAULT_STRIP_LENGTH,
            },
            "maximum number of runs per job",
        ),
    ),
)
async def strips(call: RequestContext) -> Response:
    """Returns the last runs of some jobs, and when each last succeeded. Unknown ids are left out."""
    call.query()
    wanted, most = _ids(call), _number(call, "limit", STRIP_LENGTHS, DEFAULT_STRIP_LENGTH)
    tenant_id = call.tenant_id
    there = await stored.existing_jobs(call.reads, tenant_id, wanted)
    ids = [job_id for job_id in wanted if job_id in there]
    runs: dict[UUID, list[PastRun]] = defaultdict(list)
    for run in await stored.last_runs(call.reads, tenant_id, ids, most):
        runs[run.key.job_id].append(run)
    succeeded = await stored.last_successes(call.reads, tenant_id, ids)
    items = [
        wire.StripOfRuns(
            job_id=str(job_id), runs=[_strip_run(run) for run in runs[job_id]], last_success=succeeded.get(job_id)
        )
        for job_id in ids
    ]
    return reply(wire.Strips(items=items))


def _ids(call: RequestContext) -> list[UUID]:
    texts = [part.strip() for text in call.request.query_params.getlist("ids") for part in text.split(",")]
    given = list(dict.fromkeys(text for text in texts if text))
    if len(given) > MAX_STRIPS:
        raise InvalidInput(f"ids has more than {MAX_STRIPS} ids", hint="request fewer at a time", code="limit")
    if not all(_UUID.fullmatch(text) for text in given):
        raise InvalidInput(
            "ids contains a value that is not the id of a job", hint="`GET /jobs` lists the ids", code="id_invalid"
        )
    return [UUID(text) for text in given]


def _number(call: RequestContext, name: str, among: range, usual: int) -> int:
    text = call.request.query_params.get(name, str(usual))
    found = int(text) if re.fullmatch("[0-9]{1,9}", text, re.ASCII) else -1
    if found not in among:
        raise InvalidInput(f"{name} must be a number from {among[0]} to {among[-1]}", code="limit_range")
    return found


def _strip_run(run: PastRun) -> wire.StripRun:
    return wire.StripRun(
        run_id=run.key.id, scheduled_for=run.key.scheduled_for, state=run.state, seconds=seconds_of(run)
    )


def seconds_of(run: PastRun | AttemptRecord) -> float | None:
    """Returns the duration of an attempt, or of a run's last attempt."""
    if run.started_at is None or run.finished_at is None:
        return None
    return max(0.0, (run.finished_at - run.started_at).total_seconds())


# The ranges of the series, and the seconds of one bucket: at most 90 buckets.
STATS_RANGES: Final = {
    "1h": (timedelta(hours=1), 60),
    "24h": (timedelta(hours=24), 1_800),
    "7d": (timedelta(days=7), 10_800),
    "30d": (timedelta(days=30), 43_200),
    "90d": (timedelta(days=90), 86_400),
}
DEFAULT_STATS_RANGE: Final = "7d"


@operation(
    Routes.job_stats,
    role=Role.VIEWER,
    query=(
        choice("range", f"the length of the series until now; {DEFAULT_STATS_RANGE} if omitted", list(STATS_RANGES)),
    ),
)
async def stats(call: RequestContext) -> Response:
    """Summarizes the last 1,000 attempts of a job: successes, waiting times and durations; and returns their
    percentiles, retries and failures by time, with the usual duration of the job.
    """
    chosen = call.query().get("range", DEFAULT_STATS_RANGE)
    if chosen not in STATS_RANGES:
        raise InvalidInput("unknown range", hint=f"use {', '.join(STATS_RANGES)}", code="choice")
    job = await _job(call)
    found = await stored.last_attempts(call.reads, call.tenant_id, job.job_id, MAX_ATTEMPTS_READ)
    tries = [one for one in found if one.attempt > 0]
    failed = sum(one.outcome not in {"ok", None} for one in tries)
    succeeded = sum(one.outcome == "ok" for one in tries)
    return reply(
        wire.JobStats(
            attempts=len(tries),
            since=min((one.scheduled_for for one in tries), default=None),
            succeeded=succeeded,
            failed=failed,
            success_rate=round(succeeded / (succeeded + failed), 4) if succeeded + failed else None,
            wait=_percentiles([wait for one in tries if (wait := _wait(one, job)) is not None]),
            run=_percentiles([took for one in tries if (took := seconds_of(one)) is not None]),
            days=_day_times(tries),
            missed=await _missed(call, job.job_id),
            baseline=await _load_baseline(call, job.job_id),
            series=await _stats_series(call, job.job_id, chosen),
        )
    )


@operation(Routes.baseline, role=Role.VIEWER)
async def baseline(call: RequestContext) -> Response:
    """Returns the usual durations of a job's runs."""
    call.query()
    return reply(await _load_baseline(call, await call.job_id()))


async def _load_baseline(call: RequestContext, job_id: UUID) -> wire.Baseline:
    now = await call.store.now()
    found = await monitor.load_baseline(call.store, call.catalog, job_id, now, tenant_id=call.tenant_id)
    if found is None:
        raise no_job()
    return wire.Baseline(
        runs=found.runs,
        median=_write_duration(found.median),
        longest=_write_duration(found.longest),
        slow_after=_write_duration(found.slow_after),
        interval=_write_duration(found.interval),
        outgrown=found.outgrown,
    )


def _write_duration(length: timedelta | None) -> str | None:
    return None if length is None else format_duration(round(length / _MILLISECOND) * _MILLISECOND)


async def _stats_series(call: RequestContext, job_id: UUID, chosen: str) -> wire.StatsSeries:
    length, seconds = STATS_RANGES[chosen]
    steps = Steps(await call.store.now(), length, seconds)
    found = await stored.attempt_statistics(call.reads, call.tenant_id, job_id, steps.all(), timedelta(seconds=seconds))
    return wire.StatsSeries(range=chosen, step=seconds, buckets=[_stats_bucket(one) for one in found])


def _stats_bucket(found: stored.AttemptStatistics) -> wire.StatsBucket:
    return wire.StatsBucket(
        at=found.at,
        attempts=min(found.attempts, MAX_ATTEMPTS_PER_SPAN),
        retries=found.retries,
        failed=found.failed,
        duration=None if found.durations is None else _spread(*found.durations),
        lateness=None if found.lateness is None else _lateness_spread(*found.lateness),
        more=found.attempts > MAX_ATTEMPTS_PER_SPAN,
    )


def _spread(p50: float, p95: float, p99: float) -> wire.Spread:
    return wire.Spread(p50=p50, p95=p95, p99=p99)


def _lateness_spread(p50: float, p99: float) -> wire.LatenessSpread:
    return wire.LatenessSpread(p50=p50, p99=p99)


async def _missed(call: RequestContext, job_id: UUID) -> wire.JobMissed:
    end = await call.store.now()
    start = end - MISSED_WINDOW
    found = await stored.count_missed(call.reads, call.tenant_id, job_id, start, end, MAX_OCCURRENCES_COUNTED)
    share = missed_share(MISSED_WINDOW, found.fired, found.missed, DEFAULT_MAX_MISSED)
    return wire.JobMissed(
        start=start,
        end=end,
        expected=share.expected,
        missed=found.missed,
        rate=round_share(share.share),
        more=found.more,
        uncounted=found.uncounted,
    )


async def _job(call: RequestContext) -> JobRow:
    job = await jobs.get(call.store, await call.job_id(), call.tenant_id)
    if job is None:
        raise no_job()
    return job


def _wait(one: AttemptRecord, job: JobRow) -> float | None:
    """Returns how long after its time a run's first attempt started."""
    if one.attempt != 1 or one.started_at is None:
        return None
    return max(0.0, (one.started_at - one.scheduled_for - job.jitter_by).total_seconds())


def _percentiles(seconds: Sequence[float]) -> wire.Spread | None:
    p50, p95, p99 = (percentile(seconds, part) for part in (0.5, 0.95, 0.99))
    return None if p50 is None or p95 is None or p99 is None else _spread(p50, p95, p99)


def _day_times(tries: Sequence[AttemptRecord]) -> list[wire.DayTime]:
    by_day: dict[date, list[AttemptRecord]] = defaultdict(list)
    for one in tries:
        by_day[one.scheduled_for.astimezone(UTC).date()].append(one)
    return [
        wire.DayTime(
            day=day,
            attempts=len(some),
            failed=sum(one.outcome not in {"ok", None} for one in some),
            p95=percentile([took for one in some if (took := seconds_of(one)) is not None], 0.95),
        )
        for day, some in sorted(by_day.items())
    ]


@operation(
    Routes.job_days,
    role=Role.VIEWER,
    query=(number("year", "the year; the current one if omitted", YEARS[0], YEARS[-1]),),
)
async def days(call: RequestContext) -> Response:
    """Returns a job's year by UTC days: runs, dead runs, missed occurrences, and upcoming fires."""
    call.query()
    now = await call.store.now()
    year = _number(call, "year", YEARS, now.year)
    job = await _job(call)
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    kept = await partitions.list_days(call.reads)
    last = min(end.date(), (now + 2 * _DAY).date())  # a run may be created up to a second ahead
    wanted = [start.date() + n * _DAY for n in range((last - start.date()).days)]
    runs = await stored.runs_by_day(call.reads, call.tenant_id, job.job_id, wanted)
    gaps = await stored.gaps_by_day(call.reads, job.job_id, start, end)
    # Runs in a thread: it may take a second, and the scheduler may use the same event loop.
    coming = await asyncio.to_thread(_count_upcoming, job, max(start, now), end)
    found = sorted({day for day, (some, _) in runs.items() if some} | gaps.keys() | (coming or {}).keys())
    shown = [_day(day, runs.get(day, (0, 0)), gaps.get(day, 0), (coming or {}).get(day, 0)) for day in found]
    return reply(wire.Days(year=year, kept_from=min(kept, default=None), coming_known=coming is not None, days=shown))


def _day(day: date, runs: tuple[int, int], gaps: int, coming: int) -> wire.Day:
    some, failed = runs
    return wire.Day(
        day=day, runs=min(some, MAX_RUNS_PER_DAY), failed=failed, gaps=gaps, more=some > MAX_RUNS_PER_DAY, coming=coming
    )


def _count_upcoming(job: JobRow, start: datetime, end: datetime) -> Mapping[date, int] | None:
    """Counts the upcoming fires of each day. Returns None for fixed delays, or if there are too many to count."""
    definition = job.definition()
    if definition.delay is not None:
        return None
    if job.paused_at is not None:
        start = end if job.paused_until is None else max(start, job.paused_until)
    start = max(start, definition.starts_at) if definition.starts_at else start
    end = min(end, definition.ends_at + _MICROSECOND) if definition.ends_at else end
    if start >= end or not definition.enabled:
        return {}
    window = ForecastWindow(start, end, _DAY)
    counted = count_fires([JobGroup(schedule=s, pools={"": 1}) for s in definition.schedules], window)
    if counted.left_out:
        return None
    totals = counted.totals()
    if len(definition.schedules) > 1 and sum(totals) <= MAX_MERGED_FIRES:  # schedules that share an instant fire once
        totals = [0] * window.size
        for at in islice(list_fires(definition, start - _MICROSECOND, end - _MICROSECOND), MAX_MERGED_FIRES):
            totals[window.index(at)] += 1
    return {window.at(index).date(): total for index, total in enumerate(totals) if total}


Kind = Literal["skip", "gap", "run"]
_RANKS: Final[Mapping[str, int]] = {"skip": 0, "gap": 1, "run": 2}  # the order of kinds at the same instant
_ENDS: Final[Mapping[str, str]] = {"dead": "failed", "cancelled": "cancelled", "skipped": "skipped"}


class EntryMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of an entry: its instant and kind, the slot of a run, the end and the schedule of a gap."""

    at: datetime
    kind: Kind
    slot: BigInt = 0
    to_at: datetime = MAX_INSTANT
    schedule_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT32)] = 0

    def __post_init__(self) -> None:
        check_utc(self.at)
        check_utc(self.to_at)


@operation(
    Routes.ledger,
    role=Role.VIEWER,
    query=(
        moment("from", "only occurrences at or after this time"),
        moment("to", "only occurrences before this time"),
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
    ),
)
async def list_occurrences(call: RequestContext) -> Response:
    """Lists what happened to a job's occurrences, the newest first: runs, gaps, and upcoming skips."""
    query, limit = call.query(), call.limit()
    g = Gathering()
    start = g.take("/from", lambda: instant(query.get("from"), what="from"), None) or MIN_INSTANT
    end = g.take("/to", lambda: instant(query.get("to"), what="to"), None) or MAX_INSTANT
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
    call: RequestContext, job: jobs.JobRow, start: datetime, mark: EntryMark, most: int
) -> list[tuple[EntryMark, LedgerEntry]]:
    """Returns the next entries after a position. At one instant, skips come before gaps, and gaps before runs."""
    tenant_id, job_id, rank = call.tenant_id, job.job_id, _RANKS[mark.kind]
    runs_before = (mark.at, mark.slot if mark.kind == "run" else MAX_SLOT)
    gaps_before = (mark.at, mark.to_at, mark.schedule_id)
    if rank != _RANKS["gap"]:
        gaps_before = (
            mark.at,
            MAX_INSTANT if rank < _RANKS["gap"] else MIN_INSTANT,
            _MAX_INT32 if rank < _RANKS["gap"] else 0,
        )
    runs = await stored.last_runs(call.reads, tenant_id, [job_id], most, start=start, before=runs_before)
    gaps = await stored.list_gaps(call.reads, job_id, start, gaps_before, most)
    skips = await stored.list_skips(call.reads, tenant_id, job_id, start, mark.at, most)
    by = job.late_after or DEFAULT_START_WITHIN
    found = [
        *((EntryMark(skip.at.astimezone(UTC), "skip"), _skip(skip)) for skip in skips),
        *((EntryMark(gap.from_at, "gap", 0, gap.to_at, gap.schedule_id), _gap(gap)) for gap in gaps),
        *((EntryMark(run.key.scheduled_for, "run", run.key.slot), _run(run, job.jitter_by, by)) for run in runs),
    ]
    # Each kind is ordered, and sorting is stable.
    return sorted(found, key=lambda one: one[0].at, reverse=True)[:most]


def _skip(skip: SkippedRow) -> LedgerEntry:
    return LedgerEntry(kind="skip", at=skip.at, outcome="planned", reason=skip.reason or "", who=skip.who)


def _gap(gap: MissedRow) -> LedgerEntry:
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
        # Runs of a backfill are about the past: they are never late.
        return "late" if is_late and run.cause in {"schedule", "send"} else "ran"
    if run.state == "skipped" and run.reason.startswith("coalesced"):
        return "coalesced"
    return _ENDS.get(run.state, "pending")
