"""The client: the same calls, waiting and awaiting, against a real server; and what errors become."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator

import httpx2
import pytest
import uvicorn

from bellringer.api.app import create_app
from bellringer.client import AsyncClient, Client
from bellringer.clock import SystemClock
from bellringer.errors import (
    BellringerError,
    ConfigError,
    Conflict,
    InvalidInput,
    InvalidSchedule,
    NotFound,
    PayloadTooLarge,
    Unavailable,
)
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog


@pytest.fixture
async def url(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[str]:
    """A real server on a free port, in this test's own loop."""
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url) as opened:
        yield opened


async def test_every_call_of_the_async_client(client: AsyncClient) -> None:
    assert (await client.ready()).status == "ready"
    assert (await client.version()).version == "1.2.3"
    job = await client.create_job({"name": "a/b c", "task": "demo", "schedule": {"every": "1h"}})
    assert (await client.job("a/b c")) == (await client.job(job.job_id)) == job
    assert [j.name for j in (await client.jobs(name="a/b c")).items] == ["a/b c"]
    assert (await client.jobs(limit=1)).next_cursor is None
    assert (await client.patch_job(job.job_id, {"priority": 9}, revision=1)).priority == 9
    paused = await client.pause("a/b c", reason="why", until="1h")
    assert paused.paused is not None
    assert paused.paused.reason == "why"
    assert (await client.resume("a/b c", missed="all")).job.paused is None
    run = await client.trigger("a/b c", kwargs={"x": 1})
    assert (await client.run(run.run_id)).kwargs == {"x": 1}
    assert [r.run_id for r in (await client.job_runs("a/b c")).items] == [run.run_id]
    assert [r.run_id for r in (await client.runs(limit=5)).items] == [run.run_id]
    assert (await client.logs(run.run_id)).items == []
    assert (await client.cancel(run.run_id, reason="no")).state == "cancelled"
    assert (await client.wait(run.run_id, timeout=5)).state == "cancelled"
    sent = await client.execute("demo", args=[1], delay="1h", key="k")
    assert sent.created is True
    assert (await client.execute("demo", key="k")).created is False
    with pytest.raises(Conflict):
        await client.retry(sent.run_id)
    assert (await client.dead_letters()).items == []
    assert (await client.redrive([sent.run_id])).count == 0
    assert (await client.discard(everything=True)).count == 0
    assert (await client.discarded()).items == []
    assert (await client.restore_discarded(everything=True)).count == 0
    assert (await client.workers()).items == []
    assert (await client.cluster()).shards.total == 64
    assert len((await client.preview({"every": "5m"}, n=3)).fires) == 3
    await client.delete_job("a/b c")
    with pytest.raises(NotFound):
        await client.job("a/b c")


async def test_the_waiting_client_makes_the_same_calls(url: str) -> None:
    def use() -> None:
        with Client(url) as client:
            job = client.create_job({"name": "a", "task": "demo"})
            run = client.trigger(job.job_id)
            assert client.run(run.run_id).job == "a"
            client.cancel(run.run_id)
            assert client.wait(run.run_id, timeout=5).state == "cancelled"
            assert client.ready().status == "ready"
            client.delete_job("a")
            with pytest.raises(NotFound):
                client.job("a")

    await asyncio.to_thread(use)


async def test_waiting_ends_in_time(client: AsyncClient) -> None:
    run = await client.execute("demo")
    with pytest.raises(Unavailable, match="has not ended within"):
        await client.wait(run.run_id, timeout=0.2)


async def test_problems_become_the_errors_that_they_were(client: AsyncClient) -> None:
    await client.create_job({"name": "a", "task": "demo"})
    cases = [
        (client.job("x"), NotFound, "not_found"),
        (client.create_job({"name": "a", "task": "demo"}), Conflict, "name_taken"),
        (client.patch_job("a", {}, revision=9), Conflict, "revision_mismatch"),
        (client.create_job({"name": "b"}), InvalidInput, "missing_field"),
        (client.preview({"cron": "0 0 30 2 *"}), InvalidSchedule, "cron_never_fires"),
        (client.execute("demo", kwargs={"a": "x" * 300_000}), PayloadTooLarge, "payload_too_large"),
        (client.execute("demo", kwargs={"a": "x" * 1_100_000}), PayloadTooLarge, "payload_too_large"),
    ]
    for call, kind, code in cases:
        with pytest.raises(kind) as caught:
            await call
        assert isinstance(caught.value, BellringerError)
        assert caught.value.code == code
    with pytest.raises(InvalidInput) as caught:
        await client.create_job({"name": "b", "task": "demo", "prioritty": 1})
    assert (caught.value.pointer, caught.value.hint) == ("/prioritty", "did you mean priority?")


def test_the_error_without_a_server_says_what_to_do() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(Unavailable) as caught:
        client.version()
    assert str(caught.value) == (
        "cannot connect to a Bellringer server at http://127.0.0.1:9; "
        "start one with `bellringer dev`, or set BELLRINGER_URL"
    )


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://x", "http://"])
def test_a_url_that_is_none_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigError):
        Client(url)


@pytest.mark.parametrize(("status", "kind"), [(200, BellringerError), (404, BellringerError), (502, Unavailable)])
def test_a_stranger_is_recognised(status: int, kind: type[BellringerError]) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, text="<html>"))
    with Client("http://x", transport=transport) as client, pytest.raises(kind, match="not from Bellringer"):
        client.version()


def test_a_slow_server_and_the_token() -> None:
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["authorization"])
        raise httpx2.ReadTimeout("slow")

    transport = httpx2.MockTransport(answer)
    client = Client("http://x", token="t", transport=transport)
    with client, pytest.raises(Unavailable, match="did not respond in time"):
        client.version()
    assert seen == ["Bearer t"]


def test_a_server_may_be_newer() -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"version": "9", "new": 1}))
    with Client("http://x", transport=transport) as client:
        assert client.version().version == "9"


def test_calls_show_their_arguments() -> None:
    with Client("http://x") as client:
        assert list(inspect.signature(client.pause).parameters) == ["job", "reason", "until"]
        assert client.run.__doc__ == "Return a run with its attempts."
