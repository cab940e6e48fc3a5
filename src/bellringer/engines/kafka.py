"""Kafka as the broker: one topic a pool, and one group of consumers a topic.

Nothing that Kafka holds is needed: a topic may be deleted, or all of it, and what was in it is sent again. So topics
keep their messages for an hour, and a consumer whose place is gone begins with the first message that there is.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from bellringer.dispatch import Away
from bellringer.engines.kafka_address import ANSWER, LARGEST, PRODUCER, Address, Health, words
from bellringer.engines.kafka_inbox import KafkaInbox
from bellringer.engines.kafka_unread import KafkaUnread
from bellringer.telemetry import log

LEAVE: Final = 5.0  # seconds that a client may take to end
LONGEST_TOPIC: Final = 249
TOPIC: Final = {"retention.ms": "3600000", "max.message.bytes": str(LARGEST)}

_Parcels = Sequence[tuple[bytes | None, bytes]]


class KafkaPost:
    """Kafka as one installation uses it."""

    engine = "kafka"

    def __init__(self, url: str, installation: str) -> None:
        self._address = Address.read(url)
        self._installation = installation

    @property
    def place(self) -> str:
        return self._address.place

    def topic(self, pool: str) -> str:
        """Kafka knows few signs, and takes '.' and '_' for the same: a name with others is told apart by its hash."""
        before = re.sub(r"[^a-zA-Z0-9._-]", "-", f"{self._address.prefix}.{self._installation}.")
        if re.fullmatch(r"[a-zA-Z0-9_-]+", pool) and len(before) + len(pool) <= LONGEST_TOPIC:
            return before + pool
        shown = re.sub(r"[^a-zA-Z0-9_-]", "-", pool)[: LONGEST_TOPIC - len(before) - 17]
        return f"{before}{shown}-{hashlib.sha256(pool.encode()).hexdigest()[:16]}"

    def broker(self) -> KafkaBroker:
        return KafkaBroker(self._address)

    def inbox(self, pool: str) -> KafkaInbox:
        return KafkaInbox(self._address, self.topic(pool), pool)

    def unread(self) -> KafkaUnread:
        return KafkaUnread(self._address, self.topic)


class KafkaBroker:
    """Hands in messages by one producer, and makes the topics."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._wire = _Wire(address)
        self._admin: AdminClient | None = None
        self._known: set[str] = set()

    async def prepare(self, topics: Collection[str]) -> None:
        if unknown := sorted(set(topics) - self._known):
            made = await asyncio.to_thread(self._make, unknown)
            self._known.update(unknown)
            if made and self._wire.used:  # it remembers a topic of that name, which was deleted
                self._renew()

    async def send(self, topic: str, parcels: _Parcels) -> list[int]:
        if topic not in self._known:
            await self.prepare([topic])
        wire = self._wire
        batch = await wire.send(topic, parcels)
        if batch.error is None:
            wire.health.well()
            return []
        self._known.discard(topic)  # perhaps it was deleted
        if wire.health.fatal and wire is self._wire:  # it has lost count of what the broker has
            self._renew()
        failed, reason = batch.failed(parcels), words(batch.error)
        if len(failed) == len(parcels):
            raise self._address.away(wire.health.reason or reason)
        log.warning("the broker did not take all messages", topic=topic, failed=len(failed), error=reason)
        return failed

    async def close(self) -> None:
        await self._wire.close()

    def _renew(self) -> None:
        self._wire.retire()
        self._wire = _Wire(self._address)

    def _make(self, topics: Sequence[str]) -> bool:
        """Make topics that are missing, and let grow those that are too small; answers whether one was missing."""
        if self._admin is None:
            self._admin = self._address.open(AdminClient, {})
        wanted, missing, small = self._address.partitions, [], []
        for name, found in self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER).items():
            described = self._answer(found, unless=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if described is None:
                missing.append(NewTopic(name, wanted, self._address.replication, config=TOPIC))
            elif len(described.partitions) < wanted:
                small.append(NewPartitions(name, wanted))
        if missing:
            for made in self._admin.create_topics(missing, request_timeout=ANSWER).values():
                self._answer(made, unless=KafkaError.TOPIC_ALREADY_EXISTS)
        if small:
            for grown in self._admin.create_partitions(small, request_timeout=ANSWER).values():
                with suppress(Away):  # it works with fewer, too: for as many workers
                    self._answer(grown, unless=KafkaError.INVALID_PARTITIONS)
        return bool(missing)

    def _answer(self, asked: Any, *, unless: int) -> Any:
        try:
            return asked.result(ANSWER + 1)
        except KafkaException as error:
            if error.args[0].code() == unless:
                return None
            raise self._address.away(words(error.args[0])) from None
        except TimeoutError:
            raise self._address.away("it does not answer") from None


class _Wire:
    """One producer, and the thread in which it tells what became of the messages."""

    def __init__(self, address: Address) -> None:
        self.health = Health(address.place)
        self.used = False
        given = {"compression.type": address.compression, "linger.ms": address.linger, "error_cb": self.health.hear}
        self._producer: Producer = address.open(Producer, {**PRODUCER, **given})
        self._open = True
        self._thread = threading.Thread(target=self._serve, name="kafka producer", daemon=True)
        self._thread.start()

    async def send(self, topic: str, parcels: _Parcels) -> _Batch:
        """Hand in a batch, and wait until something became of each message."""
        self.used = True
        batch = _Batch()
        messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in parcels]
        try:
            self._producer.produce_batch(topic, messages, on_delivery=batch.tell)
        except KafkaException as error:  # none was taken, or each that was not says why
            batch.error = error.args[0]
        refused = [message for message in messages if "_error" in message]
        for message in refused:
            batch.refuse(message["_error"], message["value"])
        await batch.expect(len(messages) - len(refused))
        return batch

    def _serve(self) -> None:
        while self._open or len(self._producer):
            self._producer.poll(0.5)

    def retire(self) -> None:
        """Take nothing more; what it has goes its way."""
        self._open = False

    async def close(self) -> None:
        self.retire()
        self._producer.purge()
        await asyncio.to_thread(self._thread.join, LEAVE)


class _Batch:
    """Counts what became of messages that were handed in together; told once, when all of it is known."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._through: asyncio.Future[None] = self._loop.create_future()
        self._told = 0
        self._expected: int | None = None
        self._failed: list[bytes] = []
        self.error: KafkaError | None = None

    def tell(self, error: KafkaError | None, message: Message) -> None:
        """In the producer's thread, for each message."""
        self._told += 1
        if error is not None:
            self.refuse(error, message.value() or b"")
        if self._told == self._expected:
            self._end()

    def refuse(self, error: KafkaError, value: bytes) -> None:
        self.error = error
        self._failed.append(value)

    async def expect(self, count: int) -> None:
        self._expected = count
        if self._told == count:
            self._end()
        await self._through

    def failed(self, parcels: _Parcels) -> list[int]:
        """Their places. The driver tells of a message by its bytes."""
        left = Counter(self._failed)
        places = []
        for place, (_, value) in enumerate(parcels):
            if left[value] > 0:
                left[value] -= 1
                places.append(place)
        return places

    def _end(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._through.done():
            self._through.set_result(None)
