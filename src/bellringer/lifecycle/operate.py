"""Operate: what somebody asked to be done to many, done to a few of them in every pass, by whichever node comes.

Each item is done by the same guarded call as one that is asked for alone, so that to do it twice changes nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.errors import BellringerError, Conflict, NotFound, Unavailable
from bellringer.lifecycle import control, register
from bellringer.runs import RunKey, decode_id
from bellringer.store import jobs, letters, operations, run_lists
from bellringer.store.letters import LetterFilter, LetterPlace
from bellringer.store.names import Names
from bellringer.store.operations import JobFilter, Progress, Taken
from bellringer.store.pool import Store
from bellringer.store.run_lists import Place, RunFilter
from bellringer.store.scope import ScopedStore

FEW: Final = 50  # items of one pass that are done one by one …
MANY: Final = 500  # … and those that are done by one call
LONGEST: Final = 3.0  # seconds of a pass: well below those after which the server ends an idle transaction
MOST_COUNTED: Final = 10_000
LOOKS: Final = 8  # of one count: where few fit, it gives up
BURST: Final = timedelta(seconds=10)  # what the rate did not use before is not made up for
MINUTE: Final = timedelta(minutes=1)

Act = Callable[[Store, Names, Taken, Any], Awaitable[object]]


class Turn:
    """Whose turn it is: tenant by tenant, round and round, so that none waits for all that another one asks for.

    `more`: another pass may do something.
    """

    def __init__(self) -> None:
        self.after = 0
        self.more = False


@dataclass(frozen=True, slots=True)
class Batch:
    """The next items, and the place of each in its list; `cursor` is where to go on, `ends`: nothing follows."""

    items: Sequence[Any]
    places: Sequence[Any]
    cursor: str | None
    ends: bool

    def first(self, count: int) -> Batch:
        """Only so many of them; the others are left for later."""
        if count == len(self.items):
            return self
        return Batch(self.items[:count], self.places[:count], _written(self.places[count - 1]), ends=False)


async def operate(store: Store, names: Names, turn: Turn) -> int:
    """One bounded pass over one operation; answers how many items were done."""
    async with operations.taken(store, turn.after, MANY + 1, FIRES) as found:
        if found is None:
            turn.more, turn.after = turn.after > 0, 0
            return 0
        op, progress = found
        acting = ScopedStore(store, None, msgspec.json.encode({"who": op.who}).decode())  # for the audit
        turn.more, turn.after = True, op.tenant_id
        batch = await _next(store, op, min(allowance(op), MANY if op.action in AT_ONCE else FEW))
        if op.action in AT_ONCE:
            await _do_at_once(acting, op, batch.items, progress)
        else:
            batch = batch.first(await _do_some(acting, names, op, batch.items, progress))
        progress.looked = len(batch.items) if op.ids is not None else 0
        progress.cursor, progress.ends = batch.cursor, batch.ends
        progress.paced_at, progress.spent_until = paced(op, len(batch.items)), spent(op, len(batch.items))
        return progress.done


def allowance(op: Taken) -> int:
    """How many items rate and quota allow now; it is asked for only when they allow one."""
    return min(_allowed(op, op.rate, op.paced_at), _allowed(op, op.quota, op.spent_until))


def _allowed(op: Taken, rate: float | None, since: datetime) -> int:
    return MANY if rate is None else int((op.now - _recent(op, since)) / (MINUTE / rate)) + 1


def paced(op: Taken, count: int) -> datetime:
    """When the rate allows the next item, after so many. Without a rate: now, so that others have their turn first."""
    if op.rate is None:
        return op.now
    return _recent(op, op.paced_at) + count * (MINUTE / op.rate) if count else op.paced_at


def spent(op: Taken, count: int) -> datetime:
    """When the quota allows the next run, after so many."""
    if op.quota is None or not count:
        return op.spent_until
    return _recent(op, op.spent_until) + count * (MINUTE / op.quota)


def _recent(op: Taken, since: datetime) -> datetime:
    return max(since, op.now - BURST)


# What an operation is about


async def _next(store: Store, op: Taken, most: int) -> Batch:
    if op.ids is not None:
        named = [_named(op.action, text) for text in op.ids[:most]]
        return Batch(named, named, None, len(op.ids) <= most)
    return await find(store, op.tenant_id, op.action, op.filter or "{}", op.cursor, most, op.created_at)


def _named(action: str, text: str) -> UUID | RunKey:
    return UUID(text) if kind_of(action) == "jobs" else decode_id(text)


def kind_of(action: str) -> str:
    """What an action is done to: jobs, runs or dead_letters."""
    return action.split(".", maxsplit=1)[0]


async def find(
    store: Store, tenant_id: int, action: str, document: str, cursor: str | None, most: int, until: datetime
) -> Batch:
    """The next items that fit the filter: none that came after the operation was asked for."""
    match kind_of(action):
        case "jobs":
            f = msgspec.json.decode(document, type=JobFilter)
            after = None if cursor is None else msgspec.json.decode(cursor, type=UUID)
            found, stop = await operations.jobs(store, tenant_id, f, after, most, until)
            return _batch(found, found, stop)
        case "runs":
            wanted = msgspec.json.decode(document, type=RunFilter)
            place = None if cursor is None else msgspec.json.decode(cursor, type=Place)
            page = await run_lists.page(store, tenant_id, wanted, place, most)
            later = await run_lists.born_after(store, page.keys, until)
            there = [place for place in page.places if place.key not in later]
            return _batch([place.key for place in there], there, page.stop)
        case _:
            which = msgspec.json.decode(document, type=LetterFilter)
            start = LetterPlace(RunKey(UUID(int=0), until), until)  # the least of the keys: of this very moment, none
            mark = start if cursor is None else msgspec.json.decode(cursor, type=LetterPlace)
            letter_page = await letters.page(store, tenant_id, which, mark, most)
            return _batch(letter_page.keys, letter_page.places, letter_page.stop)


def _batch(items: Sequence[Any], places: Sequence[Any], stop: Any) -> Batch:
    return Batch(items, places, None if stop is None else _written(stop), stop is None)


def _written(place: Any) -> str:
    return msgspec.json.encode(place).decode()


async def count(store: Store, tenant_id: int, action: str, document: str, now: datetime) -> tuple[int, bool, list[Any]]:
    """How many fit, as far as that is quick; whether these are all; and the first few of them."""
    total, cursor, first = 0, None, list[Any]()
    for _ in range(LOOKS):
        batch = await find(store, tenant_id, action, document, cursor, MOST_COUNTED - total, now)
        total, first = total + len(batch.items), first or list(batch.items[:10])
        cursor = batch.cursor
        if batch.ends:
            return total, True, first
        if total >= MOST_COUNTED:
            break
    return total, False, first


# What is done


async def _do_some(store: Store, names: Names, op: Taken, items: Sequence[Any], progress: Progress) -> int:
    """One by one, for a while; answers how many. Whoever holds a lock for long without a word loses it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LONGEST
    for count, item in enumerate(items, start=1):
        await _do(store, names, op, item, progress)
        if loop.time() > end:
            return count
    return len(items)


async def _do(store: Store, names: Names, op: Taken, item: Any, progress: Progress) -> None:
    try:
        await ACTIONS[op.action](store, names, op, item)
    except (NotFound, Conflict):  # it is gone, or was done by someone else, or before
        progress.skipped += 1
    except Unavailable:
        raise
    except BellringerError as error:
        progress.failed += 1
        progress.failures.append({"id": shown(item), "code": error.code, "detail": error.message[:300]})
    else:
        progress.done += 1


def shown(item: UUID | RunKey) -> str:
    """An item's id, as people name it."""
    return item.id if isinstance(item, RunKey) else str(item)


async def _do_at_once(store: Store, op: Taken, keys: Sequence[RunKey], progress: Progress) -> None:
    act = control.redrive if op.action == "dead_letters.redrive" else control.discard
    progress.done = await act(store, keys, tenant_id=op.tenant_id) if keys else 0
    progress.skipped = len(keys) - progress.done


async def _pause(store: Store, _names: Names, op: Taken, job_id: UUID) -> None:
    job = await jobs.get(store, job_id, op.tenant_id)
    if job is not None and job.paused_at is not None:  # who paused it, and until when, stays
        raise Conflict("the job is paused already")
    await control.pause(store, job_id, tenant_id=op.tenant_id, who=op.who, reason=op.reason)


async def _resume(store: Store, names: Names, op: Taken, job_id: UUID) -> None:
    await register.resume(store, names, job_id, tenant_id=op.tenant_id, who=op.who)


async def _delete(store: Store, _names: Names, op: Taken, job_id: UUID) -> None:
    await control.retire(store, job_id, tenant_id=op.tenant_id, who=op.who)


async def _run(store: Store, _names: Names, op: Taken, job_id: UUID) -> None:
    if not await operations.run_for(store, job_id, op.tenant_id, op.operation_id):
        raise NotFound("there is no such job")


async def _cancel(store: Store, _names: Names, op: Taken, key: RunKey) -> None:
    await control.cancel(store, key, tenant_id=op.tenant_id, reason=op.reason or f"cancelled by {op.who}")


async def _retry(store: Store, _names: Names, op: Taken, key: RunKey) -> None:
    await control.retry(store, key, tenant_id=op.tenant_id)


ACTIONS: Final[Mapping[str, Act]] = {
    "jobs.pause": _pause,
    "jobs.resume": _resume,
    "jobs.delete": _delete,
    "jobs.run": _run,
    "runs.cancel": _cancel,
    "runs.retry": _retry,
}
AT_ONCE: Final = ("dead_letters.redrive", "dead_letters.discard")
EVERY: Final = (*ACTIONS, *AT_ONCE)
FIRES: Final = ("jobs.run", "runs.retry", "dead_letters.redrive")  # they count against the tenant's quota of runs
