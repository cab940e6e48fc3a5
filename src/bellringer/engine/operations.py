"""Runs bulk operations (pause, cancel, retry … of many jobs or runs) in small batches, by any scheduler that is
free.

Each item is changed by the same idempotent call as a single request, so repeating an item is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.core.runs import RunKey, decode_run_id
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import job_updates, register
from bellringer.errors import BellringerError, Conflict, NotFound, Unavailable
from bellringer.store import dead_letters, jobs, operations, run_lists
from bellringer.store.connection_pool import Store
from bellringer.store.dead_letters import DeadLetterFilter, DeadLetterPosition
from bellringer.store.interned_names import Catalog
from bellringer.store.operations import ClaimedOperation, OperationJobFilter, Progress
from bellringer.store.run_lists import RunFilter, RunPosition
from bellringer.store.tenant_scope import ScopedStore
from bellringer.wire.job_changes import decode_changes
from bellringer.wire.operations import encode_operation

MAX_SINGLE_ITEMS_PER_PASS: Final = 50  # for actions that change items one by one
MAX_BATCH_ITEMS_PER_PASS: Final = 500  # for actions that change many items by one call
MAX_PASS_SECONDS: Final = 3.0  # well below the server's idle_in_transaction_session_timeout
MAX_COUNTED_ITEMS: Final = 10_000
MAX_COUNT_SCANS: Final = 8  # a count stops early if few items match
RATE_BURST: Final = timedelta(seconds=10)  # an unused allowance expires after this time
ONE_MINUTE: Final = timedelta(minutes=1)

ItemAction = Callable[[Store, Catalog, ClaimedOperation, Any], Awaitable[object]]


class OperationCursor:
    """The round-robin position over tenants, so that no tenant waits for all operations of another.

    `more`: another pass may find work.
    """

    def __init__(self) -> None:
        self.after = 0
        self.more = False


@dataclass(frozen=True, slots=True)
class OperationBatch:
    """The next items and the position of each; `cursor` is where to continue, `is_last`: no items follow."""

    items: Sequence[Any]
    positions: Sequence[Any]
    cursor: str | None
    is_last: bool

    def first(self, count: int) -> OperationBatch:
        """Returns the first `count` items; the others are left for a later pass."""
        if count == len(self.items):
            return self
        return OperationBatch(
            self.items[:count], self.positions[:count], _encode_position(self.positions[count - 1]), is_last=False
        )


async def run_operations(store: Store, catalog: Catalog, cursor: OperationCursor) -> int:
    """Runs one bounded pass over one operation; returns how many items were done."""
    async with operations.claim_next(store, cursor.after, MAX_BATCH_ITEMS_PER_PASS + 1, RUN_CREATING_ACTIONS) as found:
        if found is None:
            cursor.more, cursor.after = cursor.after > 0, 0
            return 0
        op, progress = found
        scoped_store = ScopedStore(
            store, None, msgspec.json.encode({"who": op.who}).decode()
        )  # sets the actor of the audit
        cursor.more, cursor.after = True, op.tenant_id
        batch = await _next_batch(
            store,
            op,
            min(
                items_allowed(op), MAX_BATCH_ITEMS_PER_PASS if op.action in BATCH_ACTIONS else MAX_SINGLE_ITEMS_PER_PASS
            ),
        )
        if op.action in BATCH_ACTIONS:
            await _do_batch(scoped_store, op, batch.items, progress)
        else:
            batch = batch.first(await _do_items(scoped_store, catalog, op, batch.items, progress))
        progress.ids_consumed = len(batch.items) if op.ids is not None else 0
        progress.cursor, progress.is_finished = batch.cursor, batch.is_last
        progress.paced_at, progress.spent_until = (
            next_at_rate(op, len(batch.items)),
            next_at_quota(op, len(batch.items)),
        )
        return progress.done


def items_allowed(op: ClaimedOperation) -> int:
    """Returns how many items the operation's rate and the tenant's quota allow now."""
    return min(_items_allowed_at(op, op.rate, op.paced_at), _items_allowed_at(op, op.quota, op.spent_until))


def _items_allowed_at(op: ClaimedOperation, rate: float | None, since: datetime) -> int:
    return (
        MAX_BATCH_ITEMS_PER_PASS
        if rate is None
        else int((op.now - _clip_to_burst(op, since)) / (ONE_MINUTE / rate)) + 1
    )


def next_at_rate(op: ClaimedOperation, count: int) -> datetime:
    """Returns when the rate allows the next item. Without a rate this is now, so that other operations have their
    turn first.
    """
    if op.rate is None:
        return op.now
    return _clip_to_burst(op, op.paced_at) + count * (ONE_MINUTE / op.rate) if count else op.paced_at


def next_at_quota(op: ClaimedOperation, count: int) -> datetime:
    """Returns when the tenant's quota allows the next run."""
    if op.quota is None or not count:
        return op.spent_until
    return _clip_to_burst(op, op.spent_until) + count * (ONE_MINUTE / op.quota)


def _clip_to_burst(op: ClaimedOperation, since: datetime) -> datetime:
    return max(since, op.now - RATE_BURST)


# Finding items


async def _next_batch(store: Store, op: ClaimedOperation, limit: int) -> OperationBatch:
    if op.ids is not None:
        named = [_parse_id(op.action, text) for text in op.ids[:limit]]
        return OperationBatch(named, named, None, len(op.ids) <= limit)
    if op.reverts is not None:
        after = None if op.cursor is None else msgspec.json.decode(op.cursor, type=UUID)
        marker = encode_operation(op.reverts)
        found, stop = await operations.find_changed_jobs(store, op.tenant_id, marker, after, limit)
        return _batch(found, found, stop)
    return await find_items(store, op.tenant_id, op.action, op.filter or "{}", op.cursor, limit, op.created_at)


def _parse_id(action: str, text: str) -> UUID | RunKey:
    return UUID(text) if target_kind(action) == "jobs" else decode_run_id(text)


def target_kind(action: str) -> str:
    """Returns what an action is applied to: jobs, runs or dead_letters."""
    return action.split(".", maxsplit=1)[0]


async def find_items(
    store: Store, tenant_id: int, action: str, document: str, cursor: str | None, limit: int, until: datetime
) -> OperationBatch:
    """Returns the next items that match the filter and existed when the operation was created."""
    match target_kind(action):
        case "jobs":
            f = msgspec.json.decode(document, type=OperationJobFilter)
            after = None if cursor is None else msgspec.json.decode(cursor, type=UUID)
            found, stop = await operations.find_jobs(store, tenant_id, f, after, limit, until)
            return _batch(found, found, stop)
        case "runs":
            wanted = msgspec.json.decode(document, type=RunFilter)
            place = None if cursor is None else msgspec.json.decode(cursor, type=RunPosition)
            page = await run_lists.find_runs(store, tenant_id, wanted, place, limit)
            later = await run_lists.created_after(store, page.keys, until)
            kept = [place for place in page.positions if place.key not in later]
            return _batch([place.key for place in kept], kept, page.stop)
        case _:
            which = msgspec.json.decode(document, type=DeadLetterFilter)
            start = DeadLetterPosition(
                RunKey(UUID(int=0), until), until
            )  # the lowest key, so that dead letters of exactly this instant are excluded
            mark = start if cursor is None else msgspec.json.decode(cursor, type=DeadLetterPosition)
            letter_page = await dead_letters.find_dead_letters(store, tenant_id, which, mark, limit)
            return _batch(letter_page.keys, letter_page.positions, letter_page.stop)


def _batch(items: Sequence[Any], places: Sequence[Any], stop: Any) -> OperationBatch:
    return OperationBatch(items, places, None if stop is None else _encode_position(stop), stop is None)


def _encode_position(place: Any) -> str:
    return msgspec.json.encode(place).decode()


async def count_items(
    store: Store, tenant_id: int, action: str, document: str, now: datetime
) -> tuple[int, bool, list[Any]]:
    """Returns the number of matching items, whether all were counted, and the first ten of them."""
    total, cursor, first = 0, None, list[Any]()
    for _ in range(MAX_COUNT_SCANS):
        batch = await find_items(store, tenant_id, action, document, cursor, MAX_COUNTED_ITEMS - total, now)
        total, first = total + len(batch.items), first or list(batch.items[:10])
        cursor = batch.cursor
        if batch.is_last:
            return total, True, first
        if total >= MAX_COUNTED_ITEMS:
            break
    return total, False, first


# Changing items


async def _do_items(
    store: Store, catalog: Catalog, op: ClaimedOperation, items: Sequence[Any], progress: Progress
) -> int:
    """Applies the action to one item after the other until MAX_PASS_SECONDS have passed; returns how many were
    tried.

    The server ends a transaction that idles too long, and with it the lock on the operation.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + MAX_PASS_SECONDS
    for count, item in enumerate(items, start=1):
        await _do_item(store, catalog, op, item, progress)
        if loop.time() > end:
            return count
    return len(items)


async def _do_item(store: Store, catalog: Catalog, op: ClaimedOperation, item: Any, progress: Progress) -> None:
    try:
        await (_revert if op.action == REVERT else ACTIONS[op.action])(store, catalog, op, item)
    except (NotFound, Conflict):  # the item was deleted, or changed before
        progress.skipped += 1
    except Unavailable:
        raise
    except BellringerError as error:
        progress.failed += 1
        progress.failures.append({"id": item_id(item), "code": error.code, "detail": error.message[:300]})
    else:
        progress.done += 1


def item_id(item: UUID | RunKey) -> str:
    """Returns the public id of an item."""
    return item.id if isinstance(item, RunKey) else str(item)


async def _do_batch(store: Store, op: ClaimedOperation, keys: Sequence[RunKey], progress: Progress) -> None:
    if not keys:
        progress.done = 0
    elif op.action == "dead_letters.redrive":
        progress.done = await commands.redrive(store, keys, tenant_id=op.tenant_id)
    else:
        progress.done = await commands.discard(store, keys, tenant_id=op.tenant_id, operation_id=op.operation_id)
    progress.skipped = len(keys) - progress.done


async def _pause(store: Store, _catalog: Catalog, op: ClaimedOperation, job_id: UUID) -> None:
    job = await jobs.get(store, job_id, op.tenant_id)
    if job is not None and job.paused_at is not None:  # keeps the original actor and end of the pause
        raise Conflict("the job is paused already")
    await commands.pause(store, job_id, tenant_id=op.tenant_id, who=op.who, reason=op.reason)


async def _resume(store: Store, catalog: Catalog, op: ClaimedOperation, job_id: UUID) -> None:
    await register.resume(store, catalog, job_id, tenant_id=op.tenant_id, who=op.who)


async def _delete(store: Store, _catalog: Catalog, op: ClaimedOperation, job_id: UUID) -> None:
    await commands.delete_job(store, job_id, tenant_id=op.tenant_id, who=op.who)


async def _run(store: Store, _catalog: Catalog, op: ClaimedOperation, job_id: UUID) -> None:
    if not await operations.create_run(store, job_id, op.tenant_id, op.operation_id):
        raise NotFound("there is no such job")


async def _update(store: Store, catalog: Catalog, op: ClaimedOperation, job_id: UUID) -> None:
    assert op.change is not None, "jobs.update has changes"
    marker = encode_operation(op.operation_id)
    why = marker if op.reason is None else f"{marker}: {op.reason}"  # the revision names the operation; see revert_job
    changes = decode_changes(op.change)
    await job_updates.update_job(store, catalog, job_id, changes, tenant_id=op.tenant_id, who=op.who, why=why)


async def _revert(store: Store, catalog: Catalog, op: ClaimedOperation, job_id: UUID) -> None:
    assert op.change is not None, "only operations with changes are reverted"
    assert op.reverts is not None
    marker, changes = encode_operation(op.reverts), decode_changes(op.change)
    await job_updates.revert_job(store, catalog, job_id, changes, marker, tenant_id=op.tenant_id, who=op.who)


async def _cancel(store: Store, _catalog: Catalog, op: ClaimedOperation, key: RunKey) -> None:
    await commands.cancel(store, key, tenant_id=op.tenant_id, reason=op.reason or f"cancelled by {op.who}")


async def _retry(store: Store, _catalog: Catalog, op: ClaimedOperation, key: RunKey) -> None:
    await commands.retry(store, key, tenant_id=op.tenant_id)


ACTIONS: Final[Mapping[str, ItemAction]] = {
    "jobs.pause": _pause,
    "jobs.resume": _resume,
    "jobs.delete": _delete,
    "jobs.run": _run,
    "jobs.update": _update,
    "runs.cancel": _cancel,
    "runs.retry": _retry,
}
REVERT: Final = "jobs.revert"  # is not requested by its name, but by the operation that it reverts
BATCH_ACTIONS: Final = ("dead_letters.redrive", "dead_letters.discard")
ALL_ACTIONS: Final = (*ACTIONS, *BATCH_ACTIONS)
RUN_CREATING_ACTIONS: Final = (
    "jobs.run",
    "runs.retry",
    "dead_letters.redrive",
)  # they count against the tenant's quota of runs
