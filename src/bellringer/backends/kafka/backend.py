"""Kafka as the message broker: one topic per pool, and one consumer group per topic.

Kafka holds no essential data: if a topic or the whole cluster is deleted, runs are sent again. Topics therefore keep
messages for one hour, and a consumer whose offset no longer exists starts with the oldest message.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from bellringer.backends.kafka.address import (
    CONSUMER_CONFIG,
    KAFKA_TIMEOUT_SECONDS,
    MAX_KAFKA_MESSAGE_BYTES,
    PRODUCER_CONFIG,
    KafkaAddress,
    KafkaHealth,
    error_text,
)
from bellringer.backends.kafka.inbox import KafkaInbox
from bellringer.core.broker import BrokerUnavailable
from bellringer.telemetry import log

DEPTH_TIMEOUT_SECONDS: Final = 1.0  # for each request; short, because people look at clusters in trouble
DEPTH_RETRY_SECONDS: Final = 5.0  # after a failure


class KafkaQueueDepths:
    """Counts unread messages for monitoring. Pools without a topic are omitted; all are if no broker responds.

    Uses one consumer per topic that never joins its group. The driver's admin calls could query all topics at once, but
    crashed on a topic that had just been created.
    """

    def __init__(self, address: KafkaAddress, topic: Callable[[str], str]) -> None:
        self._address = address
        self._topic = topic
        self._consumers: dict[str, Consumer] = {}
        self._one_at_a_time = asyncio.Lock()
        self._may_ask_at = float("-inf")

    async def __call__(self, pools: Collection[str]) -> Mapping[str, int]:
        async with self._one_at_a_time:
            if time.monotonic() < self._may_ask_at:
                return {}
            try:
                counts = {pool: await asyncio.to_thread(self._count, self._topic(pool)) for pool in pools}
            except KafkaException:
                self._may_ask_at = time.monotonic() + DEPTH_RETRY_SECONDS
                return {}
        return {pool: count for pool, count in counts.items() if count is not None}

    def _count(self, topic: str) -> int | None:
        if topic not in self._consumers:
            self._consumers[topic] = self._address.open(Consumer, {**CONSUMER_CONFIG, "group.id": topic})
        consumer = self._consumers[topic]
        found = consumer.list_topics(topic, timeout=DEPTH_TIMEOUT_SECONDS).topics[topic]
        if found.error is not None:
            if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise KafkaException(found.error)
        parts = [TopicPartition(topic, number) for number in found.partitions]
        unread = 0
        for read in consumer.committed(parts, timeout=DEPTH_TIMEOUT_SECONDS):
            first, end = consumer.get_watermark_offsets(
                TopicPartition(topic, read.partition), timeout=DEPTH_TIMEOUT_SECONDS
            )
            unread += max(0, end - max(first, read.offset))  # a group without a commit has a negative offset
        return unread


CLOSE_TIMEOUT_SECONDS: Final = 5.0
MAX_TOPIC_LENGTH: Final = 249
TOPIC_CONFIG: Final = {"retention.ms": "3600000", "max.message.bytes": str(MAX_KAFKA_MESSAGE_BYTES)}

_KeyedMessages = Sequence[tuple[bytes | None, bytes]]


class KafkaBackend:
    """Creates Kafka clients for one installation."""

    name = "kafka"

    def __init__(self, url: str, installation: str) -> None:
        self._address = KafkaAddress.read(url)
        self._installation = installation

    @property
    def address(self) -> str:
        return self._address.address

    def topic(self, pool: str) -> str:
        """Return the topic of a pool. Kafka allows few characters and treats '.' and '_' as equal, so a pool name with
        other characters gets a hash."""
        before = re.sub(r"[^a-zA-Z0-9._-]", "-", f"{self._address.prefix}.{self._installation}.")
        if re.fullmatch(r"[a-zA-Z0-9_-]+", pool) and len(before) + len(pool) <= MAX_TOPIC_LENGTH:
            return before + pool
        shown = re.sub(r"[^a-zA-Z0-9_-]", "-", pool)[: MAX_TOPIC_LENGTH - len(before) - 17]
        return f"{before}{shown}-{hashlib.sha256(pool.encode()).hexdigest()[:16]}"

    def broker(self) -> KafkaBroker:
        return KafkaBroker(self._address)

    def inbox(self, pool: str) -> KafkaInbox:
        return KafkaInbox(self._address, self.topic(pool), pool)

    def queue_depths(self) -> KafkaQueueDepths:
        return KafkaQueueDepths(self._address, self.topic)


class KafkaBroker:
    """Creates topics and sends messages."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._producer_thread = _ProducerThread(address)
        self._admin: AdminClient | None = None
        self._admin_health = KafkaHealth(address.address)
        self._known: set[str] = set()

    async def prepare(self, topics: Collection[str]) -> None:
        if unknown := sorted(set(topics) - self._known):
            made = await asyncio.to_thread(self._make, unknown)
            self._known.update(unknown)
            if made and self._producer_thread.used:  # the producer may have cached a deleted topic of that name
                self._renew()

    async def send(self, topic: str, messages: _KeyedMessages) -> list[int]:
        if topic not in self._known:
            await self.prepare([topic])
        producer = self._producer_thread
        batch = await producer.send(topic, messages)
        if batch.error is None:
            producer.health.recovered()
            return []
        self._known.discard(topic)  # it may have been deleted
        if producer.health.fatal and producer is self._producer_thread:  # the producer cannot be used any more
            self._renew()
        failed, reason = batch.failed(messages), error_text(batch.error)
        if len(failed) == len(messages):
            raise self._address.unavailable(producer.health.reason or reason)
        log.warning("some messages were not sent", topic=topic, failed=len(failed), error=reason)
        return failed

    async def close(self) -> None:
        await self._producer_thread.close()

    def _renew(self) -> None:
        self._producer_thread.retire()
        self._producer_thread = _ProducerThread(self._address)

    def _make(self, topics: Sequence[str]) -> bool:
        """Create missing topics and add partitions to small ones. Returns whether a topic was missing."""
        if self._admin is None:
            self._admin = self._address.open(AdminClient, {"error_cb": self._admin_health.on_error})
        wanted, missing, small = self._address.partitions, [], []
        for name, found in self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=KAFKA_TIMEOUT_SECONDS
        ).items():
            described = self._result_of(found, unless=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if described is None:
                missing.append(NewTopic(name, wanted, self._address.replication, config=TOPIC_CONFIG))
            elif len(described.partitions) < wanted:
                small.append(NewPartitions(name, wanted))
        if missing:
            for made in self._admin.create_topics(missing, request_timeout=KAFKA_TIMEOUT_SECONDS).values():
                self._result_of(made, unless=KafkaError.TOPIC_ALREADY_EXISTS)
        if small:
            for grown in self._admin.create_partitions(small, request_timeout=KAFKA_TIMEOUT_SECONDS).values():
                with suppress(BrokerUnavailable):  # fewer partitions also work, for fewer workers
                    self._result_of(grown, unless=KafkaError.INVALID_PARTITIONS)
        self._admin_health.recovered()
        return bool(missing)

    def _result_of(self, asked: Any, *, unless: int) -> Any:
        try:
            return asked.result(KAFKA_TIMEOUT_SECONDS + 1)
        except KafkaException as error:
            if error.args[0].code() == unless:
                return None
            raise self._address.unavailable(self._why(error_text(error.args[0]))) from None
        except TimeoutError:
            raise self._address.unavailable(self._why("no response")) from None

    def _why(self, reason: str) -> str:
        """Return the cause that the driver has reported, such as a refused certificate, rather than a timeout."""
        if self._admin is not None:
            self._admin.poll(0)  # calls back for errors
        return self._admin_health.reason or reason


class _ProducerThread:
    """A producer and the thread that receives its delivery reports."""

    def __init__(self, address: KafkaAddress) -> None:
        self.health = KafkaHealth(address.address)
        self.used = False
        given = {"compression.type": address.compression, "linger.ms": address.linger, "error_cb": self.health.on_error}
        self._producer: Producer = address.open(Producer, {**PRODUCER_CONFIG, **given})
        self._open = True
        self._thread = threading.Thread(target=self._serve, name="kafka producer", daemon=True)
        self._thread.start()

    async def send(self, topic: str, keyed: _KeyedMessages) -> _Batch:
        """Send a batch and wait for the delivery reports of all messages."""
        self.used = True
        batch = _Batch()
        messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in keyed]
        try:
            self._producer.produce_batch(topic, messages, on_delivery=batch.on_delivery)
        except KafkaException as error:  # all messages failed, or failed ones have "_error"
            batch.error = error.args[0]
        refused = [message for message in messages if "_error" in message]
        for message in refused:
            batch.add_failure(message["_error"], message["value"])
        await batch.expect(len(messages) - len(refused))
        return batch

    def _serve(self) -> None:
        while self._open or len(self._producer):
            self._producer.poll(0.5)

    def retire(self) -> None:
        """Send nothing more. Messages already accepted are still delivered."""
        self._open = False

    async def close(self) -> None:
        self.retire()
        self._producer.purge()
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_SECONDS)


class _Batch:
    """Collects the delivery reports of one batch."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._report_count = 0
        self._expected: int | None = None
        self._failed: list[bytes] = []
        self.error: KafkaError | None = None

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Called in the producer's thread for each message."""
        self._report_count += 1
        if error is not None:
            self.add_failure(error, message.value() or b"")
        if self._report_count == self._expected:
            self._end()

    def add_failure(self, error: KafkaError, value: bytes) -> None:
        self.error = error
        self._failed.append(value)

    async def expect(self, count: int) -> None:
        self._expected = count
        if self._report_count == count:
            self._end()
        await self._done

    def failed(self, messages: _KeyedMessages) -> list[int]:
        """Return the indexes of failed messages. Delivery reports identify a message only by its data."""
        left = Counter(self._failed)
        places = []
        for place, (_, value) in enumerate(messages):
            if left[value] > 0:
                left[value] -= 1
                places.append(place)
        return places

    def _end(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
