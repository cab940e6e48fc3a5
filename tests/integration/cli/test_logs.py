"""`bellringer runs logs` beside a real worker: captured output is stored, followed live, filtered and readable."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest

from bellringer import telemetry
from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.core.runs import FINAL_STATES, RunKey, decode_run_id
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.register import create
from bellringer.engine.send import SendSpec, send
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.worker.context import Context
from bellringer.worker.output.echo import CaptureSettings, echo_to_log
from bellringer.worker.service import Worker, WorkerSettings

from .conftest import Ask


async def speaks(ctx: Context) -> None:
    print("printed \x1b[31mred")
    print("problem", file=sys.stderr)
    ctx.log.info("logged", number=7)
    try:
        raise ValueError("bad order")
    except ValueError:
        logging.getLogger("shop.orders").exception("failed")


GATE = threading.Event()


async def waits() -> None:
    print("before")
    while not GATE.is_set():  # noqa: ASYNC110 - it is set on another loop
        await asyncio.sleep(0.01)
    print("after")


async def counts(numbers: int, pause: float) -> None:
    for number in range(numbers):
        print("number", number)
        await asyncio.sleep(pause)


@pytest.fixture
async def worker(store: Store) -> AsyncIterator[None]:
    registry = Registry()
    GATE.clear()
    for function in (speaks, counts, waits):
        registry.add(make_task(function, name=function.__name__))
    settings = WorkerSettings(pools={"short": 60}, grace=timedelta(0), capture=CaptureSettings(), echo=echo_to_log)
    stop = asyncio.Event()
    running = asyncio.create_task(Worker(store, registry, SystemClock(), settings).run(stop))
    yield
    stop.set()
    await running


async def ended(store: Store, key: RunKey, tenant_id: int = 1) -> None:
    for _ in range(600):
        run = await runs.get(store, key, tenant_id)
        if run is not None and run.state in FINAL_STATES:
            await asyncio.sleep(0.6)  # log lines are written four times a second
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the run did not end within 30 s")


@pytest.fixture
async def spoken(store: Store, catalog: Catalog, worker: None) -> str:
    key = (await send(store, catalog, SendSpec(task="speaks"), tenant_id=1)).key
    await ended(store, key)
    return key.id


async def test_a_person_reads_time_level_source_and_traceback(ask: Ask, spoken: str) -> None:
    shown, _ = await ask("runs", "logs", spoken)
    lines = shown.splitlines()
    assert [line[13:] for line in lines[:4]] == [
        "#1 info    stdout   printed \\x1b[31mred",
        "#1 warning stderr   problem",
        "#1 info    ctx      logged  number=7",
        "#1 error   logging:shop.orders failed",
    ]
    assert lines[4] == "  | Traceback (most recent call last):"
    assert lines[-1] == "  | ValueError: bad order"
    assert all(len(line) <= 80 for line in lines[:5])


async def test_lines_are_chosen_by_source_level_time_and_number(ask: Ask, spoken: str) -> None:
    async def messages(*options: str) -> list[str]:
        shown, _ = await ask("runs", "logs", spoken, "-o", "json", *options)
        return [json.loads(line)["message"] for line in shown.splitlines()]

    assert await messages("--source", "stdout,logging") == ["printed \x1b[31mred", "failed"]
    assert await messages("--level", "warning") == ["problem", "failed"]
    assert await messages("--tail", "1", "-f") == ["failed"]
    assert len(await messages("--since", "10m")) == 4
    assert await messages("--since", "2999-01-01T00:00:00Z") == []


async def test_a_run_or_a_job_must_be_named(ask: Ask) -> None:
    _, error = await ask("runs", "logs", code=2)
    assert "give either a run or --job" in error


async def test_output_is_followed_while_the_handler_runs(
    url: str, store: Store, catalog: Catalog, worker: None
) -> None:
    definition = Definition(name="waiting", task="waits")
    await create(store, catalog, [definition], tenant_id=1, who="test")
    async with httpx2.AsyncClient() as client:
        run_id = (await client.post(f"{url}/api/v1/jobs/waiting/run")).json()["run_id"]
    command = (sys.executable, "-m", "bellringer", "runs", "logs", "--job", "waiting", "-f", "-o", "json", "--url", url)
    follows = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert follows.stdout is not None
    first = json.loads(await asyncio.wait_for(follows.stdout.readline(), 60))
    run = await runs.get(store, decode_run_id(run_id), 1)
    assert run is not None
    assert run.state not in FINAL_STATES
    GATE.set()
    rest = (await asyncio.wait_for(follows.communicate(), 60))[0]
    found = [first, *map(json.loads, rest.splitlines())]
    assert [(line["source"], line["message"]) for line in found] == [("stdout", "before"), ("stdout", "after")]


async def test_rest_streams_output_while_the_handler_runs(
    url: str, store: Store, catalog: Catalog, worker: None
) -> None:
    key = (await send(store, catalog, SendSpec(task="waits"), tenant_id=1)).key
    async with (
        httpx2.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{url}/api/v1/runs/{key.id}/logs", params={"follow": "true"}) as response,
    ):
        found = []
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                GATE.set()  # the handler goes on only after its first line has arrived
    assert [line["message"] for line in found[:-1]] == ["before", "after"]
    assert found[-1]["state"] == "succeeded"


async def test_fifty_concurrent_runs_keep_their_lines_apart(store: Store, catalog: Catalog, worker: None) -> None:
    keys = [
        (await send(store, catalog, SendSpec(task="counts", args=[number, 0.01]), tenant_id=1)).key
        for number in range(1, 51)
    ]
    for key in keys:
        await ended_quickly(store, key)
    await asyncio.sleep(0.8)
    for number, key in enumerate(keys, start=1):
        rows = await store.pool.fetch(
            "select message from logs where job_id = $1 and scheduled_for = $2 order by line",
            key.job_id,
            key.scheduled_for,
        )
        assert [row["message"] for row in rows] == [f"number {n}" for n in range(number)]


async def ended_quickly(store: Store, key: RunKey) -> None:
    for _ in range(600):
        run = await runs.get(store, key, 1)
        if run is not None and run.state in FINAL_STATES:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the run did not end within 30 s")


async def test_the_echo_in_the_workers_log_names_run_job_task_attempt_and_tenant(
    store: Store, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    async def handler(ctx: Context) -> None:
        print("captured")
        telemetry.log.warning("logged by the SDK")

    registry = Registry()
    registry.add(make_task(handler, name="handler"))
    tenant_id = await store.pool.fetchval("insert into tenants (name) values ('acme') returning tenant_id")
    settings = WorkerSettings(pools={"short": 1}, grace=timedelta(0), capture=CaptureSettings(), echo=echo_to_log)
    telemetry.configure("json", "info", log_attempts=True)
    try:
        stop = asyncio.Event()
        running = asyncio.create_task(Worker(store, registry, SystemClock(), settings).run(stop))
        key = (await send(store, catalog, SendSpec(task="handler"), tenant_id=tenant_id)).key
        await ended(store, key, tenant_id)
        stop.set()
        await running
    finally:
        telemetry.configure()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    named = {line["event"]: line for line in lines}
    expected = {"run_id": key.id, "job": None, "task": "handler", "attempt": 1, "tenant": "acme"}
    for event in ("captured", "logged by the SDK", "attempt finished"):
        assert {name: named[event][name] for name in expected} == expected, event
    assert named["captured"]["source"] == "stdout"
    assert "run_id" not in named["worker joined"]
    assert await store.pool.fetchval("select array_agg(message) from logs") == ["captured"]
