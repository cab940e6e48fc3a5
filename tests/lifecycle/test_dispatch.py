"""Dispatch by a broker, as the database sees it: what is sent, who may take it, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from bellringer.dispatch import Away, Message, Parcel, Unreadable, decode, encode
from bellringer.lifecycle import dispatch as steps
from bellringer.lifecycle import explain
from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.turns import Turn
from bellringer.policies import Retry
from bellringer.runs import State
from bellringer.schedule import every
from bellringer.store import dispatch, queue
from bellringer.store.dispatch import Lane
from bellringer.store.queue import Claimed

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

NOW = timedelta(0)


@dataclass
class Basket:
    """A broker that keeps what it gets, or refuses some or all of it."""

    parcels: list[bytes] = field(default_factory=list)
    refuses: list[int] = field(default_factory=list)
    away: bool = False

    async def prepare(self, topics: Any) -> None: ...

    async def send(self, _topic: str, parcels: Any) -> list[int]:
        if self.away:
            raise Away("it is not there")
        self.parcels += [data for place, (_, data) in enumerate(parcels) if place not in self.refuses]
        return self.refuses

    async def close(self) -> None: ...


async def lane(bench: Bench, seat: Seat) -> Lane:
    return Lane(pool_id=seat.pool_id, pool="short", slots=10, workers=[seat.worker_id], task_ids=seat.task_ids)


async def send(bench: Bench, seat: Seat, most: int = 100, basket: Basket | None = None) -> list[Parcel]:
    """Mark what is ready and hand it in; answers the parcels."""
    basket = basket or Basket()
    where = await lane(bench, seat)
    marked = await steps.mark(bench.store, where, most, Turn(), behind=most)
    await steps.hand_in(bench.store, basket, "topic", where, marked.messages)
    return [Parcel("topic", 0, place, data) for place, data in enumerate(basket.parcels)]


async def take(bench: Bench, seat: Seat, parcels: list[Parcel]) -> list[Claimed]:
    return await steps.take(bench.store, seat.worker_id, seat.pool_id, seat.task_ids, parcels)


async def born(bench: Bench, **more: Any) -> UUID:
    """A job with one run in the queue."""
    job_id = await bench.job("job", every("10s"), **more)
    await bench.pass_time(10)
    await bench.tick()
    return job_id


async def test_a_sent_run_is_queued_until_it_is_taken_and_then_running(bench: Bench) -> None:
    job_id, seat = await born(bench), await bench.seat()
    key = bench.key(job_id, 10)
    parcels = await send(bench, seat)
    assert await bench.state(key) is State.QUEUED
    assert await bench.claim(seat) == []  # nobody claims what is out
    [taken] = await take(bench, seat, parcels)
    assert (taken.key, taken.attempt, taken.name) == (key, 1, "job")
    assert await bench.state(key) is State.RUNNING
    assert await bench.end(seat, taken) == 1
    assert await bench.state(key) is State.SUCCEEDED


async def test_a_message_that_comes_thrice_is_taken_once(bench: Bench) -> None:
    await born(bench)
    one, two = await bench.seat(), await bench.seat()
    parcels = await send(bench, one) * 3
    assert len(await take(bench, one, parcels)) == 1
    assert await take(bench, one, parcels) == []
    assert await take(bench, two, parcels) == []


async def test_of_many_who_take_at_once_each_run_has_one(bench: Bench) -> None:
    for n in range(200):
        await bench.send(key=f"k{n}")
    seats = [await bench.seat() for _ in range(4)]
    parcels = await send(bench, seats[0], most=500)
    assert len(parcels) == 200
    shuffled = [random.sample(parcels, len(parcels)) for _ in seats]
    taken = await asyncio.gather(*(take(bench, seat, part) for seat, part in zip(seats, shuffled, strict=True)))
    keys = [claimed.key for part in taken for claimed in part]
    assert len(keys) == len(set(keys)) == 200


async def test_an_old_message_does_not_start_a_later_attempt(bench: Bench) -> None:
    job_id, seat = await born(bench, retry=Retry(delays=["0s", "0s"])), await bench.seat()
    old = await send(bench, seat)
    [first] = await take(bench, seat, old)
    await bench.fail(seat, first)
    assert await bench.state(bench.key(job_id, 10)) is State.RETRYING
    await send(bench, seat)  # the retry is out, and its message is on its way
    assert await take(bench, seat, old) == []


async def test_what_the_broker_does_not_take_comes_home(bench: Bench) -> None:
    await bench.send(key="a")
    await bench.send(key="b")
    seat = await bench.seat()
    assert len(await send(bench, seat, basket=Basket(refuses=[0]))) == 1
    assert len(await bench.claim(seat)) == 1


async def test_with_the_broker_away_all_comes_home(bench: Bench) -> None:
    await born(bench)
    seat = await bench.seat()
    with pytest.raises(Away):
        await send(bench, seat, basket=Basket(away=True))
    assert len(await bench.claim(seat)) == 1


async def test_what_nobody_took_is_sent_again_and_may_be_taken_by_either_message(bench: Bench) -> None:
    await born(bench)
    seat, basket = await bench.seat(), Basket()
    first = await send(bench, seat)
    where = await lane(bench, seat)
    assert await steps.send_again(bench.store, basket, "topic", where) == 0  # not yet
    await bench.sql("update queue set sent_at = sent_at - interval '10 s'")
    assert await steps.send_again(bench.store, basket, "topic", where) == 1
    assert await steps.send_again(bench.store, basket, "topic", where) == 0
    assert len(await take(bench, seat, first)) == 1
    assert await take(bench, seat, [Parcel("topic", 0, 9, basket.parcels[0])]) == []


async def test_where_nobody_sends_any_more_it_comes_home(bench: Bench) -> None:
    await born(bench)
    seat = await bench.seat()
    await send(bench, seat)
    assert await dispatch.out(bench.store) == [seat.pool_id]
    assert await dispatch.unsend_old(bench.store, seat.pool_id, timedelta(seconds=15)) == 0
    assert await dispatch.unsend_old(bench.store, seat.pool_id, NOW) == 1
    assert await dispatch.out(bench.store) == []
    assert len(await bench.claim(seat)) == 1


async def test_a_pause_holds_what_is_out(bench: Bench) -> None:
    job_id, seat = await born(bench), await bench.seat()
    parcels = await send(bench, seat)
    await bench.pause(job_id)
    assert await take(bench, seat, parcels) == []
    assert await bench.state(bench.key(job_id, 10)) is State.BLOCKED
    await bench.resume(job_id)
    assert await take(bench, seat, parcels) == []  # it has come home meanwhile
    assert len(await take(bench, seat, await send(bench, seat))) == 1


async def test_a_cancel_takes_what_is_out(bench: Bench) -> None:
    job_id, seat = await born(bench), await bench.seat()
    parcels = await send(bench, seat)
    assert await bench.cancel(bench.key(job_id, 10)) is State.CANCELLED
    assert await take(bench, seat, parcels) == []


async def test_a_changed_job_runs_as_it_is_now_whichever_message_comes(bench: Bench) -> None:
    job_id, seat = await born(bench, kwargs={"n": 1}), await bench.seat()
    old = await send(bench, seat)
    await bench.change(job_id, bench.definition("job", every("10s"), kwargs={"n": 2}))
    await send(bench, seat)
    [taken] = await take(bench, seat, old)
    assert taken.spec.kwargs == {"n": 2}


async def test_a_spec_too_long_for_a_message_is_read_by_who_takes_it(bench: Bench) -> None:
    text = "x" * 100_000
    await bench.send(kwargs={"text": text})
    seat = await bench.seat()
    parcels = await send(bench, seat)
    assert len(parcels[0].data) < 1_000
    [taken] = await take(bench, seat, parcels)
    assert taken.spec.kwargs == {"text": text}


async def test_what_is_out_counts_as_under_way(bench: Bench) -> None:
    await bench.sql("update tenants set quotas = '{\"in_flight\": 3}'")
    for n in range(10):
        await bench.send(key=f"k{n}")
    seat = await bench.seat()
    parcels = await send(bench, seat)
    assert len(parcels) == 3
    assert await send(bench, seat) == []
    taken = await take(bench, seat, parcels)
    assert await send(bench, seat) == []
    await bench.end(seat, taken[:2])
    assert len(await send(bench, seat)) == 2


async def test_a_limit_holds_for_what_is_out(bench: Bench) -> None:
    job_id = await bench.job("job", every("1s"), max_concurrency=2)
    await bench.pass_time(5)
    await bench.tick_all()
    assert len(await bench.queued(job_id)) == 5
    seat = await bench.seat()
    parcels = await send(bench, seat)
    assert len(parcels) == 2
    assert await send(bench, seat) == []
    taken = await take(bench, seat, parcels)
    assert len(taken) == 2
    assert await send(bench, seat) == []
    await bench.end(seat, taken)
    assert len(await send(bench, seat)) == 2


async def test_a_suspended_tenants_messages_are_not_taken_and_come_again(bench: Bench) -> None:
    await born(bench)
    seat = await bench.seat()
    parcels = await send(bench, seat)
    await bench.sql("update tenants set suspended_at = now()")
    assert await take(bench, seat, parcels) == []
    await bench.sql("update tenants set suspended_at = null")
    assert len(await take(bench, seat, parcels)) == 1


async def test_a_pool_at_rest_gives_nothing(bench: Bench) -> None:
    await born(bench)
    seat = await bench.seat()
    parcels = await send(bench, seat)
    await bench.sql("update pools set paused_at = now()")
    assert await take(bench, seat, parcels) == []
    assert await send(bench, seat) == []


async def test_what_cannot_be_read_is_put_aside_and_blocks_nothing(bench: Bench) -> None:
    await born(bench)
    seat = await bench.seat()
    parcels = await send(bench, seat)
    strange = [Parcel("topic", 3, 7, b"\xff\x00 not ours"), Parcel("topic", 3, 8, b"")]
    assert len(await take(bench, seat, [*strange, *parcels])) == 1
    await take(bench, seat, strange)  # it comes again, and is kept once
    rows = await bench.sql("select place, message from quarantine order by place")
    assert [(row[0], row[1]) for row in rows] == [(7, b"\xff\x00 not ours"), (8, b"")]


async def test_a_worker_leaves_what_it_does_not_know(bench: Bench) -> None:
    await born(bench)
    seat, other = await bench.seat(), await bench.seat("dance")
    parcels = await send(bench, seat)
    assert await take(bench, other, parcels) == []
    assert len(await take(bench, seat, parcels)) == 1


async def test_what_a_worker_gives_back_is_sent_again(bench: Bench) -> None:
    await born(bench)
    seat = await bench.seat()
    [taken] = await take(bench, seat, await send(bench, seat))
    await queue.give_back(bench.store, seat.worker_id, [(taken.key, taken.attempt)])
    assert len(await take(bench, seat, await send(bench, seat))) == 1


async def test_sends_go_round_among_tenants(bench: Bench) -> None:
    small = (await bench.tenants(1))[0]
    for n in range(50):
        await bench.send(key=f"k{n}")
    for n in range(3):
        await bench.send(tenant=small, key=f"k{n}")
    seat = await bench.seat()
    parcels = await send(bench, seat, most=10)
    assert [decode(parcel.data).tenant_id for parcel in parcels].count(small) == 3


def test_a_message_is_read_as_it_was_written(bench: Bench) -> None:
    at = bench.noon
    job = UUID(int=7)
    message = Message(1, job, at, 0, 2, 1, 5, 9, None, None, '{"args": [1]}', behind=False, available_at=at)
    assert decode(encode(message)) == message
    with pytest.raises(Unreadable, match="form is 2"):
        decode(encode(msgspec.structs.replace(message, form=2)))


async def test_who_asks_is_told_that_it_is_with_the_broker(bench: Bench) -> None:
    job_id, seat = await born(bench), await bench.seat()
    await bench.sql("update workers set dispatch = 'kafka'")
    await send(bench, seat)
    told = await explain.run(bench.store, bench.key(job_id, 10), tenant_id=bench.tenant)
    [reason] = [reason for reason in told.reasons if reason.holds is True]
    assert reason.code == "sent"
    assert "by kafka" in reason.text


async def test_who_asks_is_told_that_the_broker_is_away(bench: Bench) -> None:
    job_id = await born(bench)
    await bench.seat()
    await bench.sql("update workers set dispatch = 'kafka'")
    await bench.sql(
        "insert into nodes (node_id, name, host, pid, version, started_at, seen_at, waits_for)"
        " values (gen_random_uuid(), 'n', 'h', 1, '0', now(), clock_timestamp(), 'Kafka at here:9092')"
    )
    told = await explain.run(bench.store, bench.key(job_id, 10), tenant_id=bench.tenant)
    [reason] = [reason for reason in told.reasons if reason.holds is True]
    assert reason.code == "broker_away"
    assert "Kafka at here:9092" in reason.text
