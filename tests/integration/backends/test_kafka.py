"""The post by a real Kafka: nothing here knows of runs, only of bytes that go in and come out."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from tools.servers import Kafka

from bellringer.backends.kafka.address import KafkaAddress
from bellringer.backends.kafka.backend import KafkaBackend, KafkaBroker
from bellringer.backends.kafka.inbox import KafkaInbox
from bellringer.core.broker import BrokerBackend, BrokerUnavailable, ReceivedMessage
from bellringer.errors import ConfigError

Opener = Callable[..., KafkaInbox]


@pytest.fixture
def post(kafka_server: Kafka) -> KafkaBackend:
    return KafkaBackend(f"{kafka_server.address}/test?partitions=6", uuid4().hex)


@pytest.fixture
async def broker(post: KafkaBackend) -> AsyncIterator[KafkaBroker]:
    opened = post.broker()
    yield opened
    await opened.close()


@pytest.fixture
async def topic(post: KafkaBackend, broker: KafkaBroker) -> str:
    name = post.topic("short")
    await broker.prepare([name])
    return name


@pytest.fixture
async def inbox(post: KafkaBackend, topic: str) -> AsyncIterator[Opener]:
    """Opens inboxes of the topic, which is there, with settings of their own."""
    opened: list[KafkaInbox] = []

    def open_one(**settings: str) -> KafkaInbox:
        url = f"{post.address}?" + "&".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
        opened.append(KafkaInbox(KafkaAddress.read(url), topic, "short"))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


async def gather(box: KafkaInbox, count: int, *, seconds: float = 30) -> list[ReceivedMessage]:
    """So many parcels, however they come; done with each batch."""
    parcels: list[ReceivedMessage] = []
    deadline = time.monotonic() + seconds
    while len(parcels) < count:
        assert time.monotonic() < deadline, f"{len(parcels)} of {count} came within {seconds} s"
        with suppress(BrokerUnavailable):
            parcels += await box.get(count, 0.2)
            await box.commit()
    return parcels


async def gets(box: KafkaInbox, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await box.get(10, 0.2)


async def joined(*boxes: KafkaInbox, parts: int = 6) -> None:
    """Wait until these have the partitions among themselves, each some."""
    for _ in range(300):
        for box in boxes:
            box._left.extend(await box.get(100, 0.05))
        shares = [len(box._consumer.assignment()) for box in boxes]
        if sum(shares) == parts and min(shares) > 0:
            return
    raise AssertionError("the consumers never shared the partitions")


async def soon(step: Callable[[], Awaitable[object]], seconds: float = 30) -> float:
    """Try until it succeeds; answers how long that took."""
    started = time.monotonic()
    while True:
        try:
            await step()
        except BrokerUnavailable:
            assert time.monotonic() - started < seconds
            await asyncio.sleep(0.2)
        else:
            return time.monotonic() - started


def test_it_is_a_post(post: KafkaBackend) -> None:
    known: BrokerBackend = post
    assert known.name == "kafka"
    assert known.address == post.address


def test_only_who_chooses_kafka_imports_its_driver() -> None:
    modules = "bellringer, bellringer.core.broker, bellringer.cli, bellringer.process_assembly"
    code = f"import sys, {modules}; print([name for name in sys.modules if 'confluent' in name])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_an_address_says_where_and_how() -> None:
    url = "kafka://a:9092,b:9093/team?partitions=3&replication=2&compression=zstd&linger=20ms&sasl.password=hush"
    address = KafkaAddress.read(url)
    assert (address.servers, address.prefix, address.partitions, address.replication) == ("a:9092,b:9093", "team", 3, 2)
    assert (address.compression, address.linger, address.settings) == ("zstd", 20.0, {"sasl.password": "hush"})
    assert "hush" not in repr(address) + address.address + str(address.unavailable("gone"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka:///x", "address of Kafka is invalid"),
        ("redis://host", "address of Kafka is invalid"),
        ("kafka://me:hush@host", "give them as options"),
        ("kafka://host?partition=3", "did you mean 'partitions'?"),
        ("kafka://host?partitions=0", "partitions='0'"),
        ("kafka://host?partitions=many", "partitions='many'"),
        ("kafka://host?replication=0", "replication='0'"),
        ("kafka://host?linger=-5ms", "linger='-5ms'"),
        ("kafka://host?compression=rar", "lz4"),
        ("kafka://host/a+b", "cannot be the prefix of a Kafka topic"),
        ("kafka://host?no.such.setting=1", "no.such.setting"),
        ("kafka://host?sasl.password=hush&security.protocol=hush", "with a secret value is invalid"),
    ],
)
async def test_an_address_that_cannot_be_used_is_refused_and_shows_no_secret(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KafkaBackend(url, "here").broker()
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


def test_topics_of_all_pools_are_names_that_kafka_allows_and_no_two_are_one() -> None:
    post = KafkaBackend("kafka://host/team", "inst")
    assert post.topic("short") == "team.inst.short"
    pools = ["a_b", "a.b", "a-b", "a b", "ä b", "日本", "x" * 300, "x" * 301, "mail/eu", "mail:eu"]
    topics = [post.topic(pool) for pool in pools]
    assert len(set(topics)) == len(pools)
    assert len({topic.replace(".", "_") for topic in topics}) == len(pools), "Kafka takes both signs for one"
    assert all(len(topic) <= 249 and topic.isascii() and topic.replace("-", "").replace("_", "") for topic in topics)
    assert all(c.isalnum() or c in "._-" for topic in topics for c in topic)


async def test_what_is_sent_comes_whatever_it_is(broker: KafkaBroker, topic: str, inbox: Opener) -> None:
    odd = [b"", b"\x00\xff" * 100, b"not msgpack", "ü".encode(), b"x" * 1_500_000]
    assert await broker.send(topic, [(None, data) for data in odd]) == []
    assert await broker.send(topic, []) == []
    parcels = await gather(inbox(), len(odd))
    assert sorted(parcel.data for parcel in parcels) == sorted(odd)
    assert {parcel.topic for parcel in parcels} == {topic}


async def test_a_key_keeps_its_partition_and_its_order(broker: KafkaBroker, topic: str, inbox: Opener) -> None:
    for turn in range(5):
        await broker.send(topic, [(b"key %d" % n, b"%d %d" % (n, turn)) for n in range(20)])
    parts: dict[bytes, set[int]] = {}
    turns: dict[bytes, list[bytes]] = {}
    for parcel in await gather(inbox(), 100):
        key, turn_ = parcel.data.split()
        parts.setdefault(key, set()).add(parcel.partition)
        turns.setdefault(key, []).append(turn_)
    assert {len(found) for found in parts.values()} == {1}
    assert len(set.union(*parts.values())) > 1, "different keys go to different partitions"
    assert set(map(tuple, turns.values())) == {(b"0", b"1", b"2", b"3", b"4")}


async def test_two_inboxes_share_and_who_leaves_hands_over(broker: KafkaBroker, topic: str, inbox: Opener) -> None:
    one, other = inbox(), inbox()
    await joined(one, other)
    await broker.send(topic, [(b"%d" % n, b"%d" % n) for n in range(200)])
    ours: list[ReceivedMessage] = []
    theirs: list[ReceivedMessage] = []
    deadline = time.monotonic() + 30
    while len(ours) + len(theirs) < 200 and time.monotonic() < deadline:
        ours += await one.get(50, 0.1)
        theirs += await other.get(50, 0.1)
    assert len(ours) + len(theirs) == 200
    assert min(len(ours), len(theirs)) > 20
    assert {p.partition for p in ours}.isdisjoint(p.partition for p in theirs)
    await other.commit()
    await one.close()  # and was not done: what it got comes again, to the other
    again = await gather(other, len(ours))
    assert sorted(p.data for p in again) == sorted(p.data for p in ours)
    await broker.send(topic, [(b"%d" % n, b"later") for n in range(50)])
    assert {p.data for p in await gather(other, 50)} == {b"later"}


async def test_what_is_done_does_not_come_again(broker: KafkaBroker, topic: str, inbox: Opener) -> None:
    first = inbox()
    await broker.send(topic, [(None, b"%d" % n) for n in range(30)])
    await gather(first, 30)
    await first.close()
    await broker.send(topic, [(None, b"new")])
    assert [parcel.data for parcel in await gather(inbox(), 1)] == [b"new"]


async def test_what_a_cancelled_get_got_is_there_for_the_next(broker: KafkaBroker, topic: str, inbox: Opener) -> None:
    box = inbox()
    await joined(box)
    waiting = asyncio.create_task(box.get(10, 20))
    await asyncio.sleep(0.2)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await broker.send(topic, [(None, b"kept")])
    assert [parcel.data for parcel in await gather(box, 1)] == [b"kept"]


async def test_who_rests_beyond_the_longest_silence_stays_and_lets_others_join(
    broker: KafkaBroker, topic: str, inbox: Opener
) -> None:
    box = inbox(max_poll_interval_ms="6000", session_timeout_ms="6000")
    await joined(box)
    member = box._consumer.memberid()
    started = time.monotonic()
    while time.monotonic() - started < 8:
        await box.pause()
        await asyncio.sleep(0.1)
    assert box._consumer.memberid() == member
    assert len(box._consumer.assignment()) == 6
    await broker.send(topic, [(None, b"after")])
    assert [parcel.data for parcel in await gather(box, 1)] == [b"after"]
    other = inbox()
    deadline = time.monotonic() + 30
    while not other._consumer.assignment() and time.monotonic() < deadline:
        await asyncio.gather(box.pause(), other.get(1, 0.1))
    assert other._consumer.assignment(), "one that rests gives up a part"


async def test_no_one_waits_for_a_topic_that_is_not_there_in_vain(post: KafkaBackend, broker: KafkaBroker) -> None:
    box = post.inbox("made later")
    try:
        assert await box.get(10, 0.5) == []
        topic = post.topic("made later")
        await broker.send(topic, [(None, b"x")])  # makes it
        assert [parcel.data for parcel in await gather(box, 1)] == [b"x"]
    finally:
        await box.close()


async def test_a_topic_with_too_few_partitions_grows(post: KafkaBackend, topic: str) -> None:
    larger = KafkaBackend(f"{post.address}?partitions=9", "any").broker()
    await larger.prepare([topic])
    await larger.close()
    admin = AdminClient({"bootstrap.servers": KafkaAddress.read(post.address).servers})
    for _ in range(100):
        if len(admin.list_topics(timeout=5).topics[topic].partitions) == 9:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it still has six")


async def test_a_deleted_topic_is_made_again_and_goes_on(
    post: KafkaBackend, broker: KafkaBroker, topic: str, inbox: Opener
) -> None:
    box = inbox()
    await broker.send(topic, [(b"%d" % n, b"before") for n in range(100)])
    await gather(box, 100)
    admin = AdminClient({"bootstrap.servers": KafkaAddress.read(post.address).servers})
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 10)
    await soon(lambda: broker.send(topic, [(b"%d" % n, b"after") for n in range(20)]))
    came: set[bytes] = set()
    deadline = time.monotonic() + 30
    while came != {b"after"}:
        assert time.monotonic() < deadline
        came = {parcel.data for parcel in await gather(box, 1)}


async def test_a_killed_broker_is_reported_within_seconds_and_found_again_by_itself(
    kafka_server: Kafka, broker: KafkaBroker, topic: str, inbox: Opener
) -> None:
    box = inbox()
    await broker.send(topic, [(None, b"before")])
    await gather(box, 1)
    kafka_server.kill()
    try:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable) as away:
            await broker.send(topic, [(None, b"%d" % n) for n in range(10)])
        assert "kafka://127.0.0.1" in away.value.message
        assert time.monotonic() - started < 20
        with pytest.raises(BrokerUnavailable):
            await broker.prepare(["another"])
        with pytest.raises(BrokerUnavailable):
            await gets(box, 60)
        late = inbox()
        await late.get(1, 0.1)
        await asyncio.wait_for(late.close(), 10)
    finally:
        kafka_server.start()
    await soon(lambda: broker.send(topic, [(None, b"after")]))
    came: list[bytes] = []
    while b"after" not in came:
        came += [parcel.data for parcel in await gather(box, 1)]


async def test_a_broker_that_is_stopped_for_a_while_is_reported(
    kafka_server: Kafka, broker: KafkaBroker, topic: str
) -> None:
    await broker.send(topic, [(None, b"before")])
    kafka_server.pause()
    try:
        with pytest.raises(BrokerUnavailable):
            await asyncio.wait_for(broker.send(topic, [(None, b"meanwhile")]), 30)
    finally:
        kafka_server.resume()
    assert await soon(lambda: broker.send(topic, [(None, b"after")])) < 30
