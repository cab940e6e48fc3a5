"""Creates runs for past occurrences (backfills and catch-ups), a bounded number per pass.

`plan_batches` decides in Python which occurrences get a run next; it is pure. The SQL function behind
`store.backfills.create_runs` checks the shard leases and inserts the runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import groupby, islice
from typing import Final

from bellringer.core.leases import Holding
from bellringer.core.policies import Overlap
from bellringer.errors import Conflict, InvalidInput
from bellringer.schedule import Schedule
from bellringer.store import backfills
from bellringer.store.backfills import BackfillBatch, CatchupRange, NewBackfill, OpenBackfill
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow

MAX_BACKFILLS_READ: Final = 200
MAX_BACKFILLS_PER_PASS: Final = 100
MAX_RUNS_PER_PASS: Final = 2_000
MAX_INSTANTS_PER_PASS: Final = 4_000  # shared evenly among backfills; some instants need no run
MIN_LOOKAHEAD_INSTANTS: Final = 10  # examined in addition to the allowed runs; fewer make a pass faster
MAX_LOOKAHEAD_INSTANTS: Final = 2_000
MAX_DAYS_PER_PASS: Final = 16  # partitions of a day may have to be created first
MAX_OCCURRENCES: Final = 1_000_000  # per backfill
MAX_COMPARED_INSTANTS: Final = 100_000  # instants that a request compares one by one
COMPARE_CHUNK_RUNS: Final = 20_000
RATE_BURST: Final = timedelta(seconds=10)  # an unused allowance expires after this time
_MICROSECOND: Final = timedelta(microseconds=1)


class BackfillCursor:
    """The round-robin position over open backfills, ordered by id, so that each gets its turn.

    `more`: the last pass made progress, so the next one may too. `lookahead`: how many instants beyond the allowed
    runs a pass examines; it grows while no examined instant needs a run. `missed`: occurrences cut off by the last
    pass.
    """

    def __init__(self) -> None:
        self.after = 0
        self.more = False
        self.lookahead = MIN_LOOKAHEAD_INSTANTS
        self.missed = 0


async def run_backfills(
    store: Store, catalog: Catalog, holding: Holding, now: datetime, cursor: BackfillCursor | None = None
) -> int:
    """Runs one bounded pass over the open backfills of the held shards; returns the number of runs created."""
    if not holding.tokens:
        return 0
    cursor = cursor or BackfillCursor()
    cursor.more, cursor.missed = False, 0
    found = await backfills.list_open(store, sorted(holding.tokens), cursor.after, MAX_BACKFILLS_READ)
    cursor.after = found[-1].backfill_id if len(found) == MAX_BACKFILLS_READ else 0
    for gone in (b for b in found if b.job_deleted):  # needs no lease: ending a backfill is idempotent
        await backfills.end(store, gone.backfill_id, gone.tenant_id, "deleted", "the job was deleted")
    live = [b for b in found if b.state == "running" and not b.job_paused and not b.job_deleted]
    schedules = await catalog.schedules({number for b in live for number in b.schedule_ids})
    live = await _measure_catchups(store, holding, live, schedules, now, cursor)
    batches, full = plan_batches(live, schedules, now, cursor.lookahead)
    if not batches:
        return 0
    if full:
        cursor.after = batches[-1].backfill.backfill_id
    await backfills.ensure_days_uncached(store, {instant.date() for f in batches for instant in f.instants})
    filled = await backfills.create_runs(store, holding, batches)
    cursor.more = filled.moved > 0
    cursor.lookahead = (
        min(cursor.lookahead * 4, MAX_LOOKAHEAD_INSTANTS)
        if cursor.more and not filled.created
        else MIN_LOOKAHEAD_INSTANTS
    )
    return filled.created


async def _measure_catchups(
    store: Store,
    holding: Holding,
    found: Sequence[OpenBackfill],
    schedules: Mapping[int, Schedule],
    now: datetime,
    cursor: BackfillCursor,
) -> list[OpenBackfill]:
    """Counts the occurrences of new catch-ups and stores the counts; returns the backfills that have any."""
    new: dict[OpenBackfill, CatchupRange] = {}
    for b in found:
        if b.total is None and (of := _schedules_of(b, schedules)):
            new[b] = plan_catchup(of[0], b.from_at, b.to_at, now, limit=b.most, horizon=b.horizon)
    if new:
        cut_off = await backfills.save_catchup_ranges(store, holding, new)
        if cut_off is None:
            return []
        cursor.missed += cut_off
    known = [replace(b, from_at=new[b].start, total=new[b].total) if b in new else b for b in found]
    return [b for b in known if b.total]


def plan_catchup(
    schedule: Schedule,
    from_at: datetime,
    to_at: datetime,
    now: datetime,
    *,
    limit: int | None = None,
    horizon: timedelta | None = None,
) -> CatchupRange:
    """Returns the range that a catch-up really covers: the latest `limit` occurrences within the horizon.

    The start is found by binary search and the occurrences are counted, so nothing is enumerated.
    """
    start = from_at if horizon is None else min(max(from_at, now - horizon), to_at)
    total = schedule.count_between(start, to_at)
    if limit is not None and total > limit:
        low, high = start, to_at  # invariant: at least `limit` occurrences from low on, fewer from high on
        while high - low > _MICROSECOND:
            middle = low + (high - low) // 2
            if schedule.count_between(middle, to_at) >= limit:
                low = middle
            else:
                high = middle
        start, total = low, limit
    cut = schedule.count_between(from_at, start)
    return CatchupRange(start=start if cut else from_at, total=total, cut=cut)


def plan_batches(
    found: Sequence[OpenBackfill],
    schedules: Mapping[int, Schedule],
    now: datetime,
    lookahead: int = MIN_LOOKAHEAD_INSTANTS,
) -> tuple[list[BackfillBatch], bool]:
    """Plans the next batch of each backfill, in order. Returns True as the second value if the pass is full.

    A backfill whose schedules cannot be read by this version is left to a scheduler that can.
    """
    batches: list[BackfillBatch] = []
    days: set[date] = set()
    free = {b: runs_allowed(b, now) for b in found if _schedules_of(b, schedules)}
    able = [b for b in free if free[b]]
    share = MAX_INSTANTS_PER_PASS // max(1, min(len(able), MAX_BACKFILLS_PER_PASS))
    runs = MAX_RUNS_PER_PASS
    for b in able:
        limit = min(free[b], runs)
        seen = limit if b.reprocess == "all" else min(limit + lookahead, share)
        instants, ends = next_instants(b, _schedules_of(b, schedules), seen)
        kept = take_within_days(instants, days)
        whole = len(kept) == len(instants)
        if kept or ends:
            batches.append(BackfillBatch(backfill=b, max_runs=limit, instants=kept, is_last=ends and whole))
        runs -= min(limit, len(kept))
        if not whole or not runs or len(batches) == MAX_BACKFILLS_PER_PASS:
            return batches, True
    return batches, False


def runs_allowed(b: OpenBackfill, now: datetime) -> int:
    """Returns how many runs a backfill may create now.

    The limits are the parallelism minus its unfinished runs, and the rate. If runs of the job may not overlap, the
    backfill may create one run, and only while no other run of the job is unfinished.
    """
    free = b.parallelism - b.unfinished
    if b.overlap != Overlap.ALLOW:
        free = 0 if b.busy else min(free, 1)
    if b.rate is not None:
        free = min(free, _runs_allowed_by_rate(b.rate, b.made_at, now))
    return max(free, 0)


def _runs_allowed_by_rate(rate: float, made_at: datetime | None, now: datetime) -> int:
    """Returns how many runs the rate (runs per minute) allows since the last one was created."""
    if made_at is None:
        return 1
    minute = timedelta(minutes=1)
    return int(min((now - made_at) / minute * rate + 1e-9, max(1.0, RATE_BURST / minute * rate)))


def next_instants(b: OpenBackfill, schedules: Sequence[Schedule], limit: int) -> tuple[list[datetime], bool]:
    """Returns up to `limit` undecided instants in the backfill's order, and whether these are the last."""
    low, high = _remaining_range(b)
    every = instants_descending(schedules, low, high) if b.newest_first else instants_ascending(schedules, low, high)
    found = list(islice(every, limit + 1))
    return found[:limit], len(found) <= limit


def _remaining_range(b: OpenBackfill) -> tuple[datetime, datetime]:
    """Returns the range that is left as (inclusive start, exclusive end)."""
    low, high = clip_range(b.from_at, b.to_at, b.starts_at, b.ends_at)
    if b.cursor is None:
        return low, high
    return (low, min(high, b.cursor)) if b.newest_first else (max(low, b.cursor + _MICROSECOND), high)


def clip_range(
    low: datetime, high: datetime, starts_at: datetime | None, ends_at: datetime | None
) -> tuple[datetime, datetime]:
    """Clips a range to the job's `starts_at` and `ends_at`; `ends_at` is inclusive."""
    if starts_at is not None:
        low = max(low, starts_at)
    if ends_at is not None:
        high = min(high, ends_at + _MICROSECOND)
    return low, max(low, high)


def instants_ascending(schedules: Sequence[Schedule], low: datetime, high: datetime) -> Iterator[datetime]:
    """Yields the distinct instants of all schedules in [low, high), in ascending order."""
    merged = heapq.merge(*(s.between(low - _MICROSECOND, high - _MICROSECOND) for s in schedules))
    return (instant for instant, _ in groupby(merged))


def instants_descending(schedules: Sequence[Schedule], low: datetime, high: datetime) -> Iterator[datetime]:
    """Yields the distinct instants of all schedules in [low, high), in descending order."""
    while high > low:
        found = [s.last_at_or_before(high - _MICROSECOND, not_before=low) for s in schedules]
        latest = max((instant for instant in found if instant is not None), default=None)
        if latest is None:
            return
        yield latest
        high = latest


def take_within_days(instants: Sequence[datetime], days: set[date]) -> Sequence[datetime]:
    """Returns the leading instants that fit into MAX_DAYS_PER_PASS days; adds their days to `days`."""
    for place, instant in enumerate(instants):
        if instant.date() not in days:
            if len(days) == MAX_DAYS_PER_PASS:
                return instants[:place]
            days.add(instant.date())
    return instants


def _schedules_of(b: OpenBackfill, known: Mapping[int, Schedule]) -> list[Schedule]:
    """Returns all schedules of a backfill, or none if this version cannot read one of them."""
    if not all(number in known for number in b.schedule_ids):
        return []
    return [known[number] for number in b.schedule_ids]


# Creating backfills


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillWindow:
    """The occurrences of a job that a backfill covers, and which of them run again."""

    job: JobRow
    from_at: datetime
    to_at: datetime
    reprocess: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillEstimate:
    """What a backfill would do: the occurrences in its range, those that already succeeded or are unfinished, and
    those to run.

    `exact` is false if the range has more runs than were compared. `plan` is a hash of the estimate.
    """

    count: int
    already_ran: int
    to_run: int
    exact: bool
    first: datetime | None
    last: datetime | None
    plan: str


async def estimate(store: Store, catalog: Catalog, window: BackfillWindow, *, tenant_id: int) -> BackfillEstimate:
    """Computes what a backfill of this window would do. Changes nothing."""
    schedules, low, high = await _load_range(catalog, window)
    count = await asyncio.to_thread(count_between, schedules, low, high)
    good = bad = seen = 0
    after = low - _MICROSECOND
    while seen < MAX_COMPARED_INSTANTS:
        found = await backfills.instants_with_runs(store, window.job.job_id, tenant_id, after, high, COMPARE_CHUNK_RUNS)
        if not found:
            break
        kept = await asyncio.to_thread(_outcomes_of_occurrences, schedules, found)
        good += sum(kept)
        bad += len(kept) - sum(kept)
        seen, after = seen + len(found), found[-1][0]
    to_run = {"none": count - good, "failed": bad, "all": count}[window.reprocess]
    job, of = window.job, (count, good, bad)
    text = f"{job.job_id} {job.revision} {window.from_at} {window.to_at} {window.reprocess} {of}"
    return BackfillEstimate(
        count=count,
        already_ran=good,
        to_run=to_run,
        exact=seen < MAX_COMPARED_INSTANTS,
        first=next(instants_ascending(schedules, low, high), None),
        last=next(instants_descending(schedules, low, high), None),
        plan=hashlib.sha256(text.encode()).hexdigest()[:16],
    )


async def start(
    store: Store,
    catalog: Catalog,
    window: BackfillWindow,
    *,
    newest_first: bool,
    parallelism: int,
    rate: float | None,
    plan: str | None = None,
    tenant_id: int,
    who: str,
) -> int:
    """Creates a backfill and returns its id. With `plan`, fails if the estimate has changed since."""
    if plan is not None and plan != (await estimate(store, catalog, window, tenant_id=tenant_id)).plan:
        raise _plan_is_stale()
    schedules, low, high = await _load_range(catalog, window)
    new_backfill = NewBackfill(
        job_id=window.job.job_id,
        revision=window.job.revision,
        from_at=window.from_at,
        to_at=window.to_at,
        newest_first=newest_first,
        reprocess=window.reprocess,
        parallelism=parallelism,
        rate=rate,
        total=await asyncio.to_thread(count_between, schedules, low, high),
    )
    number = await backfills.create(store, new_backfill, tenant_id, who)
    if number is None:
        raise _plan_is_stale()
    return number


async def _load_range(catalog: Catalog, window: BackfillWindow) -> tuple[list[Schedule], datetime, datetime]:
    """Returns the job's present schedules and the window clipped to the job's active time."""
    known = await catalog.schedules(window.job.schedule_ids)
    schedules = [known[number] for number in window.job.schedule_ids if number in known]
    if not schedules:
        hint = "backfills need a cron, rrule or interval schedule; to run the job now, trigger it"
        raise InvalidInput("the job has no recurring schedule", hint=hint, pointer="/job", code="not_recurring")
    return schedules, *clip_range(window.from_at, window.to_at, window.job.starts_at, window.job.ends_at)


def count_between(schedules: Sequence[Schedule], low: datetime, high: datetime) -> int:
    """Counts the distinct instants of all schedules. Only the densest schedule is counted without enumerating it."""
    sizes = sorted(((s.count_between(low, high), place) for place, s in enumerate(schedules)), reverse=True)
    total, others = sizes[0][0], sum(size for size, _ in sizes[1:])
    if total > MAX_OCCURRENCES or others > MAX_COMPARED_INSTANTS:
        limit = MAX_OCCURRENCES if others <= MAX_COMPARED_INSTANTS else MAX_COMPARED_INSTANTS
        message = f"there are more than {limit:,} occurrences"
        raise InvalidInput(message, hint="split the range into shorter ones", pointer="/from", code="limit")
    for nth, (_, place) in enumerate(sizes[1:], 1):
        denser = [schedules[other] for _, other in sizes[:nth]]
        total += sum(not is_occurrence(denser, at) for at in instants_ascending([schedules[place]], low, high))
    return total


def is_occurrence(schedules: Sequence[Schedule], at: datetime) -> bool:
    return any(s.next_after(at - _MICROSECOND) == at for s in schedules)


def _outcomes_of_occurrences(schedules: Sequence[Schedule], found: Sequence[tuple[datetime, bool]]) -> list[bool]:
    """Returns the outcomes of those instants that are occurrences; other runs were triggered or had other schedules."""
    return [good for at, good in found if is_occurrence(schedules, at)]


def _plan_is_stale() -> Conflict:
    hint = "request the plan again, then start the backfill with the new plan"
    return Conflict("the job or its runs have changed since the plan was computed", hint=hint, code="plan_stale")
