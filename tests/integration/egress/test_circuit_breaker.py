"""The circuit breaker: opens after failures in a row, lets one probe through, and is told of in `why`."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from tests.integration.egress.conftest import Receiver, Shop

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import State
from bellringer.engine import explain
from bellringer.store import egress as rows

ONCE = Retry(1)


async def fail(shop: Shop, receiver: Receiver, times: int) -> None:
    receiver.answers = [(503, {}, b"")]
    for _ in range(times):
        run = await shop.ended(await shop.send({"url": receiver.url}, retry=ONCE))
        assert run.state is State.DEAD


async def breaker(shop: Shop, receiver: Receiver) -> rows.BreakerRow | None:
    return await rows.load_breaker(shop.store, shop.tenant_id, receiver.url.removesuffix("/hook"))


async def retry_now(shop: Shop) -> None:
    """The rest is over."""
    await shop.store.pool.execute("update bellringer.breakers set probe_at = bellringer.now() - interval '1 ms'")


async def test_five_failures_in_a_row_open_it_and_a_success_before_ends_the_count(
    shop: Shop, receiver: Receiver
) -> None:
    await fail(shop, receiver, 4)
    receiver.answers = [(200, {}, b"")]
    await shop.ended(await shop.send({"url": receiver.url}))
    assert await breaker(shop, receiver) is None
    await fail(shop, receiver, 4)
    seen = await breaker(shop, receiver)
    assert seen is not None
    assert (seen.state, seen.failures) == ("closed", 4)
    await fail(shop, receiver, 1)
    seen = await breaker(shop, receiver)
    assert seen is not None
    assert (seen.state, seen.reason) == ("open", "the receiver returned 503")
    assert seen.opened_at is not None
    assert seen.probe_at == seen.opened_at + rows.INITIAL_OPEN_TIME


async def test_refusals_of_the_request_itself_do_not_count(shop: Shop, receiver: Receiver) -> None:
    receiver.answers = [(404, {}, b"")]
    for _ in range(6):
        await shop.ended(await shop.send({"url": receiver.url}, retry=ONCE))
    assert await breaker(shop, receiver) is None


async def test_while_it_is_open_no_attempt_is_spent_and_why_says_so(shop: Shop, receiver: Receiver) -> None:
    await fail(shop, receiver, 5)
    called = len(receiver.received)
    key = await shop.send({"url": receiver.url}, retry=ONCE)
    run = await shop.until(key, lambda run: run.attempt == 1 and run.state is not State.RUNNING)
    assert run.state in {State.QUEUED, State.RETRYING}
    assert len(receiver.received) == called
    told = await explain.load_run_explanation(shop.store, key, tenant_id=shop.tenant_id)
    assert told.reasons[0].code == "circuit_open"
    assert receiver.url.removesuffix("/hook") in told.reasons[0].text
    assert "503" in told.reasons[0].text
    await retry_now(shop)
    receiver.answers = [(200, {}, b"")]
    await shop.store.pool.execute("update bellringer.queue set available_at = bellringer.now()")
    run = await shop.ended(key)
    assert run.state is State.SUCCEEDED  # its one attempt was still there
    assert await breaker(shop, receiver) is None


async def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_ten_minutes(shop: Shop, receiver: Receiver) -> None:
    await fail(shop, receiver, 5)
    rests = []
    for _ in range(6):
        await retry_now(shop)
        await fail(shop, receiver, 1)
        seen = await breaker(shop, receiver)
        assert seen is not None
        assert (seen.state, seen.probe_at is None) == ("open", False)
        changed = await shop.store.pool.fetchval("select changed_at from bellringer.breakers")
        rests.append(seen.probe_at - changed)
    assert rests == [timedelta(seconds=s) for s in (60, 120, 240, 480, 600, 600)]


async def test_of_many_that_come_when_the_rest_is_over_one_is_let_through(shop: Shop, receiver: Receiver) -> None:
    await fail(shop, receiver, 5)
    await retry_now(shop)
    seen = await breaker(shop, receiver)
    assert seen is not None
    assert seen.probe_at is not None
    origin = receiver.url.removesuffix("/hook")
    got = await asyncio.gather(*(rows.claim_probe(shop.store, shop.tenant_id, origin, seen.probe_at) for _ in range(6)))
    [mine] = [probe for probe in got if probe is not None]
    # Who was not the probe cannot close it, nor can a probe whose time was over and whose place another has taken.
    await rows.record_success(shop.store, shop.tenant_id, origin, None)
    assert (await breaker(shop, receiver)) is not None
    await retry_now(shop)
    late = await breaker(shop, receiver)
    assert late is not None
    assert late.probe_at is not None
    again = await rows.claim_probe(shop.store, shop.tenant_id, origin, late.probe_at)
    assert again is not None
    await rows.record_success(shop.store, shop.tenant_id, origin, mine)
    assert (await breaker(shop, receiver)) is not None
    await rows.record_success(shop.store, shop.tenant_id, origin, again)
    assert (await breaker(shop, receiver)) is None


async def test_the_breaker_of_one_tenant_is_not_another_s(shop: Shop, receiver: Receiver) -> None:
    await fail(shop, receiver, 5)
    insert = "insert into bellringer.tenants (name) values ('other') returning tenant_id"
    shop.tenant_id = await shop.store.pool.fetchval(insert)
    receiver.answers = [(200, {}, b"")]
    run = await shop.ended(await shop.send({"url": receiver.url}))
    assert run.state is State.SUCCEEDED
