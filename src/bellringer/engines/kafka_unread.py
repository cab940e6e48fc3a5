"""How many messages the consumers of each pool have not read yet, as the brokers count them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bellringer.engines.kafka_address import CONSUMER, Address

LIMIT: Final = 1.0  # seconds for each answer: who looks at a cluster in trouble shall not wait long
ALONE: Final = 5.0  # seconds that brokers which did not answer are left alone


class KafkaUnread:
    """Asked when somebody looks; nothing depends on it. Pools without a topic are left out; without a broker, all.

    It asks as a consumer of each topic that never joins its group. The driver's calls for administrators would ask for
    all topics at once, but have crashed on a topic that was just made.
    """

    def __init__(self, address: Address, topic: Callable[[str], str]) -> None:
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
                self._may_ask_at = time.monotonic() + ALONE
                return {}
        return {pool: count for pool, count in counts.items() if count is not None}

    def _count(self, topic: str) -> int | None:
        if topic not in self._consumers:
            self._consumers[topic] = self._address.open(Consumer, {**CONSUMER, "group.id": topic})
        consumer = self._consumers[topic]
        found = consumer.list_topics(topic, timeout=LIMIT).topics[topic]
        if found.error is not None:
            if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise KafkaException(found.error)
        parts = [TopicPartition(topic, number) for number in found.partitions]
        unread = 0
        for read in consumer.committed(parts, timeout=LIMIT):
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, read.partition), timeout=LIMIT)
            unread += max(0, end - max(first, read.offset))  # a group that never read is before the first
        return unread
