"""Batches concurrent calls of a tenant into one statement, as a DataLoader does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

G = TypeVar("G", bound=tuple[Any, ...])
K = TypeVar("K")
V = TypeVar("V")


class Batcher(Generic[G, K, V]):
    """Calls a function with the keys of several requests. A request joins the next batch that has not been sent yet, so
    a read never sees data older than its request.

    `group[0]` is the tenant. A tenant has one batch in flight, and a second one only if the first takes longer than
    SECOND_BATCH_AFTER_SECONDS: two concurrent statements cost more than one with the keys of both. Groups take turns,
    so that slow tenants leave connections to the others.
    """

    MAX_KEYS: Final = 200  # keys in one batch
    MAX_BATCHES_PER_TENANT: Final = 2  # batches of one tenant in flight
    SECOND_BATCH_AFTER_SECONDS: Final = 0.005

    def __init__(self, function: Callable[[G, Sequence[K]], Awaitable[Mapping[K, V]]], *, max_batches: int = 6) -> None:
        self._function = function
        self._max_batches = max_batches  # batches in flight: no more than there are connections for them
        self._waiting: dict[G, dict[K, list[asyncio.Future[V | None]]]] = {}
        self._in_flight: Counter[Hashable] = Counter()
        self._just_sent: dict[Hashable, asyncio.TimerHandle] = {}  # tenants whose last batch was sent only just now
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    async def get(self, group: G, key: K) -> V | None:
        future: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(group, {})
        if key in waiting:
            waiting[key].append(future)
        else:
            waiting[key] = [future]
            self._start()
        return await future

    def _start(self) -> None:
        """Starts a batch if there is work for one. It begins in the next iteration of the event loop and includes the
        requests that arrive until then.
        """
        if not self._is_scheduled and self._next_group():
            self._is_scheduled = True
            call = asyncio.create_task(self._send_batch())
            self._tasks.add(call)
            call.add_done_callback(self._tasks.discard)

    def _next_group(self) -> Sequence[G]:
        """Returns the next group that may send a batch; empty if none may."""
        if self._in_flight.total() < self._max_batches:
            for group in self._waiting:
                if group[0] not in self._just_sent and self._in_flight[group[0]] < self.MAX_BATCHES_PER_TENANT:
                    return (group,)
        return ()

    def _allow_second(self, tenant: Hashable) -> None:
        del self._just_sent[tenant]
        self._start()

    async def _send_batch(self) -> None:
        self._is_scheduled = False
        for group in self._next_group():
            waiting = self._waiting.pop(group)
            wanted = {key: waiting.pop(key) for key in list(islice(waiting, self.MAX_KEYS))}
            if waiting:
                self._waiting[group] = waiting  # behind the other groups
            tenant: Hashable = group[0]
            self._in_flight[tenant] += 1
            timer = self._just_sent[tenant] = asyncio.get_running_loop().call_later(
                self.SECOND_BATCH_AFTER_SECONDS, self._allow_second, tenant
            )
            self._start()
            try:
                await self._call(group, wanted)
            finally:
                if self._just_sent.get(tenant) is timer:
                    self._just_sent.pop(tenant).cancel()
                self._in_flight[tenant] -= 1
                if not self._in_flight[tenant]:
                    del self._in_flight[tenant]
            self._start()

    async def _call(self, group: G, wanted: Mapping[K, Sequence[asyncio.Future[V | None]]]) -> None:
        try:
            found = await self._function(group, list(wanted))
        except Exception as error:  # noqa: BLE001 - each of those who wait is told
            for future in chain.from_iterable(wanted.values()):
                if not future.done():
                    future.set_exception(error)
        else:
            for key, futures in wanted.items():
                answer = found.get(key)
                for future in futures:
                    if not future.done():  # otherwise the client has disconnected
                        future.set_result(answer)
        finally:
            for future in chain.from_iterable(wanted.values()):
                future.cancel()  # has no effect on completed futures
