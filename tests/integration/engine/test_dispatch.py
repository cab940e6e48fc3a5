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

from bellringer.core.broker import (
    BrokerUnavailable,
    Message,
    ReceivedMessage,
    UnreadableMessage,
    decode_message,
    encode_message,
)
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Outcome, State
from bellringer.engine import broker_dispatch as steps
from bellringer.engine import explain
from bellringer.engine.claim import ClaimSpec, TenantCursor
from bellringer.schedule import every
from bellringer.store import broker_dispatch, queue
from bellringer.store.broker_dispatch import BrokerPool
from bellringer.store.queue import ClaimedRun

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

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
            raise BrokerUnavailable("it is not there")
        self.parcels += [data for place, (_, data) in enumerate(parcels) if place not in self.refuses]
        return self.refuses

    async def close(self) -> None: ...


async def lane(harness: EngineHarness, seat: ClaimSpec) -> BrokerPool:
    return BrokerPool(pool_id=seat.pool_id, pool="short", slots=10, workers=[seat.worker_id], task_ids=seat.task_ids)


async def send(
    harness: EngineHarness, seat: ClaimSpec, most: int = 100, basket: Basket | None = None
) -> list[ReceivedMessage]:
    """Mark what is ready and hand it in; answers the parcels."""
    basket = basket or Basket()
    where = await lane(harness, seat)
    marked = await steps.mark_sent(harness.store, where, most, TenantCursor(), background=most)
    await steps.send_marked(harness.store, basket, "topic", where, marked.messages)
    return [ReceivedMessage("topic", 0, place, data) for place, data in enumerate(basket.parcels)]


async def take(harness: EngineHarness, seat: ClaimSpec, parcels: list[ReceivedMessage]) -> list[ClaimedRun]:
    return await steps.take_messages(harness.store, seat.worker_id, seat.pool_id, seat.task_ids, parcels)


async def born(harness: EngineHarness, **more: Any) -> UUID:
    """A job with one run in the queue."""
    job_id = await harness.job("job", every("10s"), **more)
    await harness.pass_time(10)
    await harness.tick()
    return job_id


async def test_a_sent_run_is_queued_until_it_is_taken_and_then_running(harness: EngineHarness) -> None:
    job_id, seat = await born(harness), await harness.join_worker()
    key = harness.key(job_id, 10)
    parcels = await send(harness, seat)
    assert await harness.state(key) is State.QUEUED
    assert await harness.claim(seat) == []  # nobody claims what is out
    [taken] = await take(harness, seat, parcels)
    assert (taken.key, taken.attempt, taken.name) == (key, 1, "job")
    assert await harness.state(key) is State.RUNNING
    assert await harness.end(seat, taken) == 1
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_message_that_comes_thrice_is_taken_once(harness: EngineHarness) -> None:
    await born(harness)
    one, two = await harness.join_worker(), await harness.join_worker()
    parcels = await send(harness, one) * 3
    assert len(await take(harness, one, parcels)) == 1
    assert await take(harness, one, parcels) == []
    assert await take(harness, two, parcels) == []


async def test_of_many_who_take_at_once_each_run_has_one(harness: EngineHarness) -> None:
    for n in range(200):
        await harness.send(key=f"k{n}")
    seats = [await harness.join_worker() for _ in range(4)]
    parcels = await send(harness, seats[0], most=500)
    assert len(parcels) == 200
    shuffled = [random.sample(parcels, len(parcels)) for _ in seats]
    taken = await asyncio.gather(*(take(harness, seat, part) for seat, part in zip(seats, shuffled, strict=True)))
    keys = [claimed.key for part in taken for claimed in part]
    assert len(keys) == len(set(keys)) == 200


async def test_an_old_message_does_not_start_a_later_attempt(harness: EngineHarness) -> None:
    job_id, seat = await born(harness, retry=Retry(delays=["0s", "0s"], jitter=0)), await harness.join_worker()
    old = await send(harness, seat)
    [first] = await take(harness, seat, old)
    await harness.fail(seat, first)
    assert await harness.state(harness.key(job_id, 10)) is State.RETRYING
    await send(harness, seat)  # the retry is out, and its message is on its way
    assert await take(harness, seat, old) == []


async def test_what_the_broker_does_not_take_comes_home(harness: EngineHarness) -> None:
    await harness.send(key="a")
    await harness.send(key="b")
    seat = await harness.join_worker()
    assert len(await send(harness, seat, basket=Basket(refuses=[0]))) == 1
    assert len(await harness.claim(seat)) == 1


async def test_with_the_broker_away_all_comes_home(harness: EngineHarness) -> None:
    await born(harness)
    seat = await harness.join_worker()
    with pytest.raises(BrokerUnavailable):
        await send(harness, seat, basket=Basket(away=True))
    assert len(await harness.claim(seat)) == 1


async def test_a_run_that_no_worker_took_is_sent_again_and_may_be_taken_by_either_message(
    harness: EngineHarness,
) -> None:
    await born(harness)
    seat, basket = await harness.join_worker(), Basket()
    first = await send(harness, seat)
    where = await lane(harness, seat)
    assert await steps.resend_untaken(harness.store, basket, "topic", where) == 0  # not yet
    await harness.sql("update queue set sent_at = sent_at - interval '10 s'")
    assert await steps.resend_untaken(harness.store, basket, "topic", where) == 1
    assert await steps.resend_untaken(harness.store, basket, "topic", where) == 0
    assert len(await take(harness, seat, first)) == 1
    assert await take(harness, seat, [ReceivedMessage("topic", 0, 9, basket.parcels[0])]) == []


async def test_where_no_one_sends_any_more_it_comes_home(harness: EngineHarness) -> None:
    await born(harness)
    seat = await harness.join_worker()
    await send(harness, seat)
    assert await broker_dispatch.pools_with_sent_runs(harness.store) == [seat.pool_id]
    assert await broker_dispatch.unsend_older(harness.store, seat.pool_id, timedelta(seconds=15)) == 0
    assert await broker_dispatch.unsend_older(harness.store, seat.pool_id, NOW) == 1
    assert await broker_dispatch.pools_with_sent_runs(harness.store) == []
    assert len(await harness.claim(seat)) == 1


async def test_a_pause_holds_what_is_out(harness: EngineHarness) -> None:
    job_id, seat = await born(harness), await harness.join_worker()
    parcels = await send(harness, seat)
    await harness.pause(job_id)
    assert await take(harness, seat, parcels) == []
    assert await harness.state(harness.key(job_id, 10)) is State.BLOCKED
    await harness.resume(job_id)
    assert await take(harness, seat, parcels) == []  # it has come home meanwhile
    assert len(await take(harness, seat, await send(harness, seat))) == 1


async def test_a_cancel_takes_what_is_out(harness: EngineHarness) -> None:
    job_id, seat = await born(harness), await harness.join_worker()
    parcels = await send(harness, seat)
    assert await harness.cancel(harness.key(job_id, 10)) is State.CANCELLED
    assert await take(harness, seat, parcels) == []


async def test_a_changed_job_runs_as_it_is_now_whichever_message_comes(harness: EngineHarness) -> None:
    job_id, seat = await born(harness, kwargs={"n": 1}), await harness.join_worker()
    old = await send(harness, seat)
    await harness.change(job_id, harness.definition("job", every("10s"), kwargs={"n": 2}))
    await send(harness, seat)
    [taken] = await take(harness, seat, old)
    assert taken.spec.kwargs == {"n": 2}


async def test_a_spec_too_long_for_a_message_is_read_by_who_takes_it(harness: EngineHarness) -> None:
    text = "x" * 100_000
    await harness.send(kwargs={"text": text})
    seat = await harness.join_worker()
    parcels = await send(harness, seat)
    assert len(parcels[0].data) < 1_000
    [taken] = await take(harness, seat, parcels)
    assert taken.spec.kwargs == {"text": text}


async def test_what_is_out_counts_as_under_way(harness: EngineHarness) -> None:
    await harness.sql("update tenants set quotas = '{\"in_flight\": 3}'")
    for n in range(10):
        await harness.send(key=f"k{n}")
    seat = await harness.join_worker()
    parcels = await send(harness, seat)
    assert len(parcels) == 3
    assert await send(harness, seat) == []
    taken = await take(harness, seat, parcels)
    assert await send(harness, seat) == []
    await harness.end(seat, taken[:2])
    assert len(await send(harness, seat)) == 2


async def test_a_limit_holds_for_what_is_out(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1s"), max_concurrency=2)
    await harness.pass_time(5)
    await harness.tick_all()
    assert len(await harness.queued(job_id)) == 5
    seat = await harness.join_worker()
    parcels = await send(harness, seat)
    assert len(parcels) == 2
    assert await send(harness, seat) == []
    taken = await take(harness, seat, parcels)
    assert len(taken) == 2
    assert await send(harness, seat) == []
    await harness.end(seat, taken)
    assert len(await send(harness, seat)) == 2


async def test_a_suspended_tenants_messages_are_not_taken_and_come_again(harness: EngineHarness) -> None:
    await born(harness)
    seat = await harness.join_worker()
    parcels = await send(harness, seat)
    await harness.sql("update tenants set suspended_at = now()")
    assert await take(harness, seat, parcels) == []
    await harness.sql("update tenants set suspended_at = null")
    assert len(await take(harness, seat, parcels)) == 1


async def test_a_pool_at_rest_gives_nothing(harness: EngineHarness) -> None:
    await born(harness)
    seat = await harness.join_worker()
    parcels = await send(harness, seat)
    await harness.sql("update pools set paused_at = now()")
    assert await take(harness, seat, parcels) == []
    assert await send(harness, seat) == []


async def test_what_cannot_be_read_is_put_aside_and_blocks_nothing(harness: EngineHarness) -> None:
    await born(harness)
    seat = await harness.join_worker()
    parcels = await send(harness, seat)
    strange = [ReceivedMessage("topic", 3, 7, b"\xff\x00 not ours"), ReceivedMessage("topic", 3, 8, b"")]
    assert len(await take(harness, seat, [*strange, *parcels])) == 1
    await take(harness, seat, strange)  # it comes again, and is kept once
    rows = await harness.sql("select message_offset, message from quarantine order by message_offset")
    assert [(row[0], row[1]) for row in rows] == [(7, b"\xff\x00 not ours"), (8, b"")]


async def test_a_worker_leaves_what_it_does_not_know(harness: EngineHarness) -> None:
    await born(harness)
    seat, other = await harness.join_worker(), await harness.join_worker("dance")
    parcels = await send(harness, seat)
    assert await take(harness, other, parcels) == []
    assert len(await take(harness, seat, parcels)) == 1


async def test_what_a_worker_gives_back_is_sent_again(harness: EngineHarness) -> None:
    await born(harness)
    seat = await harness.join_worker()
    [taken] = await take(harness, seat, await send(harness, seat))
    await queue.give_back(harness.store, seat.worker_id, [(taken.key, taken.attempt)])
    assert len(await take(harness, seat, await send(harness, seat))) == 1


async def test_sends_go_round_among_tenants(harness: EngineHarness) -> None:
    small = (await harness.tenants(1))[0]
    for n in range(50):
        await harness.send(key=f"k{n}")
    for n in range(3):
        await harness.send(tenant=small, key=f"k{n}")
    seat = await harness.join_worker()
    parcels = await send(harness, seat, most=10)
    assert [decode_message(parcel.data).tenant_id for parcel in parcels].count(small) == 3


def test_a_message_is_read_as_it_was_written(harness: EngineHarness) -> None:
    at = harness.noon
    job = UUID(int=7)
    message = Message(1, job, at, 0, 2, 1, 5, 9, None, None, '{"args": [1]}', behind=False, available_at=at)
    assert decode_message(encode_message(message)) == message
    with pytest.raises(UnreadableMessage, match="version 2"):
        decode_message(encode_message(msgspec.structs.replace(message, version=2)))


async def test_explain_reports_that_the_broker_has_the_run(harness: EngineHarness) -> None:
    job_id, seat = await born(harness), await harness.join_worker()
    await harness.sql("update workers set dispatch = 'kafka'")
    await send(harness, seat)
    told = await explain.load_run_explanation(harness.store, harness.key(job_id, 10), tenant_id=harness.tenant)
    [reason] = [reason for reason in told.reasons if reason.holds is True]
    assert reason.code == "sent"
    assert "sent through kafka" in reason.text


async def test_explain_reports_that_the_broker_is_unavailable(harness: EngineHarness) -> None:
    job_id = await born(harness)
    await harness.join_worker()
    await harness.sql("update workers set dispatch = 'kafka'")
    await harness.sql(
        "insert into nodes (node_id, name, host, pid, version, started_at, seen_at, waits_for)"
        " values (gen_random_uuid(), 'n', 'h', 1, '0', now(), clock_timestamp(), 'Kafka at here:9092')"
    )
    told = await explain.load_run_explanation(harness.store, harness.key(job_id, 10), tenant_id=harness.tenant)
    [reason] = [reason for reason in told.reasons if reason.holds is True]
    assert reason.code == "broker_away"
    assert reason.text.endswith("is waiting for Kafka")  # its address is not for tenants


# Deadlines and progress


async def test_a_message_carries_the_deadline_and_an_expired_run_is_not_taken(harness: EngineHarness) -> None:
    sent = await harness.send(expires_in=timedelta(seconds=10))
    seat = await harness.join_worker()
    parcels = await send(harness, seat)
    spec = decode_message(parcels[0].data).spec
    assert spec is not None
    assert msgspec.json.decode(spec)["expires_at"] == harness.after(10).timestamp()
    await harness.pass_time(10)
    assert (await queue.expire_runs(harness.store, 10)).skipped == 1
    assert await take(harness, seat, parcels) == []
    assert await harness.state(sent.key) is State.SKIPPED


async def test_a_taken_retry_resumes_from_the_last_details(harness: EngineHarness) -> None:
    await harness.send(retry=Retry(3, delays=["0s"], jitter=0))
    seat = await harness.join_worker()
    [claimed] = await take(harness, seat, await send(harness, seat))
    error = {"type": "ValueError", "message": "no", "lineage": ["ValueError"]}
    await harness.end(seat, claimed, outcome=Outcome.FAILED, error=error, progress={"done": 1, "details": {"row": 5}})
    [again] = await take(harness, seat, await send(harness, seat))
    [begun] = await queue.begin_attempts(harness.store, seat.worker_id, [again])
    assert (begun.attempt, begun.resume_from) == (2, {"row": 5})
