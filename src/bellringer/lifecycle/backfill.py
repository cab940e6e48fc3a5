"""Backfill: occurrences of the past become runs, a few at a time. Plan purely, then write once under the fence."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import groupby, islice
from typing import Final

from bellringer.errors import Conflict, InvalidInput
from bellringer.leases import Holding
from bellringer.policies import Overlap
from bellringer.schedule import Schedule
from bellringer.store import backfills
from bellringer.store.backfills import Asked, Filling, Measured, Open
from bellringer.store.jobs import Job
from bellringer.store.names import Names
from bellringer.store.pool import Store

MOST_LOOKED: Final = 200  # backfills that a pass looks at …
MOST_FILLED: Final = 100  # … those that it lets go on …
MOST_RUNS: Final = 2_000  # … the runs that it makes …
MOST_SEEN: Final = 4_000  # … and the instants that it looks at for them, shared evenly: some need no run
NEAR, FAR = 10, 2_000  # how many more instants than runs it looks at; the fewer, the sooner it is done
MOST_DAYS: Final = 16  # a day may have to be given its partitions first
MOST_OCCURRENCES: Final = 1_000_000  # of one backfill
MOST_COMPARED: Final = 100_000  # instants that are looked at one by one, so that a request is answered in time
CHUNK: Final = 20_000
BURST: Final = timedelta(seconds=10)  # what the rate did not use before is not made up for
_MOMENT: Final = timedelta(microseconds=1)


class Turn:
    """Whose turn it is: they are looked at by their numbers, round and round, so that none waits for ever.

    `more`: the last pass moved something, so the next one may too. `reach`: how far it looks beyond the runs that there
    is room for; farther and farther where nothing needs a run.
    """

    def __init__(self) -> None:
        self.after = 0
        self.more = False
        self.reach = NEAR


async def backfill(store: Store, names: Names, holding: Holding, now: datetime, turn: Turn | None = None) -> int:
    """One bounded pass over the open backfills of the held shards; answers how many runs were born."""
    if not holding.tokens:
        return 0
    turn = turn or Turn()
    turn.more = False
    found = await backfills.unended(store, sorted(holding.tokens), turn.after, MOST_LOOKED)
    turn.after = found[-1].backfill_id if len(found) == MOST_LOOKED else 0
    for gone in (b for b in found if b.job_deleted):  # no fence: whoever sees it may say it, and once is enough
        await backfills.end(store, gone.backfill_id, gone.tenant_id, "deleted", "the job was deleted")
    live = [b for b in found if b.state == "running" and not b.job_paused and not b.job_deleted]
    schedules = await names.schedules({number for b in live for number in b.schedule_ids})
    live = await _measure(store, holding, live, schedules, now)
    fillings, full = plan(live, schedules, now, turn.reach)
    if not fillings:
        return 0
    if full:
        turn.after = fillings[-1].backfill.backfill_id
    await backfills.ensure_days(store, {instant.date() for f in fillings for instant in f.instants})
    filled = await backfills.fill(store, holding, fillings)
    turn.more = filled.moved > 0
    turn.reach = min(turn.reach * 4, FAR) if turn.more and not filled.made else NEAR
    return filled.made


async def _measure(
    store: Store, holding: Holding, found: Sequence[Open], schedules: Mapping[int, Schedule], now: datetime
) -> list[Open]:
    """Find out how much new catch-ups hold, and keep it; answers those that hold something."""
    new: dict[Open, Measured] = {}
    for b in found:
        if b.total is None and (of := _schedules(b, schedules)):
            new[b] = plan_catchup(of[0], b.from_at, b.to_at, now, most=b.most, horizon=b.horizon)
    if new and not await backfills.measure(store, holding, new):
        return []
    known = [replace(b, from_at=new[b].start, total=new[b].total) if b in new else b for b in found]
    return [b for b in known if b.total]


def plan_catchup(
    schedule: Schedule,
    from_at: datetime,
    to_at: datetime,
    now: datetime,
    *,
    most: int | None = None,
    horizon: timedelta | None = None,
) -> Measured:
    """Where a catch-up really starts: with the latest `most` occurrences, none of them older than the horizon.

    Nothing is enumerated: the start is searched for by halves, and what lies between is counted.
    """
    start = from_at if horizon is None else min(max(from_at, now - horizon), to_at)
    total = schedule.count_between(start, to_at)
    if most is not None and total > most:
        low, high = start, to_at  # at least `most` occurrences from low on, fewer from high on
        while high - low > _MOMENT:
            middle = low + (high - low) // 2
            if schedule.count_between(middle, to_at) >= most:
                low = middle
            else:
                high = middle
        start, total = low, most
    cut = schedule.count_between(from_at, start)
    return Measured(start=start if cut else from_at, total=total, cut=cut)


def plan(
    found: Sequence[Open], schedules: Mapping[int, Schedule], now: datetime, reach: int = NEAR
) -> tuple[list[Filling], bool]:
    """What one call may do for these, in their order; True: it takes no more, the others wait for the next.

    A backfill whose schedules cannot be read here is left for a node that can.
    """
    fillings: list[Filling] = []
    days: set[date] = set()
    free = {b: room(b, now) for b in found if _schedules(b, schedules)}
    able = [b for b in free if free[b]]
    share = MOST_SEEN // max(1, min(len(able), MOST_FILLED))
    runs = MOST_RUNS
    for b in able:
        most = min(free[b], runs)
        seen = most if b.reprocess == "all" else min(most + reach, share)
        instants, ends = next_instants(b, _schedules(b, schedules), seen)
        kept = within_days(instants, days)
        whole = len(kept) == len(instants)
        if kept or ends:
            fillings.append(Filling(backfill=b, room=most, instants=kept, ends=ends and whole))
        runs -= min(most, len(kept))
        if not whole or not runs or len(fillings) == MOST_FILLED:
            return fillings, True
    return fillings, False


def room(b: Open, now: datetime) -> int:
    """How many runs a backfill may have born now.

    Its own unfinished runs count against its parallelism. Where runs of the job may not overlap, it gets one when
    nothing else of the job is unfinished.
    """
    free = b.parallelism - b.unfinished
    if b.overlap != Overlap.ALLOW:
        free = 0 if b.busy else min(free, 1)
    if b.rate is not None:
        free = min(free, _allowance(b.rate, b.made_at, now))
    return max(free, 0)


def _allowance(rate: float, made_at: datetime | None, now: datetime) -> int:
    """How many runs the rate, of so many a minute, allows since the last one was born."""
    if made_at is None:
        return 1
    minute = timedelta(minutes=1)
    return int(min((now - made_at) / minute * rate + 1e-9, max(1.0, BURST / minute * rate)))


def next_instants(b: Open, schedules: Sequence[Schedule], most: int) -> tuple[list[datetime], bool]:
    """At most so many instants that were not decided on yet, in the backfill's order; True: there are no more."""
    low, high = _left(b)
    every = backwards(schedules, low, high) if b.newest_first else forwards(schedules, low, high)
    found = list(islice(every, most + 1))
    return found[:most], len(found) <= most


def _left(b: Open) -> tuple[datetime, datetime]:
    """The range that is left: the first moment in it, and the first behind it."""
    low, high = bounded(b.from_at, b.to_at, b.starts_at, b.ends_at)
    if b.cursor is None:
        return low, high
    return (low, min(high, b.cursor)) if b.newest_first else (max(low, b.cursor + _MOMENT), high)


def bounded(
    low: datetime, high: datetime, starts_at: datetime | None, ends_at: datetime | None
) -> tuple[datetime, datetime]:
    """A range, within the time in which a job is to run at all; `ends_at` itself belongs to that."""
    if starts_at is not None:
        low = max(low, starts_at)
    if ends_at is not None:
        high = min(high, ends_at + _MOMENT)
    return low, max(low, high)


def forwards(schedules: Sequence[Schedule], low: datetime, high: datetime) -> Iterator[datetime]:
    """The instants that any of the schedules names, from `low` up to and without `high`, each once."""
    merged = heapq.merge(*(s.between(low - _MOMENT, high - _MOMENT) for s in schedules))
    return (instant for instant, _ in groupby(merged))


def backwards(schedules: Sequence[Schedule], low: datetime, high: datetime) -> Iterator[datetime]:
    """The same, the latest first."""
    while high > low:
        found = [s.last_at_or_before(high - _MOMENT, not_before=low) for s in schedules]
        latest = max((instant for instant in found if instant is not None), default=None)
        if latest is None:
            return
        yield latest
        high = latest


def within_days(instants: Sequence[datetime], days: set[date]) -> Sequence[datetime]:
    """The first of these that lie on no more days than a pass may touch; adds their days to those of the pass."""
    for place, instant in enumerate(instants):
        if instant.date() not in days:
            if len(days) == MOST_DAYS:
                return instants[:place]
            days.add(instant.date())
    return instants


def _schedules(b: Open, known: Mapping[int, Schedule]) -> list[Schedule]:
    """All of its schedules, or none where one cannot be read here."""
    if not all(number in known for number in b.schedule_ids):
        return []
    return [known[number] for number in b.schedule_ids]


# Asking for one


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which occurrences of a job are to be run, and which of them again."""

    job: Job
    from_at: datetime
    to_at: datetime
    reprocess: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a wish would do: the occurrences in its range, those that have a run which succeeded or has not ended, and
    those that would be run. `exact` is false where more runs exist than are looked at. `plan` names all of this."""

    count: int
    already_ran: int
    to_run: int
    exact: bool
    first: datetime | None
    last: datetime | None
    plan: str


async def estimate(store: Store, names: Names, wish: Wish, *, tenant_id: int) -> Estimate:
    """Look, and change nothing."""
    schedules, low, high = await _range(names, wish)
    count = await asyncio.to_thread(count_between, schedules, low, high)
    good = bad = seen = 0
    after = low - _MOMENT
    while seen < MOST_COMPARED:
        found = await backfills.ran(store, wish.job.job_id, tenant_id, after, high, CHUNK)
        if not found:
            break
        kept = await asyncio.to_thread(_named, schedules, found)
        good += sum(kept)
        bad += len(kept) - sum(kept)
        seen, after = seen + len(found), found[-1][0]
    to_run = {"none": count - good, "failed": bad, "all": count}[wish.reprocess]
    job, of = wish.job, (count, good, bad)
    text = f"{job.job_id} {job.revision} {wish.from_at} {wish.to_at} {wish.reprocess} {of}"
    return Estimate(
        count=count,
        already_ran=good,
        to_run=to_run,
        exact=seen < MOST_COMPARED,
        first=next(forwards(schedules, low, high), None),
        last=next(backwards(schedules, low, high), None),
        plan=hashlib.sha256(text.encode()).hexdigest()[:16],
    )


async def start(
    store: Store,
    names: Names,
    wish: Wish,
    *,
    newest_first: bool,
    parallelism: int,
    rate: float | None,
    plan: str | None = None,
    tenant_id: int,
    who: str,
) -> int:
    """Make a backfill, if what was planned still holds; answers its number."""
    if plan is not None and plan != (await estimate(store, names, wish, tenant_id=tenant_id)).plan:
        raise _stale()
    schedules, low, high = await _range(names, wish)
    asked = Asked(
        job_id=wish.job.job_id,
        revision=wish.job.revision,
        from_at=wish.from_at,
        to_at=wish.to_at,
        newest_first=newest_first,
        reprocess=wish.reprocess,
        parallelism=parallelism,
        rate=rate,
        total=await asyncio.to_thread(count_between, schedules, low, high),
    )
    number = await backfills.create(store, asked, tenant_id, who)
    if number is None:
        raise _stale()
    return number


async def _range(names: Names, wish: Wish) -> tuple[list[Schedule], datetime, datetime]:
    """The job's schedules as they are now, and the part of the range in which it is to run at all."""
    known = await names.schedules(wish.job.schedule_ids)
    schedules = [known[number] for number in wish.job.schedule_ids if number in known]
    if not schedules:
        hint = "a backfill runs what a cron or an interval names; to run the job now, trigger it"
        raise InvalidInput("the job has no recurring schedule", hint=hint, pointer="/job", code="not_recurring")
    return schedules, *bounded(wish.from_at, wish.to_at, wish.job.starts_at, wish.job.ends_at)


def count_between(schedules: Sequence[Schedule], low: datetime, high: datetime) -> int:
    """How many instants these schedules name together. Only those of all but the densest are looked at one by one."""
    sizes = sorted(((s.count_between(low, high), place) for place, s in enumerate(schedules)), reverse=True)
    total, others = sizes[0][0], sum(size for size, _ in sizes[1:])
    if total > MOST_OCCURRENCES or others > MOST_COMPARED:
        message = f"there are more than {MOST_OCCURRENCES if others <= MOST_COMPARED else MOST_COMPARED:,} occurrences"
        raise InvalidInput(message, hint="ask for a shorter range, one after the other", pointer="/from", code="limit")
    for nth, (_, place) in enumerate(sizes[1:], 1):
        denser = [schedules[other] for _, other in sizes[:nth]]
        total += sum(not names_it(denser, at) for at in forwards([schedules[place]], low, high))
    return total


def names_it(schedules: Sequence[Schedule], at: datetime) -> bool:
    return any(s.next_after(at - _MOMENT) == at for s in schedules)


def _named(schedules: Sequence[Schedule], found: Sequence[tuple[datetime, bool]]) -> list[bool]:
    """Of instants with runs, those that the schedules name: others were run by hand, or by schedules of before."""
    return [good for at, good in found if names_it(schedules, at)]


def _stale() -> Conflict:
    hint = "look at the plan again, then ask with its new name"
    return Conflict("the job or its runs have changed since the plan was made", hint=hint, code="plan_stale")
