"""Encryption at the edge of an app: sends, jobs and workflows are opaque in the database, results come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from bellringer import App, Context, Retry, RunFailed, Workflow, every, secret
from bellringer.clock import SystemClock
from bellringer.codecs import aesgcm
from bellringer.egress.secret_box import generate_secret_key
from bellringer.store.connection_pool import Store
from bellringer.worker.service import Worker, WorkerSettings

OPAQUE = "opaque-4711"
KEY = generate_secret_key("p1")


@dataclass
class EncryptedApp:
    """An app with a codec, and its tasks."""

    app: App
    shout: Any
    resume: Any
    flow: Any


def make_app(dsn: str, codec: Any) -> EncryptedApp:
    app = App(dsn, payload_codec=codec)

    @app.task(name="shout", retry=1)
    async def shout(text: str, times: int = 1) -> str:
        return text.upper() * times

    @app.task(name="resume", retry=Retry(2, base="10ms"))
    async def resume(ctx: Context, text: str) -> Any:
        if ctx.resume_from is None:
            ctx.progress(1, details={"cursor": text})
            raise ValueError("try again")
        return ctx.resume_from

    @app.task(name="join", retry=1)
    async def join(left: str, right: str) -> str:
        return f"{left}+{right}"

    @app.schedule(every("1h"), name="hourly", kwargs={"text": OPAQUE})
    @app.task(name="declared", retry=1)
    async def declared(text: str, again: str = "") -> str:
        return text + again

    @app.workflow(name="flow")
    def flow(wf: Workflow, text: str = "none") -> Any:
        return wf.add(join, wf.add(shout, text, name="a"), wf.add(shout, text, name="b"), name="c")

    return EncryptedApp(app, shout, resume, flow)


@asynccontextmanager
async def working(store: Store, app: App, codec: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    settings = WorkerSettings(pools={"short": 8}, grace=timedelta(seconds=1), codec=codec, secret_sources=("env:APP_",))
    worker = Worker(store, app.registry, SystemClock(), settings)
    task = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    yield
    stop.set()
    await task


async def test_payloads_are_opaque_in_the_database_and_readable_for_the_app(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = aesgcm([KEY])
    made = make_app(store.dsn, codec)
    app = made.app
    monkeypatch.setenv("APP_GREETING", "hello")
    assert await app.adeclare() > 0
    async with working(store, app, codec):
        assert await (await made.shout.asend(OPAQUE, times=2)).aresult(timeout=20) == OPAQUE.upper() * 2
        many = await made.shout.asend_many([{"text": OPAQUE}, {"text": secret("greeting")}])
        assert [await run.aresult(timeout=20) for run in many] == [OPAQUE.upper(), "HELLO"]
        assert await (await made.resume.asend(OPAQUE)).aresult(timeout=30) == {"cursor": OPAQUE}
        assert await (await app.jobs["hourly"].atrigger()).aresult(timeout=20) == OPAQUE
        overridden = await app.jobs["hourly"].atrigger(again=OPAQUE)
        assert await overridden.aresult(timeout=20) == OPAQUE * 2
        flow = await made.flow.asend(text=OPAQUE)
        assert await flow.aresult(timeout=30) == f"{OPAQUE.upper()}+{OPAQUE.upper()}"
    assert await app.adeclare() == 0  # equal values have equal ciphertexts: nothing has changed
    await app.aclose()
    tables = ("jobs", "job_revisions", "runs", "queue", "attempts", "dead_letters", "flows", "flow_nodes", "graphs")
    for table in tables:
        for row in await store.pool.fetch(f"select t::text from {table} t"):
            assert OPAQUE not in row[0].lower(), (table, row[0])


async def test_a_worker_without_the_key_fails_with_its_name(store: Store) -> None:
    made = make_app(store.dsn, aesgcm([KEY]))
    async with working(store, made.app, None):
        run = await made.shout.asend(OPAQUE)
        with pytest.raises(RunFailed, match=r"payload_unreadable: .*the key 'p1'"):
            await run.aresult(timeout=20)
    await made.app.aclose()
