"""How many messages nobody has read, by a real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from uuid import uuid4

from tools.servers import Kafka

from bellringer.backends.kafka.backend import KafkaBackend
from bellringer.core.broker import QueueDepths


async def test_unread_messages_are_counted_until_somebody_is_done_with_them(kafka_server: Kafka) -> None:
    post = KafkaBackend(f"{kafka_server.address}/test?partitions=3", uuid4().hex)
    unread, broker = post.queue_depths(), post.broker()
    try:
        assert await unread(["short", "long"]) == {}, "there is no topic yet"
        await broker.prepare([post.topic("short"), post.topic("long")])
        await broker.send(post.topic("short"), [(str(number).encode(), b"parcel") for number in range(7)])
        assert await told(unread, ["short", "long", "none"]) == {"short": 7, "long": 0}
        box = post.inbox("short")
        got = 0
        async with asyncio.timeout(60):
            while got < 7:
                got += len(await box.get(7 - got, 0.2))
        await box.commit()
        await box.close()
        assert await told(unread, ["short"]) == {"short": 0}
    finally:
        await broker.close()


async def told(unread: QueueDepths, pools: list[str]) -> Mapping[str, int]:
    """What it tells once it tells something: of a topic that was just made, the broker knows no leader for a moment."""
    async with asyncio.timeout(30):
        while not (found := await unread(pools)):  # noqa: ASYNC110 - what is waited for is elsewhere
            await asyncio.sleep(0.2)
    return found


async def test_without_a_broker_nothing_is_reported_and_no_one_waits() -> None:
    unread = KafkaBackend("kafka://127.0.0.1:9/test", uuid4().hex).queue_depths()
    assert await unread(["short"]) == {}
    started = time.monotonic()
    for _ in range(100):
        assert await unread(["short"]) == {}
    assert time.monotonic() - started < 1, "a broker that did not answer is left alone"
