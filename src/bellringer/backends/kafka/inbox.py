"""A Kafka consumer of one pool's messages."""

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

from bellringer.backends.kafka.address import CONSUMER_CONFIG, KafkaAddress, KafkaHealth, error_text
from bellringer.core.broker import ReceivedMessage
from bellringer.telemetry import DISPATCH_LAG, REBALANCES, log, with_labels

UNAVAILABLE_AFTER_SECONDS: Final = 3.0  # shorter outages of all brokers are not reported
LEAVE_TIMEOUT_SECONDS: Final = 5.0
PAUSED_POLL_SECONDS: Final = 1.0  # between polls of a paused consumer; a rebalance waits for these polls
LAG_INTERVAL_SECONDS: Final = 5.0  # between two measurements of the lag

# Errors that a consumer ignores: missing or deleted topics, and rebalances.
TRANSIENT_ERRORS: Final = (
    KafkaError._PARTITION_EOF,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
)
_Arguments = ParamSpec("_Arguments")


class KafkaInbox:
    """Runs a consumer in its own thread. Offsets are committed at the next poll after the worker called `commit`; a
    message that is redelivered because of the delay was already taken and is dropped.
    """

    def __init__(self, address: KafkaAddress, topic: str, pool: str) -> None:
        self._address = address
        self._topic = topic
        self._pool = pool
        self._thread = ThreadPoolExecutor(1, f"kafka {pool}")
        self._left: deque[ReceivedMessage] = deque()  # received and not yet returned by `get`
        self._given: dict[int, int] = {}  # partition -> next offset after the returned messages
        self._due: deque[dict[int, int]] = deque()  # offsets to commit
        self._polled = self._measured = float("-inf")
        self._reported: set[int] = set()
        self._closed = False
        self._open()

    async def get(self, most: int, seconds: float) -> list[ReceivedMessage]:
        if not self._left:
            await self._in_thread(self._fetch, most, seconds)
        messages: list[ReceivedMessage] = []
        while self._left and len(messages) < most:
            message = self._left.popleft()
            messages.append(message)
            self._given[message.partition] = message.offset + 1
        return messages

    async def commit(self) -> None:
        self._due.append(self._given)
        self._given = {}

    async def pause(self) -> None:
        if time.monotonic() - self._polled >= PAUSED_POLL_SECONDS:
            await self._in_thread(self._poll_while_paused)

    async def close(self) -> None:
        """Leave the group at once, so that other consumers get this one's partitions."""
        if self._closed:
            return
        self._closed = True
        with suppress(TimeoutError, KafkaException):
            await asyncio.wait_for(self._in_thread(self._leave), LEAVE_TIMEOUT_SECONDS)
        self._thread.shutdown(wait=False)

    async def _in_thread(
        self, step: Callable[_Arguments, None], *args: _Arguments.args, **_: _Arguments.kwargs
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, step, *args)

    # Called in the consumer's thread

    def _open(self) -> None:
        self._health = KafkaHealth(self._address.address)
        given = {"group.id": self._topic, "error_cb": self._health.on_error}
        self._consumer: Consumer = self._address.open(Consumer, {**CONSUMER_CONFIG, **given})
        atexit.register(self._consumer.close)  # an open consumer would block the exit of the process
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _fetch(self, most: int, seconds: float) -> None:
        if self._health.fatal:
            self._end()
            self._open()
        self._commit()
        self._poll(most, seconds)
        if not self._left and self._health.unavailable_seconds > UNAVAILABLE_AFTER_SECONDS:
            self._look()
        self._measure()

    def _poll_while_paused(self) -> None:
        """Poll while paused, to stay in the group and join rebalances. A message received this way (at most one)
        is kept for the next `get`. Kafka's own pause is not used: resuming would take a second.
        """
        self._commit()
        self._poll(1, 0)
        self._measure()

    def _poll(self, most: int, seconds: float) -> None:
        """Wait for the first message, then read more without waiting."""
        self._polled = time.monotonic()
        first = self._consumer.poll(seconds)
        if first is None:
            return
        for message in [first, *self._consumer.consume(most - 1, 0)] if most > 1 else [first]:
            if (error := message.error()) is not None:
                self._handle_error(error)
            else:
                place = message.partition() or 0, message.offset() or 0
                self._left.append(ReceivedMessage(self._topic, *place, message.value() or b""))
        if self._left:
            self._reported.clear()
            self._health.recovered()

    def _handle_error(self, error: KafkaError) -> None:
        if error.code() not in self._reported:
            self._reported.add(error.code())
            log.warning("kafka consumer error", topic=self._topic, error=error_text(error))
        if error.code() not in TRANSIENT_ERRORS and not error.retriable():
            raise self._address.unavailable(error_text(error))

    def _look(self) -> None:
        """Check whether a broker is available again; the driver does not report that."""
        try:
            self._consumer.list_topics(self._topic, timeout=1)
        except KafkaException as error:
            raise self._address.unavailable(self._health.reason or error_text(error.args[0])) from None
        self._health.recovered()

    def _commit(self) -> None:
        """Commit offsets of the partitions that are still assigned to this consumer."""
        places: dict[int, int] = {}
        while self._due:
            places |= self._due.popleft()
        if places:
            mine = {own.partition for own in self._consumer.assignment()}
            offsets = [TopicPartition(self._topic, part, place) for part, place in places.items() if part in mine]
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def _measure(self) -> None:
        """Update the metric of messages that this consumer has not received yet."""
        if self._polled - self._measured < LAG_INTERVAL_SECONDS:
            return
        self._measured, lag = self._polled, 0
        for own in self._consumer.position(self._consumer.assignment()):
            low, high = self._consumer.get_watermark_offsets(own, cached=True)
            lag += max(0, high - max(own.offset, low))
        with_labels(DISPATCH_LAG, self._pool).set(lag)

    def _assigned(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._rebalanced("assigned", parts)

    def _revoked(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._commit()
        self._rebalanced("revoked", parts)

    def _lost(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._rebalanced("lost", parts)

    def _rebalanced(self, how: str, parts: Sequence[TopicPartition]) -> None:
        with_labels(REBALANCES, self._pool).inc()
        log.debug("kafka partitions rebalanced", topic=self._topic, how=how, parts=[part.partition for part in parts])

    def _leave(self) -> None:
        self._commit()
        self._end()
        with_labels(DISPATCH_LAG, self._pool).set(0)

    def _end(self) -> None:
        self._consumer.close()
        atexit.unregister(self._consumer.close)
