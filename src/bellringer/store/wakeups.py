"""Wake-ups: hints that there is something to do. They may be lost or doubled; polling is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from bellringer.clock import Clock
from bellringer.errors import Unavailable
from bellringer.store.pool import RETRYABLE, Store, connect

WORK: Final = "bellringer_work"  # payload: the instant from which new runs may be claimed
HANDS: Final = "bellringer_hands"  # a job was registered; or, with this payload, shards were let go
SHARDS: Final = "shards"
CANCELS: Final = "bellringer_cancels"
RUNS: Final = "bellringer_runs"  # payload: the tenant whose jobs or ended runs have changed; without it: of any
QUIET: Final = 0.1  # NOTIFY takes a lock of the whole server at commit: one of a kind in this many seconds


class Wakeups:
    """Sends hints, at most one of a kind every 100 ms, and never inside the transaction that matters."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._sent: dict[tuple[str, str], float] = {}

    async def send(self, channel: str, payload: str = "") -> None:
        moment = self._clock.monotonic()
        if moment - self._sent.get((channel, payload), -1.0) < QUIET:
            return
        if len(self._sent) > 1000:
            self._sent.clear()
        self._sent[channel, payload] = moment
        try:
            await self._store.pool.execute("select pg_notify($1, $2)", channel, payload)
        except RETRYABLE:
            return  # a lost hint costs a poll interval, no more


class Held(Wakeups):
    """Keeps hints back, as long as what they tell of is not committed."""

    def __init__(self, wakeups: Wakeups | None) -> None:
        self._later = wakeups
        self._hints: list[tuple[str, str]] = []

    async def send(self, channel: str, payload: str = "") -> None:
        self._hints.append((channel, payload))

    async def release(self) -> None:
        if self._later is not None:
            for channel, payload in dict.fromkeys(self._hints):
                await self._later.send(channel, payload)
        self._hints.clear()


def read_instant(payload: str) -> datetime | None:
    """The instant that a hint names, where it names one."""
    try:
        return datetime.fromisoformat(payload)
    except ValueError:
        return None


async def hear(store: Store, clock: Clock, channels: dict[str, Callable[[str], None]]) -> None:
    """Listen for ever, on a connection of its own, and come back after every loss of it."""
    while True:
        try:
            await _hear_once(store, channels)
        except (*RETRYABLE, Unavailable):
            await clock.sleep(1.0)


async def _hear_once(store: Store, channels: dict[str, Callable[[str], None]]) -> None:
    ended = asyncio.Event()
    connection = await connect(store.dsn, name="bellringer listener")
    try:
        connection.add_termination_listener(lambda *_: ended.set())
        for channel, heard in channels.items():
            await connection.add_listener(channel, partial(_pass_on, heard))
        await ended.wait()
    finally:
        await connection.close(timeout=2)


def _pass_on(heard: Callable[[str], None], *notification: object) -> None:
    heard(str(notification[-1]))
