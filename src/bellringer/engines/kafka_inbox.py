"""One consumer of a pool's messages, beside others of its group."""

from __future__ import annotations

import asyncio
import atexit
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, ParamSpec

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bellringer.dispatch import Parcel
from bellringer.engines.kafka_address import CONSUMER, Address, Health, words
from bellringer.telemetry import DISPATCH_LAG, REBALANCES, log, one_of

PATIENCE: Final = 3.0  # seconds without any broker before a worker is told: most come back sooner
LEAVE: Final = 5.0  # seconds that a consumer may take to leave its group
REST: Final = 1.0  # seconds between the polls of a consumer that rests; who joins the group waits for them
MEASURE: Final = 5.0  # seconds between two looks at the lag

# What a consumer is told in passing: of a topic that is yet to be made, or was deleted, and of a group that changes.
PASSING: Final = (
    KafkaError._PARTITION_EOF,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
)
_Arguments = ParamSpec("_Arguments")


class KafkaInbox:
    """One consumer of a pool's topic, in a thread of its own. What it got is committed once the worker is done with it,
    at its next turn: a message that comes again because of that was taken before.
    """

    def __init__(self, address: Address, topic: str, pool: str) -> None:
        self._address = address
        self._topic = topic
        self._pool = pool
        self._thread = ThreadPoolExecutor(1, f"kafka {pool}")
        self._left: deque[Parcel] = deque()  # got, and not yet handed over
        self._given: dict[int, int] = {}  # by partition: where it goes on after what was handed over
        self._due: deque[dict[int, int]] = deque()  # … and what is to be committed of it
        self._polled = self._measured = float("-inf")
        self._told: set[int] = set()
        self._closed = False
        self._open()

    async def get(self, most: int, seconds: float) -> list[Parcel]:
        if not self._left:
            await self._turn(self._fetch, most, seconds)
        parcels: list[Parcel] = []
        while self._left and len(parcels) < most:
            parcel = self._left.popleft()
            parcels.append(parcel)
            self._given[parcel.part] = parcel.place + 1
        return parcels

    async def done(self) -> None:
        self._due.append(self._given)
        self._given = {}

    async def rest(self) -> None:
        if time.monotonic() - self._polled >= REST:
            await self._turn(self._stay)

    async def close(self) -> None:
        """Leave the group at once, so that others get its part."""
        if self._closed:
            return
        self._closed = True
        with suppress(TimeoutError, KafkaException):
            await asyncio.wait_for(self._turn(self._leave), LEAVE)
        self._thread.shutdown(wait=False)

    async def _turn(self, step: Callable[_Arguments, None], *args: _Arguments.args, **_: _Arguments.kwargs) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, step, *args)

    # In its thread

    def _open(self) -> None:
        self._health = Health(self._address.place)
        given = {"group.id": self._topic, "error_cb": self._health.hear}
        self._consumer: Consumer = self._address.open(Consumer, {**CONSUMER, **given})
        atexit.register(self._consumer.close)  # one that is not closed hangs the end of the process
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _fetch(self, most: int, seconds: float) -> None:
        if self._health.fatal:
            self._end()
            self._open()
        self._commit()
        self._poll(most, seconds)
        if not self._left and self._health.gone_for > PATIENCE:
            self._look()
        self._measure()

    def _stay(self) -> None:
        """Poll, so that nobody takes this consumer for dead, and who joins gets a part. What comes by that, one message
        at most, waits here as the others wait behind it; a pause would cost a second when it ends.
        """
        self._commit()
        self._poll(1, 0)
        self._measure()

    def _poll(self, most: int, seconds: float) -> None:
        """The first message is waited for, the others are those that are there."""
        self._polled = time.monotonic()
        first = self._consumer.poll(seconds)
        if first is None:
            return
        for message in [first, *self._consumer.consume(most - 1, 0)] if most > 1 else [first]:
            if (error := message.error()) is not None:
                self._complain(error)
            else:
                place = message.partition() or 0, message.offset() or 0
                self._left.append(Parcel(self._topic, *place, message.value() or b""))
        if self._left:
            self._told.clear()
            self._health.well()

    def _complain(self, error: KafkaError) -> None:
        if error.code() not in self._told:
            self._told.add(error.code())
            log.warning("a message of the broker", topic=self._topic, error=words(error))
        if error.code() not in PASSING and not error.retriable():
            raise self._address.away(words(error))

    def _look(self) -> None:
        """The driver says when no broker is left, not when one is back: ask."""
        try:
            self._consumer.list_topics(self._topic, timeout=1)
        except KafkaException as error:
            raise self._address.away(self._health.reason or words(error.args[0])) from None
        self._health.well()

    def _commit(self) -> None:
        """Commit what is done, of the partitions that are still its own."""
        places: dict[int, int] = {}
        while self._due:
            places |= self._due.popleft()
        if places:
            mine = {own.partition for own in self._consumer.assignment()}
            offsets = [TopicPartition(self._topic, part, place) for part, place in places.items() if part in mine]
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def _measure(self) -> None:
        """How many messages are still to come, as of the last that did."""
        if self._polled - self._measured < MEASURE:
            return
        self._measured, lag = self._polled, 0
        for own in self._consumer.position(self._consumer.assignment()):
            low, high = self._consumer.get_watermark_offsets(own, cached=True)
            lag += max(0, high - max(own.offset, low))
        one_of(DISPATCH_LAG, self._pool).set(lag)

    def _assigned(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._rebalanced("assigned", parts)

    def _revoked(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._commit()
        self._rebalanced("revoked", parts)

    def _lost(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._rebalanced("lost", parts)

    def _rebalanced(self, how: str, parts: Sequence[TopicPartition]) -> None:
        one_of(REBALANCES, self._pool).inc()
        log.debug("partitions change hands", topic=self._topic, how=how, parts=[part.partition for part in parts])

    def _leave(self) -> None:
        self._commit()
        self._end()
        one_of(DISPATCH_LAG, self._pool).set(0)

    def _end(self) -> None:
        self._consumer.close()
        atexit.unregister(self._consumer.close)
