"""Event webhooks: what happens is sent to those who want to be told, once, signed, and in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from tests.integration.egress.conftest import Receiver, Shop

from bellringer.core.jobs import Definition
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.egress.webhook_signatures import generate_secret, verify_signature
from bellringer.engine import http_targets, pause_task
from bellringer.engine import webhooks as announcing
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.monitor import report_recoveries
from bellringer.engine.prune import Retention, prune
from bellringer.engine.register import create
from bellringer.engine.send import SendSpec, send, trigger
from bellringer.engine.settle import decide, settle
from bellringer.engine.webhooks import deliver_events
from bellringer.store import egress as rows
from bellringer.store import events, webhooks, workers
from bellringer.store.connection_pool import Store
from bellringer.store.events import EVENTS_WITHOUT_RUN, EventKind, EventRow
from bellringer.store.webhooks import EndpointRow
from bellringer.store.workers import WorkerRegistration

BAD = Ending(outcome=Outcome.FAILED, error={"type": "Boom", "message": "secret words", "lineage": ["Boom"]})
GOOD = Ending(outcome=Outcome.OK)


async def endpoint(shop: Shop, url: str, secret: str | None = None, kinds: Sequence[str] = ()) -> EndpointRow:
    kept = await http_targets.store_secret(
        shop.store, shop.egress, secret or generate_secret(), tenant_id=shop.tenant_id
    )
    number = await webhooks.add(shop.store, shop.tenant_id, url, kinds, "", kept, "test")
    assert number is not None
    found = await webhooks.get(shop.store, shop.tenant_id, number)
    assert found is not None
    return found


async def work(shop: Shop, ending: Ending) -> list[RunKey]:
    """A worker by hand for the task `demo`."""
    task, pool = (await shop.catalog.task_ids(["demo"]))["demo"], (await shop.catalog.pool_ids(["short"]))["short"]
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 9}, task_ids=[task])
    worker_id = await workers.join(shop.store, who)
    taken, _ = await claim(
        shop.store, ClaimSpec(worker_id=worker_id, pool_id=pool, task_ids=[task]), 50, TenantCursor()
    )
    await settle(shop.store, worker_id, [decide(claimed, ending) for claimed in taken])
    return [claimed.key for claimed in taken]


async def order(shop: Shop, **more: object) -> RunKey:
    wanted = SendSpec(task="demo", **more)  # type: ignore[arg-type]
    return (await send(shop.store, shop.catalog, wanted, tenant_id=shop.tenant_id)).key


async def announced(shop: Shop) -> int:
    """Pass after pass until all that has happened is told: a transaction elsewhere may still be under way."""
    sent = 0
    async with asyncio.timeout(60):
        while True:
            sent += (await deliver_events(shop.store, shop.catalog)).sent
            behind = await shop.store.pool.fetchval(
                "select exists (select 1 from bellringer.webhook_endpoints w join bellringer.events e using (tenant_id)"
                " where w.enabled and (e.tx, e.event_id) > (w.sent_tx, w.sent_event))"
            )
            if not behind:
                return sent
            await asyncio.sleep(0.02)


async def came(receiver: Receiver, number: int) -> list[dict[str, object]]:
    async with asyncio.timeout(60):
        while len(receiver.received) < number:  # noqa: ASYNC110 - a server of ours tells nobody how many
            await asyncio.sleep(0.02)
    return [json.loads(sent.body) for sent in receiver.received]


async def test_what_fails_and_dies_is_reported_signed_and_thin(shop: Shop, receiver: Receiver) -> None:
    secret = generate_secret()
    await endpoint(shop, receiver.url, secret)
    key = await order(shop, retry=Retry(2, base="0s"))
    await work(shop, BAD)
    await work(shop, BAD)
    assert await announced(shop) == 2
    told = await came(receiver, 2)
    assert sorted(str(body["type"]) for body in told) == ["run.dead", "run.failed"]
    for body, sent in zip(told, receiver.received, strict=True):
        assert set(body) == {"type", "timestamp", "data"}
        assert isinstance(body["data"], dict)
        assert body["data"]["run_id"] == key.id
        assert b"secret words" not in sent.body
        assert verify_signature(secret, sent.headers, sent.body, datetime.now(UTC)) is None


async def test_the_body_of_a_run_without_a_job_has_its_task(shop: Shop, receiver: Receiver) -> None:
    await endpoint(shop, receiver.url, kinds=["dead"])
    key = await order(shop, retry=Retry(1))
    await work(shop, BAD)
    assert await announced(shop) == 1
    [body] = await came(receiver, 1)
    assert isinstance(body["data"], dict)
    assert (body["data"]["job"], body["data"]["run_id"], body["data"]["task"]) == (None, key.id, "demo")


async def test_the_pause_of_a_task_is_about_the_task(shop: Shop, receiver: Receiver) -> None:
    await endpoint(shop, receiver.url)
    await shop.catalog.task_ids(["demo"])
    await pause_task.pause(shop.store, "demo", tenant_id=shop.tenant_id, who="alice", reason="INC-42")
    await pause_task.resume(shop.store, "demo", tenant_id=shop.tenant_id, who="alice")
    assert await announced(shop) == 2
    told = await came(receiver, 2)
    assert sorted(str(body["type"]) for body in told) == ["task.paused", "task.resumed"]
    for body in told:
        assert isinstance(body["data"], dict)
        about = {name: body["data"][name] for name in ("task", "job_id", "job", "run_id", "scheduled_for")}
        assert about == {"task": "demo", "job_id": None, "job": None, "run_id": None, "scheduled_for": None}


@pytest.mark.parametrize("kind", list(EventKind))
def test_the_type_of_an_event_says_what_it_is_about(kind: EventKind) -> None:
    key = RunKey(UUID(int=7), datetime(2026, 3, 1, tzinfo=UTC))
    event = EventRow(event_id=1, at=key.scheduled_for, kind=kind, job=None, key=key, attempt=0, data={})
    body = announcing.event_body(event)
    about, _, rest = body["type"].partition(".")
    assert (about in ("run", "job")) is (body["data"]["job_id"] is not None)
    assert rest == (kind.value if about in ("run", "job") else kind.value.removeprefix(f"{about}_"))
    if kind in EVENTS_WITHOUT_RUN:
        assert about != "run"
    if about == "run":
        assert body["data"]["run_id"] == key.id


async def test_a_success_shows_nothing_and_only_wanted_kinds_are_sent(shop: Shop, receiver: Receiver) -> None:
    await endpoint(shop, receiver.url, kinds=["dead"])
    await order(shop)
    await work(shop, GOOD)
    assert await shop.store.pool.fetchval("select count(*) from bellringer.events") == 0
    await order(shop, retry=Retry(2, base="0s"))
    await work(shop, BAD)
    await work(shop, BAD)
    assert await announced(shop) == 1
    assert [body["type"] for body in await came(receiver, 1)] == ["run.dead"]
    assert await announced(shop) == 0


async def test_a_pass_that_was_cut_off_is_repeated_without_doubling(shop: Shop, receiver: Receiver) -> None:
    made = await endpoint(shop, receiver.url)
    await order(shop, retry=Retry(1))
    await work(shop, BAD)
    [(_, place)] = [
        found for found in await webhooks.pending_endpoints(shop.store, 9) if found[0].endpoint_id == made.endpoint_id
    ]
    assert await announced(shop) == 1
    # As if the node had died before it moved the place.
    await shop.store.pool.execute(
        "update bellringer.webhook_endpoints set sent_tx = $1::text::xid8, sent_event = $2", place.tx, place.event_id
    )
    await announced(shop)
    await came(receiver, 1)
    assert len(await webhooks.list_deliveries(shop.store, shop.tenant_id, made.endpoint_id, None, 9)) == 1
    count = "select count(*) from bellringer.runs where cause = 'webhook'"
    assert await shop.store.pool.fetchval(count) == 1


async def test_an_event_whose_transaction_commits_late_is_reported_all_the_same(
    shop: Shop, receiver: Receiver, store: Store
) -> None:
    await endpoint(shop, receiver.url)
    insert = (
        "insert into bellringer.events (at, tenant_id, kind, job_id, scheduled_for)"
        " values (now(), $1, 'late', gen_random_uuid(), now()) returning event_id"
    )
    async with store.pool.acquire() as slow:
        transaction = slow.transaction()
        await transaction.start()
        first = await slow.fetchval(insert, shop.tenant_id)
        second = await store.pool.fetchval(insert, shop.tenant_id)  # a higher number, and it commits before
        assert first < second
        assert (await deliver_events(store, shop.catalog)).sent == 0  # what might still come before it is waited for
        await transaction.commit()
    assert await announced(shop) == 2
    told = [body["data"]["event_id"] for body in await came(receiver, 2)]  # type: ignore[index]
    assert sorted(told) == [first, second]


async def test_gone_switches_the_endpoint_off(shop: Shop, receiver: Receiver) -> None:
    made = await endpoint(shop, receiver.url)
    receiver.answers = [(410, {}, b"")]
    await order(shop, retry=Retry(1))
    await work(shop, BAD)
    await announced(shop)
    [sent] = await webhooks.list_deliveries(shop.store, shop.tenant_id, made.endpoint_id, None, 9)
    run = await shop.ended(sent.key)
    assert (run.state, run.attempt) == (State.DEAD, 1)
    now = await webhooks.get(shop.store, shop.tenant_id, made.endpoint_id)
    assert now is not None
    assert (now.enabled, now.disabled_reason) == (False, "the receiver returned 410 Gone")
    await order(shop, retry=Retry(1))
    await work(shop, BAD)
    assert await announced(shop) == 0


async def test_a_delivery_that_fails_is_not_an_event_itself(shop: Shop, receiver: Receiver) -> None:
    made = await endpoint(shop, receiver.url)
    receiver.answers = [(404, {}, b"")]
    await order(shop, retry=Retry(1))
    await work(shop, BAD)
    await announced(shop)
    [sent] = await webhooks.list_deliveries(shop.store, shop.tenant_id, made.endpoint_id, None, 9)
    await shop.until(sent.key, lambda run: run.attempt >= 2 and run.state is State.RETRYING)
    kinds = [event.kind for event in await events.newest(shop.store, shop.tenant_id, None, 9)]
    assert kinds == ["dead"]
    assert await announced(shop) == 0


async def test_another_tenant_gets_no_event(shop: Shop, receiver: Receiver) -> None:
    insert = "insert into bellringer.tenants (name) values ('other') returning tenant_id"
    own, shop.tenant_id = shop.tenant_id, await shop.store.pool.fetchval(insert)
    await endpoint(shop, receiver.url)
    shop.tenant_id = own
    await order(shop, retry=Retry(1))
    await work(shop, BAD)
    assert await announced(shop) == 0
    assert receiver.received == []


async def test_a_test_and_a_replay_are_deliveries_too(shop: Shop, receiver: Receiver) -> None:
    made = await endpoint(shop, receiver.url)
    number, key = await announcing.send_test(shop.store, shop.catalog, made, datetime.now(UTC))
    await shop.ended(key)
    first = await webhooks.get_delivery(shop.store, shop.tenant_id, number)
    assert first is not None
    assert (first.kind, first.event_id) == ("test", None)
    again, replayed = await announcing.replay_delivery(shop.store, shop.catalog, first, tenant_id=shop.tenant_id)
    await shop.ended(replayed)
    second = await webhooks.get_delivery(shop.store, shop.tenant_id, again)
    assert second is not None
    assert second.replay_of == number
    assert receiver.received[0].body == receiver.received[1].body


async def troubled(shop: Shop) -> list[str]:
    """The jobs in trouble, once all events that are there have been read."""
    async with asyncio.timeout(60):
        while True:
            await report_recoveries(shop.store)
            unread = await shop.store.pool.fetchval(
                "select exists (select 1 from bellringer.events e, bellringer.troubles_read r"
                " where (e.tx, e.event_id) > (r.tx, r.event_id) and e.kind in ('dead', 'late', 'missed'))"
            )
            if not unread:
                break
            await asyncio.sleep(0.02)
    return [row[0] for row in await shop.store.pool.fetch("select kind from bellringer.troubles")]


@pytest.fixture
async def job(shop: Shop) -> Definition:
    definition = Definition(name="nightly", task="demo", retry=Retry(1))
    await create(shop.store, shop.catalog, [definition], tenant_id=shop.tenant_id, who="test")
    return definition


async def run_job(shop: Shop, ending: Ending) -> None:
    job_id = await shop.store.pool.fetchval("select job_id from bellringer.jobs")
    await trigger(shop.store, job_id, tenant_id=shop.tenant_id)
    assert len(await work(shop, ending)) == 1


async def test_a_job_that_died_and_then_runs_well_has_recovered_once(shop: Shop, job: Definition) -> None:
    await run_job(shop, GOOD)
    assert await troubled(shop) == []
    await run_job(shop, BAD)
    assert await troubled(shop) == ["dead"]
    assert await troubled(shop) == ["dead"]  # nothing has run since
    await run_job(shop, BAD)
    assert await troubled(shop) == ["dead"]
    await run_job(shop, GOOD)
    assert await troubled(shop) == []
    await run_job(shop, GOOD)
    assert await troubled(shop) == []
    kinds = [event.kind for event in await events.newest(shop.store, shop.tenant_id, None, 9)]
    assert kinds == ["recovered", "dead", "dead"]


async def test_a_job_that_is_deleted_is_in_trouble_no_more(shop: Shop, job: Definition) -> None:
    await run_job(shop, BAD)
    assert await troubled(shop) == ["dead"]
    await shop.store.pool.execute("update bellringer.jobs set deleted_at = now()")
    assert await troubled(shop) == []


async def test_deliveries_and_breakers_past_retention_are_forgotten(shop: Shop, receiver: Receiver) -> None:
    made = await endpoint(shop, receiver.url)
    old, _ = await announcing.send_test(shop.store, shop.catalog, made, datetime.now(UTC))
    new, _ = await announcing.send_test(shop.store, shop.catalog, made, datetime.now(UTC))
    aged = "update bellringer.deliveries set made_at = made_at - interval '31 days' where delivery_id = $1"
    await shop.store.pool.execute(aged, old)
    for origin in ("https://a.example", "https://b.example"):
        await rows.record_failure(shop.store, shop.tenant_id, origin, None, "timed_out")
    aged = "update bellringer.breakers set changed_at = changed_at - interval '31 days' where origin = $1"
    await shop.store.pool.execute(aged, "https://a.example")
    await prune(shop.store, await shop.store.now(), Retention())
    kept = await webhooks.list_deliveries(shop.store, shop.tenant_id, made.endpoint_id, None, 9)
    assert [delivery.delivery_id for delivery in kept] == [new]
    assert await rows.load_breaker(shop.store, shop.tenant_id, "https://a.example") is None
    assert await rows.load_breaker(shop.store, shop.tenant_id, "https://b.example") is not None


def test_a_delivery_is_tried_for_days() -> None:
    waits = announcing.DELIVERY_RETRY.delays
    assert (len(waits), waits[0], waits[-1]) == (10, timedelta(0), timedelta(hours=24))
    assert sum(waits, timedelta(0)) > timedelta(days=2)
