"""Wake-ups: notifications that there is work. They may be lost or repeated; correctness rests on polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from typing import Final, NamedTuple

from bellringer.clock import Clock
from bellringer.core.messages import SEND_AHEAD, SEND_NOTICE
from bellringer.errors import Unavailable
from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store, connect
from bellringer.telemetry import log

WORK_CHANNEL: Final = "bellringer_work"  # payload: see `parse_work_hint`
COHORTS_CHANNEL: Final = (
    "bellringer_cohorts"  # a job was registered, or, with payload SHARDS_RELEASED, shards were released
)
SHARDS_RELEASED: Final = "shards"
MAX_INSTANTS_PER_WAKEUP: Final = 1_000  # a notification has at most 8,000 bytes
CANCELS_CHANNEL: Final = "bellringer_cancels"
RUNS_CHANNEL: Final = "bellringer_runs"  # payload: the tenant whose jobs or runs have changed; empty: any
LISTEN_CHECK_SECONDS: Final = 4.0  # a connection that only listens is checked this often
LISTEN_RESPONSE_SECONDS: Final = 3.0
RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 4.0
MIN_SEND_INTERVAL_SECONDS: Final = (
    0.1  # NOTIFY takes a server-wide lock at commit, so each kind is sent at most this often
)
ANNOUNCE_INTERVAL_SECONDS: Final = 0.02  # the same for the notifications of sends
MAX_ANNOUNCEMENTS: Final = 20
_NOTIFY_ALL: Final = "select pg_notify(channel, payload) from unnest($1::text[], $2::text[]) w (channel, payload)"


class Wakeups:
    """Sends wake-ups, at most one of a kind every 100 ms, and never inside another transaction.

    A send notifies in its own statement if `may_notify` allows it: at most one statement every 20 ms. The runs of the
    sends in between are announced together when the 20 ms are over (`announce`), so that the last send of a burst is
    not left to the workers' poll.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._sent: dict[tuple[str, str], float] = {}
        self._notified_at = float("-inf")  # when a send last notified
        self._pending: dict[tuple[str, str], None] = {}  # an ordered set
        self._announcing: asyncio.Task[None] | None = None

    async def send(self, channel: str, payload: str = "") -> None:
        moment = self._clock.monotonic()
        if moment - self._sent.get((channel, payload), -1.0) < MIN_SEND_INTERVAL_SECONDS:
            return
        if len(self._sent) > 1000:
            self._sent.clear()
        self._sent[channel, payload] = moment
        try:
            await self._store.pool.execute("select pg_notify($1, $2)", channel, payload)
        except RETRYABLE_ERRORS:
            return  # a lost wake-up costs one poll interval

    def may_notify(self) -> bool:
        """Returns whether the statement of a send may notify. Otherwise its caller must `announce` the run."""
        moment = self._clock.monotonic()
        if moment - self._notified_at < ANNOUNCE_INTERVAL_SECONDS:
            return False
        self._notified_at = moment
        return True

    def announce(self, now: datetime, times: Iterable[datetime]) -> None:
        """Notifies soon of runs that were sent at `now`, by the database's clock, for these times."""
        self.announce_all(wakeups_of_sends(now, times))

    def announce_all(self, wakeups: Iterable[tuple[str, str]]) -> None:
        self._pending.update(dict.fromkeys(wakeups))
        if self._pending and self._announcing is None:
            self._announcing = asyncio.create_task(self._announce())

    async def close(self) -> None:
        """Sends what is announced."""
        if self._announcing is not None:
            self._announcing.cancel()
            await asyncio.wait([self._announcing])
        await self._flush()

    async def _announce(self) -> None:
        try:
            wait = self._notified_at + ANNOUNCE_INTERVAL_SECONDS - self._clock.monotonic()
            await asyncio.sleep(max(wait, 0.0))
            self._notified_at = self._clock.monotonic()
        finally:
            self._announcing = None  # later announcements belong to the next task
        await self._flush()

    async def _flush(self) -> None:
        wakeups, self._pending = list(self._pending)[:MAX_ANNOUNCEMENTS], {}
        if not wakeups:
            return
        channels, payloads = zip(*wakeups, strict=True)
        with suppress(*RETRYABLE_ERRORS):  # a lost wake-up costs one poll interval
            await self._store.pool.execute(_NOTIFY_ALL, channels, payloads)


class DeferredWakeups(Wakeups):
    """Holds wake-ups back until the change that they announce is committed."""

    def __init__(self, wakeups: Wakeups | None) -> None:
        self._later = wakeups
        self._hints: list[tuple[str, str]] = []
        self._announced: list[tuple[str, str]] = []

    async def send(self, channel: str, payload: str = "") -> None:
        self._hints.append((channel, payload))

    def may_notify(self) -> bool:
        return self._later is not None and self._later.may_notify()  # the server notifies at the commit

    def announce_all(self, wakeups: Iterable[tuple[str, str]]) -> None:
        self._announced += wakeups

    async def release(self) -> None:
        if self._later is not None:
            for channel, payload in dict.fromkeys(self._hints):
                await self._later.send(channel, payload)
            self._later.announce_all(self._announced)
        self._hints.clear()
        self._announced.clear()


def wakeups_of_sends(now: datetime, times: Iterable[datetime]) -> Iterator[tuple[str, str]]:
    """Yields the channel and payload for each run that was sent at `now`; as `notify_sent` in `runs/send.sql`."""
    for due in times:
        if due <= now:
            yield WORK_CHANNEL, ""
        elif due <= now + SEND_AHEAD:
            yield WORK_CHANNEL, due.isoformat()
        elif due <= now + SEND_NOTICE:
            yield COHORTS_CHANNEL, ""


def format_instants(instants: Collection[datetime]) -> str:
    """Returns the payload for these instants: the first one, then how many milliseconds later each other one is."""
    first, *later = sorted(instants)[:MAX_INSTANTS_PER_WAKEUP]
    offsets = dict.fromkeys(ceil((instant - first) / timedelta(milliseconds=1)) for instant in later)
    return f"{first.isoformat()};{','.join(map(str, offsets))}" if offsets else first.isoformat()


class WorkHint(NamedTuple):
    """The instants from which new runs may be claimed, none if it is now, and their pool; None: any pool."""

    instants: list[datetime]
    pool_id: int | None = None


def parse_work_hint(payload: str) -> WorkHint:
    """Returns the parts of a payload of WORK_CHANNEL. An empty or invalid one hints at any pool, now."""
    first, _, numbers = payload.partition(";")
    try:
        instant = datetime.fromisoformat(first)
        parsed = [int(number) for number in numbers.split(",") if number]
        later = [instant + timedelta(milliseconds=offset) for offset in parsed if offset >= 0]
        return WorkHint([instant, *later], next((-number for number in parsed if number < 0), None))
    except ValueError:
        return WorkHint([])


async def listen(store: Store, clock: Clock, channels: dict[str, Callable[[str], None]]) -> None:
    """Listens forever, on one connection per store, and reconnects after every loss. Without a session of its own, as
    behind a pooler, it waits forever: the callers poll.
    """
    if store.session_dsn is None:
        if store.listener is None:
            store.listener = NoListener()
            log.warning("no notifications through the pooler; work is found by polling", hint="set direct_dsn")
        await asyncio.Event().wait()
    if store.listener is None:
        store.listener = _Listener(store, clock)
    await store.listener.hear(channels)


class NoListener:
    """Stands for a listener where no session can listen."""

    connected = False


class _Listener:
    """One connection that listens to the channels of all listeners of a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._hearers: list[dict[str, Callable[[str], None]]] = []
        self._listening: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.connected = False

    async def hear(self, channels: dict[str, Callable[[str], None]]) -> None:
        self._hearers.append(channels)
        self._changed.set()
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        try:
            await asyncio.shield(self._listening)
        finally:
            self._hearers.remove(channels)
            if not self._hearers and self._listening is not None:
                self._listening.cancel()
                self._listening = None

    async def _listen(self) -> None:
        wait = RETRY_SECONDS
        while True:
            started = self._clock.monotonic()
            try:
                await self._listen_once()
            except (*RETRYABLE_ERRORS, Unavailable):
                lasted = self._clock.monotonic() - started > MAX_RETRY_SECONDS
                wait = RETRY_SECONDS if lasted else min(wait * 2, MAX_RETRY_SECONDS)
                await self._clock.sleep(wait)

    async def _listen_once(self) -> None:
        assert self._store.session_dsn is not None
        connection = await connect(self._store.session_dsn, name="bellringer listener")
        connection.add_termination_listener(lambda *_: self._changed.set())
        known: set[str] = set()
        try:
            while True:
                self._changed.clear()
                wanted = {channel for channels in self._hearers for channel in channels}
                async with asyncio.timeout(LISTEN_RESPONSE_SECONDS):
                    for channel in wanted - known:
                        await connection.add_listener(channel, partial(self._pass_on, channel))
                    if wanted <= known:  # detects a dead peer, which a connection that only listens would not notice
                        await connection.execute(f"LISTEN {next(iter(known))}")
                known |= wanted
                self.connected = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(LISTEN_CHECK_SECONDS):
                        await self._changed.wait()
        finally:
            self.connected = False
            connection.terminate()

    def _pass_on(self, channel: str, *notification: object) -> None:
        for channels in list(self._hearers):
            if heard := channels.get(channel):
                heard(str(notification[-1]))
