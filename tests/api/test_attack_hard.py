"""What hostile callers try with connections, threads, turns and streams. Each is a hole as long as its test fails."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import AsyncMock, patch
from uuid import uuid4

import httpx2
import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bellringer.access.keys import make_key
from bellringer.access.tokens import Rules, SharedSecret, Tokens, read_keys
from bellringer.api import feeds
from bellringer.api.app import create_app
from bellringer.api.door import Door, Settings
from bellringer.api.problems import Refused
from bellringer.api.protocol import be_sparing, guarded
from bellringer.api.streams import Places, Streams
from bellringer.clock import SystemClock
from bellringer.egress.call import Failure, Request, Trouble, call
from bellringer.egress.connect import Guard, Lookups
from bellringer.egress.secrets import make_key as make_box_key
from bellringer.egress.settings import Egress
from bellringer.egress.urls import parse_url
from bellringer.lifecycle.announce import announce
from bellringer.lifecycle.claim import Seat, claim
from bellringer.lifecycle.claim import Turn as ClaimTurn
from bellringer.lifecycle.operate import Turn, operate
from bellringer.runs import RunKey
from bellringer.store import events, keys, workers
from bellringer.store.events import Kind, News
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.workers import Introduction

API: Final = "/api/v1"
SECRET: Final = "s" * 40


@asynccontextmanager
async def serving(app: Any, protocol: type[asyncio.Protocol]) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        be_sparing(listener)
        config = uvicorn.Config(app, log_config=None, lifespan="off", http=protocol, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1], server
        app.streams.close()
        server.should_exit = True
        await running


async def until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Whether it became so within that time."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.1)
    return is_so()


# Connections and the loop


class Large:
    """Answers with more than any buffer of the network holds."""

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", self.after)]})
        for place in range(self.pieces):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": place + 1 < self.pieces})

    def __init__(self, pieces: int, after: bytes) -> None:
        self.pieces, self.after, self.streams = pieces, after, Streams()


@asynccontextmanager
async def asking(port: int, data: bytes) -> AsyncIterator[socket.socket]:
    """Asks, and reads nothing by itself."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(0)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(slow, ("127.0.0.1", port))
    await loop.sock_sendall(slow, data)
    try:
        yield slow
    finally:
        slow.close()


GET_DOCS: Final = b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n"
KINDS: Final = pytest.mark.parametrize("kind", [HttpToolsProtocol, H11Protocol])


@KINDS
@pytest.mark.parametrize("pieces", [100, 3])
@pytest.mark.parametrize("after", [b"close", b"keep-alive"])
async def test_who_asks_and_never_reads_is_cut_off(kind: type[Any], pieces: int, after: bytes) -> None:
    """In the middle of an answer, and also where all of it waits to be taken before the connection can end."""
    app = Large(pieces, after)
    async with serving(app, guarded(kind, patience=60.0, unread=0.3)) as (port, server), asking(port, GET_DOCS):
        assert await until(lambda: bool(server.server_state.connections), 10)
        assert await until(lambda: not server.server_state.connections, 20), "it is still held after 20 s"


async def test_who_reads_slowly_gets_all(caplog: pytest.LogCaptureFixture) -> None:
    app = Large(20, b"close")
    async with serving(app, guarded(HttpToolsProtocol, unread=1.0)) as (port, _), asking(port, GET_DOCS) as slow:
        loop, size = asyncio.get_running_loop(), 0
        while data := await loop.sock_recv(slow, 1 << 16):
            size += len(data)
            await asyncio.sleep(0.01)
        assert size > 20 << 16
    assert not caplog.records


async def test_who_asks_for_much_at_once_is_cut_off(
    store: Store, names: Names, tenants: Store, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a login: each `GET /docs` that is asked for before the answer of the last is one more to be kept."""
    app = create_app(store, names, tenants, version="1", clock=SystemClock())
    async with serving(app, guarded(HttpToolsProtocol)) as (port, server):
        async with asking(port, GET_DOCS * 60):
            assert await until(lambda: bool(server.server_state.total_requests) or not server.server_state.tasks, 10)
            assert await until(lambda: not server.server_state.connections, 20), "it is still held"
            assert await until(lambda: not server.server_state.tasks, 20)
        async with asking(port, GET_DOCS + GET_DOCS) as two:
            seen, loop = b"", asyncio.get_running_loop()
            async with asyncio.timeout(20):
                while seen.count(b"200 OK") < 2:
                    seen += await loop.sock_recv(two, 1 << 16)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_a_caller_who_has_gone_is_no_mistake_of_ours(
    store: Store, names: Names, tenants: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    app = create_app(store, names, tenants, version="1", clock=SystemClock())

    scope = {"type": "http", "method": "GET", "path": "/docs", "raw_path": b"/docs", "query_string": b"", "headers": []}
    for trouble, is_ours in (("the handler is closed", False), ("something else", True)):
        gone = AsyncMock(side_effect=RuntimeError(f"unable to perform operation on <TCPTransport>; {trouble}"))
        await app(dict(scope), AsyncMock(), gone)
        assert ("request failed" in "".join(capfd.readouterr())) == is_ours


@pytest.mark.parametrize("path", ["/audit/export", "/runs/{run}/logs"])
async def test_what_is_told_whole_takes_a_place(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    made = (await api.post(f"{API}/jobs/execute", json={"task": "demo"})).json()
    where, headers = API + path.format(run=made["run_id"]), {"Accept": "application/x-ndjson"}
    assert [(await api.get(where, headers=headers)).status_code for _ in range(2)] == [200, 200]
    with patch.object(Places, "taken", autospec=True, side_effect=Places.taken) as taken:
        await api.get(where, headers=headers)
    assert taken.call_count == 1
    monkeypatch.setattr(Places, "check", _full)
    refused = await api.get(where, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")


def _full(_places: Places, _tenant_id: int) -> None:
    raise Refused(429, "too_many_streams", "all are open already")


@pytest.mark.parametrize(("proxies", "taken"), [((), 3), (("127.0.0.0/8",), 5)], ids=["a client", "a proxy"])
async def test_one_address_has_only_so_many_connections(
    store: Store, names: Names, tenants: Store, proxies: tuple[str, ...], taken: int
) -> None:
    app = create_app(store, names, tenants, version="1", clock=SystemClock())
    protocol: Any = guarded(HttpToolsProtocol, proxies, most_of_one=3)
    async with serving(app, protocol) as (port, _):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for _, writer in held[:taken]:
            writer.write(b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        statuses = [(await reader.readline()).split()[1] for reader, _ in held]
        assert statuses == [b"200"] * taken + [b"503"] * (5 - taken)
        for _, writer in held:
            writer.close()
        assert await until(lambda: not protocol.by_address, 10), "who has gone is not counted"


async def longest_turn(work: Any) -> float:
    """The most seconds of this thread's own time that went by without a turn for anybody else, while it was done."""
    longest, is_over = 0.0, False

    async def beat() -> None:
        nonlocal longest
        last = time.thread_time()
        while not is_over:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    beating = asyncio.create_task(beat())
    await work
    is_over = True
    await beating
    return longest


@pytest.mark.parametrize("shape", ["nested", "fields"])
async def test_a_large_body_lets_others_have_their_turn(api: httpx2.AsyncClient, shape: str) -> None:
    """16 MiB for /jobs/bulk: parsing takes up to 5 s, one item of unknown fields 100 s. Schedulers share this loop."""
    if shape == "nested":
        body = b'{"items": [' + (b"[" * 28 + b"]" * 28 + b",") * (8 * 1024 * 1024 // 57) + b"0]}"
    else:
        body = json.dumps({"items": [{f"concurency_limt{n}": 1 for n in range(30_000)}]}).encode()
    headers = {"Content-Type": "application/json"}
    turn = await longest_turn(api.post(f"{API}/jobs/bulk", content=body, headers=headers))
    assert turn < 1.0, f"{turn:.1f} s without a turn for others"


# Egress


async def test_names_that_never_resolve_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call gives up after 0.1 s, its look-up does not: without shares, many such calls would stop those of all."""
    free = threading.Event()
    real = socket.getaddrinfo

    def look_up(host: str, *args: Any, **terms: Any) -> Any:
        if host.endswith("tarpit.example"):
            free.wait(60)
            raise socket.gaierror("no answer")
        return real("127.0.0.1", *args, **terms)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    short = timedelta(milliseconds=100)
    asked = [Request(url=parse_url(f"https://n{n}.tarpit.example/"), timeout=short) for n in range(200)]
    lookups = Lookups()
    hostile, other = Guard(resolver=lookups.of(1)), Guard(resolver=lookups.of(2))
    try:
        ends = await asyncio.gather(*(call(request, hostile, time.monotonic) for request in asked))
        assert all(isinstance(end, Failure) and end.trouble is Trouble.TIMEOUT for end in ends)
        honest = Request(url=parse_url("https://honest.example/"), timeout=timedelta(seconds=5))
        end = await call(honest, other, time.monotonic)
        assert isinstance(end, Failure)
        assert end.trouble is Trouble.BLOCKED, end  # it was resolved, to this machine
    finally:
        free.set()
    end = await call(replace(honest, timeout=timedelta(seconds=20)), hostile, time.monotonic)
    assert isinstance(end, Failure)
    assert end.trouble is Trouble.BLOCKED, end  # once its threads have come back, it has its share again


async def test_what_inner_names_lead_to_is_not_told() -> None:
    """The message is in the run that every viewer of the tenant reads: a map of the inner network, name by name."""

    async def inner(_host: str, _port: int) -> list[str]:
        return ["10.20.30.40"]

    request = Request(url=parse_url("https://vault.corp.internal/"))
    end = await call(request, Guard(resolver=inner), time.monotonic)
    assert isinstance(end, Failure)
    assert "10.20.30.40" not in end.message


# Tokens


@pytest.mark.parametrize(
    "claim",
    [{"sub": "a\0b"}, {"sub": "\ud800"}, {"tenant": "\ud800"}, {"exp": 10**400}, {"nbf": -(10**400)}],
    ids=["NUL", "surrogate", "tenant", "exp", "nbf"],
)
async def test_no_claim_of_a_token_is_a_mistake_of_ours(
    store: Store, names: Names, tenants: Store, claim: dict[str, Any]
) -> None:
    tokens = Tokens(Rules(issuer="i", audience="a"), SharedSecret(SECRET), SystemClock())
    door = Door(store, names, Settings(tokens=tokens))
    app = create_app(store, names, tenants, version="1", clock=SystemClock(), door=door)
    claims: dict[str, Any] = {"iss": "i", "aud": "a", "sub": "s", "tenant": "default", "role": "admin"}
    claims |= {"exp": datetime.now(UTC).timestamp() + 100, **claim}
    headers = {"Authorization": f"Bearer {jwt.encode(claims, SECRET, algorithm='HS256')}"}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://t", timeout=20) as api:
        answer = await api.post(f"{API}/jobs", json={"name": "j", "task": "demo"}, headers=headers)
    assert answer.status_code < 500, answer.text


@pytest.mark.parametrize("odd", [7, {"kty": "EC", "crv": "P-256", "kid": []}, {"kty": [], "kid": "x"}])
def test_one_odd_entry_of_a_jwks_does_not_spoil_the_others(odd: Any) -> None:
    good = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    found = read_keys(json.dumps({"keys": [odd, {**good, "kid": "good"}]}).encode())
    assert "good" in found


# Turns


async def test_operations_of_one_tenant_do_not_hold_up_anothers(
    api: httpx2.AsyncClient, store: Store, names: Names
) -> None:
    """They are taken by their numbers: 10,000 of one tenant are 10,000 passes of up to 3 s before the next one's."""
    await store.pool.execute("insert into tenants (name) values ('beta')")
    beta = {"X-Tenant": "beta"}
    for n in range(3):
        await api.post(f"{API}/jobs", json={"name": f"j{n}", "task": "demo"}, headers=beta)
    await api.post(f"{API}/jobs", json={"name": "mine", "task": "demo"})
    for _ in range(60):
        await api.post(f"{API}/bulk", json={"action": "jobs.run", "filter": {}}, headers=beta)
    mine = (await api.post(f"{API}/bulk", json={"action": "jobs.pause", "filter": {}})).json()
    turn = Turn()
    for _ in range(10):
        await operate(store, names, turn)
    now = (await api.get(f"{API}/operations/{mine['operation_id']}")).json()
    assert now["state"] == "done"


async def test_many_limits_do_not_buy_more_than_a_tenants_share(
    api: httpx2.AsyncClient, store: Store, names: Names
) -> None:
    """Half of every batch goes to runs that share a limit, key by key and not tenant by tenant."""
    await store.pool.execute("insert into tenants (name) values ('beta')")
    for tenant, count in (("beta", 1_000), ("default", 1)):
        items = [
            {"name": f"j{n}", "task": "demo", "concurrency_key": f"k{n}", "concurrency_limit": 1} for n in range(count)
        ]
        headers = {"X-Tenant": tenant}
        assert (await api.post(f"{API}/jobs/bulk", json={"items": items}, headers=headers)).status_code == 201
        asked = await api.post(f"{API}/bulk", json={"action": "jobs.run", "filter": {}}, headers=headers)
        assert asked.status_code == 202, asked.text
    turn = Turn()
    for _ in range(60):
        await operate(store, names, turn)
    assert await store.pool.fetchval("select count(*) from queue") == 1_001
    tasks, pools = await names.task_ids(["demo"]), await names.pool_ids(["short"])
    who = Introduction(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    seat = Seat(worker_id=await workers.join(store, who), pool_id=pools["short"], task_ids=[tasks["demo"]])
    taken, _ = await claim(store, seat, 10, ClaimTurn())
    assert 1 in {claimed.tenant_id for claimed in taken}


async def test_endpoints_made_at_once_are_counted_too(store: Store, names: Names, tenants: Store) -> None:
    egress = Egress.read((), (make_box_key("k1"),))
    app = create_app(store, names, tenants, version="1", clock=SystemClock(), egress=egress)
    body = {"url": "https://example.com/"}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://t", timeout=60) as api:
        await asyncio.gather(*(api.post(f"{API}/webhook-endpoints", json=body) for _ in range(80)))
    assert await store.pool.fetchval("select count(*) from webhook_endpoints") <= 50


async def test_the_webhooks_of_one_tenant_do_not_hold_up_anothers(store: Store, names: Names, tenants: Store) -> None:
    """A pass takes the 50 endpoints of the lowest numbers that have news: who has 50, and always news, has them all."""
    await store.pool.execute("insert into tenants (name) values ('beta')")
    beta = await names.tenant_id("beta")
    egress = Egress.read((), (make_box_key("k1"),))
    app = create_app(store, names, tenants, version="1", clock=SystemClock(), egress=egress)
    body = {"url": "https://example.com/", "kinds": ["outgrown"]}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://t", timeout=60) as api:
        for _ in range(50):
            await api.post(f"{API}/webhook-endpoints", json=body, headers={"X-Tenant": "beta"})
        mine = (await api.post(f"{API}/webhook-endpoints", json={"url": "https://example.com/"})).json()["endpoint_id"]
        await tell(store, *[beta] * 600)
        await tell(store, 1)
        for _ in range(5):
            await announce(store, names)
        sent = (await api.get(f"{API}/webhook-endpoints/{mine}/deliveries")).json()["items"]
    assert len(sent) == 1


# Streams


async def test_a_revoked_key_hears_no_more_after_five_seconds(
    store: Store, names: Names, tenants: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream is asked for once and goes on for 15 minutes, whatever becomes of the key."""
    monkeypatch.setattr(feeds, "LOOK", 0.05)
    key = make_key()
    await keys.add(store, key, tenant_id=1, name="thief", role="viewer", who="test")
    door = Door(store, names, Settings())
    app = create_app(store, names, tenants, version="1", clock=SystemClock(), door=door)
    async with serving(app, HttpToolsProtocol) as (port, _):
        headers = {"Authorization": f"Bearer {key.text}", "Accept": "text/event-stream"}
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as api,
            api.stream("GET", f"{API}/events", headers=headers) as answer,
        ):
            lines = answer.aiter_lines()
            assert "still here" in await anext(lines)
            await keys.revoke(store, key.key_id, 1)
            await asyncio.sleep(6)
            assert (await api.get(f"{API}/whoami", headers=headers)).status_code == 401
            await tell(store, 1)
            heard = [line async for line in before(lines, 8)]
    assert not [line for line in heard if line.startswith("data:")], heard


async def before(lines: AsyncIterator[str], seconds: float) -> AsyncIterator[str]:
    """What comes within that time."""
    try:
        async with asyncio.timeout(seconds):
            async for line in lines:
                yield line
    except TimeoutError:
        return


async def tell(store: Store, *tenants: int) -> None:
    """Something late for each of them."""
    now = await store.now()
    news = [News(tenant_id=t, kind=Kind.LATE, key=RunKey(uuid4(), now), data={"late_after": 90}) for t in tenants]
    assert (await events.tell(store, now, news))[Kind.LATE] == len(tenants)


# The audit


async def test_who_stops_a_worker_is_told_by_the_audit(api: httpx2.AsyncClient, store: Store, names: Names) -> None:
    tasks = await names.task_ids(["demo"])
    who = Introduction(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    number = await workers.join(store, who)
    for what in ("quiet", "stop"):
        answer = await api.post(f"{API}/workers/{number}/{what}", headers={"X-Request-ID": f"ask-{what}"})
        assert answer.status_code == 202, answer.text
        found = await store.pool.fetchval("select count(*) from audit where request_id = $1", f"ask-{what}")
        assert found == 1, what


async def test_who_executes_a_task_is_told_somewhere(api: httpx2.AsyncClient, store: Store) -> None:
    """docs/audit.md leaves it out because the run tells it by itself; but a run does not say who sent it."""
    sent = await api.post(f"{API}/jobs/execute", json={"task": "demo"}, headers={"X-Request-ID": "ask-execute"})
    run = (await api.get(f"{API}/runs/{sent.json()['run_id']}")).text
    found = await store.pool.fetchval("select count(*) from audit where request_id = 'ask-execute'")
    assert found or '"local"' in run, run


async def test_a_patch_that_changes_nothing_leaves_no_row(api: httpx2.AsyncClient, store: Store) -> None:
    await api.post(f"{API}/jobs", json={"name": "j", "task": "demo"})
    await api.patch(f"{API}/jobs/j", json={}, headers={"X-Request-ID": "nothing"})
    assert await store.pool.fetchval("select count(*) from audit where request_id = 'nothing'") == 0
