"""Notifications end to end: real jobs that fail, real receivers over HTTP and SMTP."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from email import message_from_bytes
from email.message import Message
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from tests.integration.egress.conftest import LOOPBACK, Receiver, Shop
from tests.integration.egress.test_event_webhooks import BAD, GOOD, came, work

from bellringer.clock import SystemClock
from bellringer.core.jobs import HTTP_TASK, Definition
from bellringer.core.notifications import RouteRules
from bellringer.core.retry_policy import Retry
from bellringer.egress.mail import parse_mail_settings
from bellringer.egress.secret_box import generate_secret_key
from bellringer.egress.settings import Egress
from bellringer.engine import http_targets
from bellringer.engine.heartbeat import call_heartbeat_url, find_problem
from bellringer.engine.monitor import report_recoveries
from bellringer.engine.notifications import notify, send_test
from bellringer.engine.register import create
from bellringer.engine.send import trigger
from bellringer.store import leases, notifications
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.notifications import ChannelRow, NewRoute
from bellringer.worker.built_in_tasks import http_registry
from bellringer.worker.service import Worker, WorkerSettings

URL = "https://bell.example.com"


class Mailbox:
    """Handler of a real SMTP server: stores mails, and answers what a test says."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.answers: list[str] = []
        self.came = asyncio.Event()

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.mails.append(message_from_bytes(envelope.content))
            self.came.set()
        return answer


def authenticate(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword) -> AuthResult:
    return AuthResult(success=(data.login, data.password) == (b"bell", b"s3cret"))


@dataclass
class Mail:
    box: Mailbox
    url: str


@pytest.fixture
async def mail() -> AsyncIterator[Mail]:
    box = Mailbox()
    options: dict[str, Any] = {"authenticator": authenticate, "auth_require_tls": False, "auth_required": True}

    def protocol() -> SMTP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of logins without TLS
            return SMTP(box, **options)

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield Mail(box, f"smtp://bell:s3cret@127.0.0.1:{port}?starttls=off")
    server.close()
    await server.wait_closed()


@pytest.fixture
async def shop(store: Store, catalog: Catalog, mail: Mail) -> AsyncIterator[Shop]:
    """As the shop of the other tests, with a mail server and links."""
    egress = Egress.read(LOOPBACK, (generate_secret_key("k1"),))
    clock, stop = SystemClock(), asyncio.Event()
    settings = WorkerSettings(pools={HTTP_TASK: 4}, name="http", grace=timedelta(seconds=1))
    smtp = parse_mail_settings(mail.url, "bell@example.com")
    tasks = http_registry(store, egress, clock, mail=smtp, public_url=URL)
    worker = Worker(store, tasks, clock, settings)
    working = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    yield Shop(store, catalog, egress, await catalog.tenant_id("default"))
    stop.set()
    await working


async def channel(shop: Shop, kind: str, secret: str | None, name: str = "c", **settings: Any) -> ChannelRow:
    secret_id = None
    if secret is not None:
        secret_id = await http_targets.store_secret(shop.store, shop.egress, secret, tenant_id=shop.tenant_id)
    await notifications.put_channel(
        shop.store, shop.tenant_id, name, kind=kind, settings=settings, secret_id=secret_id, enabled=True, who="t"
    )
    found = await notifications.get_channel(shop.store, shop.tenant_id, name)
    assert found is not None
    return found


async def route(shop: Shop, to: ChannelRow, name: str = "r", **rules: Any) -> RouteRules:
    given: dict[str, Any] = {
        "enabled": True, "tenants": (), "kinds": (), "severity": "warning", "jobs": (), "tags": (), "owners": (),
        "group_by": "job", "wait": timedelta(0), "min_interval": timedelta(0), "repeat_after": None, "quiet": None,
        "recoveries": True, **rules,
    }  # fmt: skip
    await notifications.put_route(
        shop.store, shop.tenant_id, NewRoute(name=name, channel_id=to.channel_id, **given), "t"
    )
    found = await notifications.get_route(shop.store, shop.tenant_id, name)
    assert found is not None
    return found.route


async def job(shop: Shop, name: str = "nightly", **more: Any) -> Any:
    wanted = Definition(name=name, task="demo", retry=Retry(1), owner="data", **more)
    [made] = await create(shop.store, shop.catalog, [wanted], tenant_id=shop.tenant_id, who="test")
    return made.job_id


async def fail(shop: Shop, job_id: Any) -> None:
    await trigger(shop.store, job_id, tenant_id=shop.tenant_id)
    await work(shop, BAD)


async def recover(shop: Shop, job_id: Any) -> None:
    async with asyncio.timeout(30):
        while not (await report_recoveries(shop.store)).noted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await trigger(shop.store, job_id, tenant_id=shop.tenant_id)
    await work(shop, GOOD)
    async with asyncio.timeout(30):
        while not (await report_recoveries(shop.store)).recovered:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def decided(shop: Shop, least: int = 1) -> int:
    """Passes until this many messages exist and no event waits: a transaction elsewhere may still be under way."""
    made = 0
    async with asyncio.timeout(30):
        while made < least:
            made += (await notify(shop.store, shop.catalog)).messages
            await asyncio.sleep(0.01)
    return made + (await notify(shop.store, shop.catalog)).messages


async def test_a_failure_and_its_recovery_reach_slack(shop: Shop, receiver: Receiver) -> None:
    await route(shop, await channel(shop, "slack", receiver.url))
    job_id = await job(shop, tags=("billing",))
    await fail(shop, job_id)
    assert await decided(shop) == 1
    [opened] = await came(receiver, 1)
    text = json.dumps(opened)
    for part in (
        "nightly: gave up",
        "*Task:* demo",
        "*Error:* Boom: secret words",
        "*Owner:* data",
        f"{URL}/console/runs/run_",
    ):
        assert part in text
    await recover(shop, job_id)
    assert await decided(shop) == 1
    assert "nightly has recovered" in json.dumps((await came(receiver, 2))[1])
    [resolved, first] = await notifications.list_history(shop.store, shop.tenant_id, None, 9)
    assert (first.reason, resolved.reason) == ("opened", "resolved")
    assert first.key is not None
    assert (await shop.ended(first.key)).state == "succeeded"


async def test_pagerduty_gets_trigger_and_resolve_with_one_key(shop: Shop, receiver: Receiver) -> None:
    receiver.answers[:] = [(202, {}, b'{"status":"success"}')]
    await route(shop, await channel(shop, "pagerduty", "R0123", url=receiver.url))
    job_id = await job(shop)
    await fail(shop, job_id)
    await decided(shop)
    await came(receiver, 1)
    await recover(shop, job_id)
    await decided(shop)
    [first, second] = await came(receiver, 2)
    assert (first["event_action"], second["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == second["dedup_key"]
    assert first["routing_key"] == "R0123"
    stored = await shop.store.pool.fetchval("select string_agg(message::text, '') from bellringer.notifications")
    assert "R0123" not in stored


async def test_mail_is_sent_with_login_and_tried_again_with_the_same_id(shop: Shop, mail: Mail) -> None:
    mail.box.answers = ["451 try later"]
    to = await channel(shop, "email", None, to=["ops@example.com", "data@example.com"])
    number, key = await send_test(shop.store, shop.catalog, to, await shop.store.now(), "ada")
    assert (await shop.ended(key)).state == "succeeded"
    assert len(await shop.tries(key)) == 2
    [only] = mail.box.mails
    assert only["Message-ID"] == f"<notification-{number}@example.com>"
    assert only["To"] == "ops@example.com, data@example.com"
    mail.box.answers = ["550 no such user"]
    _, key = await send_test(shop.store, shop.catalog, to, await shop.store.now(), "ada")
    assert (await shop.ended(key)).state == "dead"
    assert len(await shop.tries(key)) == 1  # it would be refused again
    kinds = await shop.store.pool.fetch("select kind from bellringer.events")
    assert kinds == []  # a broken channel does not notify about itself


async def test_a_lost_response_is_repeated_and_a_refusal_is_not(shop: Shop, receiver: Receiver) -> None:
    receiver.answers[:] = [b"", (200, {}, b"ok")]  # the connection ends after the request was read
    to = await channel(shop, "teams", receiver.url)
    _, key = await send_test(shop.store, shop.catalog, to, await shop.store.now(), "ada")
    assert (await shop.ended(key)).state == "succeeded"
    assert len({request.headers["idempotency-key"] for request in receiver.received}) == 1
    assert len(receiver.received) == 2
    receiver.answers[:] = [(404, {}, b"no_service")]
    _, key = await send_test(shop.store, shop.catalog, to, await shop.store.now(), "ada")
    assert (await shop.ended(key)).state == "dead"
    assert len(await shop.tries(key)) == 1


async def test_two_nodes_at_once_send_each_message_once(shop: Shop, receiver: Receiver) -> None:
    await route(shop, await channel(shop, "webhook", receiver.url))
    for number in range(4):
        await fail(shop, await job(shop, f"j{number}"))
    made = 0
    async with asyncio.timeout(30):
        while made < 4:
            passes = await asyncio.gather(*(notify(shop.store, shop.catalog) for _ in range(5)))
            made += sum(done.messages for done in passes)
    await asyncio.gather(*(notify(shop.store, shop.catalog) for _ in range(5)))
    sent = await came(receiver, 4)
    assert sorted(str(body["title"]) for body in sent) == [f"j{n}: gave up" for n in range(4)]
    async with asyncio.timeout(30):
        while await shop.store.pool.fetchval("select count(*) from bellringer.queue"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert len(receiver.received) == 4


async def test_a_crash_between_send_and_record_sends_nothing_twice(
    shop: Shop, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await route(shop, await channel(shop, "webhook", receiver.url))
    await fail(shop, await job(shop))

    async def dies(*_: Any) -> None:
        raise ConnectionError("the node was killed here")

    monkeypatch.setattr(notifications, "record_run", dies)
    with pytest.raises(ConnectionError):
        await decided(shop)
    monkeypatch.undo()
    await notify(shop.store, shop.catalog)  # another node goes on
    [row] = await notifications.list_history(shop.store, shop.tenant_id, None, 9)
    assert row.key is not None
    await shop.ended(row.key)
    assert len(receiver.received) == 1


async def test_a_late_message_gives_way_to_the_recovery(shop: Shop, receiver: Receiver) -> None:
    receiver.answers[:] = [(503, {"retry-after": "1"}, b""), (200, {}, b"ok")]
    await route(shop, await channel(shop, "webhook", receiver.url))
    job_id = await job(shop)
    await fail(shop, job_id)
    await decided(shop)
    await came(receiver, 1)
    await recover(shop, job_id)
    await decided(shop)
    bodies = await came(receiver, 2)
    [resolved, first] = await notifications.list_history(shop.store, shop.tenant_id, None, 9)
    assert first.key is not None
    assert resolved.key is not None
    await asyncio.gather(shop.ended(first.key), shop.ended(resolved.key))
    assert [body["reason"] for body in bodies] == ["opened", "resolved"]
    assert len(receiver.received) == 2


async def test_routes_of_the_installation_see_other_tenants(shop: Shop, receiver: Receiver) -> None:
    other = await shop.store.pool.fetchval("insert into bellringer.tenants (name) values ('acme') returning tenant_id")
    to = await channel(shop, "webhook", receiver.url)
    await route(shop, to, "own")
    there = Shop(shop.store, shop.catalog, shop.egress, other)
    await fail(there, await job(there, "theirs"))
    await fail(shop, await job(shop, "ours"))
    assert await decided(shop) == 1
    await route(shop, to, "all", tenants=("*",))
    await fail(there, await job(there, "theirs too"))
    assert await decided(shop) == 1
    titles = {body["title"] for body in await came(receiver, 2)}
    assert titles == {"ours: gave up", "theirs too: gave up"}


async def test_events_before_the_first_route_are_not_sent(shop: Shop, receiver: Receiver) -> None:
    await fail(shop, await job(shop))
    await notify(shop.store, shop.catalog)
    await route(shop, await channel(shop, "webhook", receiver.url))
    for _ in range(5):
        assert (await notify(shop.store, shop.catalog)).messages == 0


async def test_the_heartbeat_is_sent_only_while_the_cluster_is_healthy(shop: Shop, receiver: Receiver) -> None:
    assert await find_problem(shop.store) == "64 shards have no scheduler"
    await shop.store.pool.execute(
        "update bellringer.leases set holder = gen_random_uuid(), expires_at = clock_timestamp() + interval '1 minute'"
    )
    assert await find_problem(shop.store) is None
    clock = SystemClock()
    assert await call_heartbeat_url(receiver.url, clock.monotonic) is None
    assert receiver.received[0].method == "GET"
    receiver.answers[:] = [(500, {}, b"")]
    assert await call_heartbeat_url(receiver.url, clock.monotonic) == "the service returned 500"
    assert len(await leases.list_leases(shop.store)) == 64
