"""Archive: days past retention are written to a directory or bucket, verified, and only then dropped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.support.engine_harness import EngineHarness

from bellringer.api.render.documents import render_run
from bellringer.backends.object_store import ObstoreObjects
from bellringer.cli.root import cli
from bellringer.clock import SystemClock
from bellringer.core.archive import ObjectStore
from bellringer.core.runs import RunKey
from bellringer.engine import archive as archiving
from bellringer.engine import prune
from bellringer.engine.archive import ArchiveDamaged, archive_slice
from bellringer.engine.prune import Retention
from bellringer.engine.read_archive import list_manifests, read_lines
from bellringer.errors import NotFound, Unavailable
from bellringer.schedule import every
from bellringer.store import archive, runs

DAY = timedelta(days=1)
KEEP = Retention(runs=5 * DAY, dead_letters=5 * DAY)
FIELDS = (
    *("run_id", "job", "task", "state", "cause", "scheduled_for", "attempt", "fired_at", "started_at", "finished_at"),
    *("pool", "priority", "worker_id", "revision", "token", "reason", "error", "args", "kwargs", "result", "attempts"),
    "replay_of",
)


async def history(harness: EngineHarness, count: int = 7) -> dict[str, dict[str, Any]]:
    """Sends of two tenants and a job that have ended; returns what the API shows of each."""
    seat = await harness.join_worker("demo")
    other = harness.for_tenant((await harness.tenants(1))[0])
    job = await harness.job("nightly", every("1h"), task="demo")
    for number in range(count):
        await harness.send(task="demo", args=(number, "ü"))
    for number in range(3):
        await other.send(task="demo", kwargs={"n": number})
    await harness.trigger(job)
    await harness.cancel((await harness.send(task="demo")).key)
    await harness.end(seat, await harness.claim(seat))
    shown = {}
    for row in await harness.sql("select job_id, scheduled_for, slot, tenant_id from runs"):
        key = RunKey(row["job_id"], row["scheduled_for"], row["slot"])
        found = await runs.get_with_attempts(harness.store, key, row["tenant_id"])
        assert found is not None
        document = render_run(found.run, found.attempts)
        shown[key.id] = {name: _plain(document)[name] for name in FIELDS}
    assert len(shown) == count + 5
    return shown


def _plain(document: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return plain


async def age(harness: EngineHarness, days: int = 8) -> int:
    await harness.set_clock(harness.noon + days * DAY)
    return await prune.prune(harness.store, await harness.now(), KEEP, archives=True)


async def archived(target: ObjectStore) -> dict[str, dict[str, Any]]:
    found = {}
    for manifest in await list_manifests(target):
        lines = [json.loads(line) async for line in read_lines(target, manifest)]
        assert len(lines) == manifest.rows
        for line in lines:
            assert line["run_id"] not in found
            found[line["run_id"]] = {name: line[name] for name in FIELDS}
    return found


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """A real S3 server on loopback, in its own process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys; from moto.server import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        ends = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{url}/history", method="PUT"), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < ends
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(params=["directory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "directory":
        return f"file://{tmp_path}/archive"
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    url = request.getfixturevalue("s3_server")
    return f"s3://history/{tmp_path.name}?endpoint={url}&region=us-east-1"


async def test_archived_runs_are_those_that_the_api_returned(
    harness: EngineHarness, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "ROWS_PER_PAGE", 2)
    monkeypatch.setattr(archiving, "MAX_ROWS_PER_PART", 4)
    shown, target = await history(harness), ObstoreObjects(location)
    assert await age(harness) > 0
    assert await harness.value("select count(*) from runs") == 0
    assert await archive_slice(harness.store, target, SystemClock(), 30) > 0
    assert await archived(target) == shown
    assert await harness.value("select count(*) from pg_class where relname like 'expired_%'") == 0
    assert (await archive.backlog(harness.store)).batches == 0
    manifests = [manifest for manifest in await list_manifests(target) if manifest.rows]
    assert max(len(manifest.parts) for manifest in manifests) >= 3  # two tenants, one with several parts

    command = CliRunner()
    day = manifests[0].day.isoformat()
    listed = await asyncio.to_thread(command.invoke, cli, ["archive", "list", "--archive", location, "-o", "name"])
    assert day in listed.output.split()
    printed = await asyncio.to_thread(command.invoke, cli, ["archive", "cat", day, "--archive", location])
    assert {json.loads(line)["run_id"] for line in printed.output.splitlines()} <= shown.keys()
    checked = await asyncio.to_thread(command.invoke, cli, ["archive", "verify", "--archive", location])
    assert (checked.exit_code, checked.output.split(" are damaged")[0][-1]) == (0, "0")
    await target.put(manifests[0].parts[0].path, b"rotten")
    checked = await asyncio.to_thread(command.invoke, cli, ["archive", "verify", "--archive", location])
    assert checked.exit_code == 1
    assert "another size or digest" in checked.output
    with pytest.raises(NotFound):
        await target.get("runs/nothing")


SCRIPT = """
import asyncio, sys
from datetime import datetime, timedelta
from bellringer.backends.object_store import ObstoreObjects
from bellringer.clock import SystemClock
from bellringer.engine import archive, prune
from bellringer.engine.prune import Retention
from bellringer.store.connection_pool import Store

async def main(dsn, location):
    archive.ROWS_PER_PAGE, archive.MAX_ROWS_PER_PART = 2, 4
    store = await Store.open(dsn, size=2)
    keep = Retention(runs=timedelta(days=5), dead_letters=timedelta(days=5))
    await prune.prune(store, await store.now(), keep, archives=True)
    await archive.archive_slice(store, ObstoreObjects(location), SystemClock(), 30)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""
POINTS = ("uploaded:2", "uploaded:3", "recorded:2", "verified:1", "manifest:1", "archived:1", "dropped:1")


class Crash(BaseException):
    """Ends the step as SIGKILL does: nothing catches it."""


@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_between_any_two_steps_loses_and_doubles_nothing(
    harness: EngineHarness, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "ROWS_PER_PAGE", 2)
    monkeypatch.setattr(archiving, "MAX_ROWS_PER_PART", 4)
    shown, target = await history(harness), ObstoreObjects(f"file://{tmp_path}/archive")
    await age(harness)
    name, nth = point.split(":")
    passed: list[str] = []

    def crash(reached: str) -> None:
        passed.append(reached)
        if passed.count(f"archive.{name}") == int(nth) and reached == f"archive.{name}":
            raise Crash

    monkeypatch.setattr(archiving, "fault_point", crash)
    with pytest.raises(Crash):
        await archive_slice(harness.store, target, SystemClock(), 30)
    monkeypatch.setattr(archiving, "fault_point", lambda _: None)
    await archive_slice(harness.store, target, SystemClock(), 30)
    assert await archived(target) == shown
    assert await harness.value("select count(*) from pg_class where relname like 'expired_%'") == 0


async def test_a_killed_process_is_continued_by_the_next(harness: EngineHarness, dsn: str, tmp_path: Path) -> None:
    shown, location = await history(harness), f"file://{tmp_path}/archive"
    await harness.set_clock(harness.noon + 8 * DAY)
    for fault, code in (("archive.uploaded:kill:2", -signal.SIGKILL), ("", 0)):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", SCRIPT, dsn, location],
            env={**os.environ, "BELLRINGER_FAULT": fault},
            capture_output=True,
            check=False,
        )
        assert done.returncode == code, done.stderr.decode()
    assert await archived(ObstoreObjects(location)) == shown


class Broken:
    """An archive that refuses, or that loses what it accepted."""

    def __init__(self, inner: ObjectStore, *, refuses: bool) -> None:
        self.inner, self.refuses = inner, refuses

    async def put(self, path: str, data: bytes) -> None:
        if self.refuses:
            raise Unavailable("no route to the archive")
        await self.inner.put(path, data[:-1])

    async def get(self, path: str) -> bytes:
        return await self.inner.get(path)

    async def list(self, prefix: str) -> list[str]:
        return await self.inner.list(prefix)


@pytest.mark.parametrize("refuses", [True, False])
async def test_runs_are_kept_while_the_archive_is_unreachable_or_damaged(
    harness: EngineHarness, tmp_path: Path, refuses: bool
) -> None:
    shown, target = await history(harness), ObstoreObjects(f"file://{tmp_path}/archive")
    await age(harness)
    with pytest.raises(Unavailable if refuses else ArchiveDamaged):
        await archive_slice(harness.store, Broken(target, refuses=refuses), SystemClock(), 30)
    waiting = await archive.backlog(harness.store)
    assert waiting.failing == 1
    assert await harness.value("select count(*) from archive_batches where problem is not null and state = 'open'") == 1
    if refuses:  # parts that were damaged on their way stay damaged, and stay reported
        await archive_slice(harness.store, target, SystemClock(), 30)
        assert await archived(target) == shown


async def test_a_day_with_an_unfinished_run_is_neither_archived_nor_dropped(
    harness: EngineHarness, tmp_path: Path
) -> None:
    seat = await harness.join_worker("demo")
    sent = await harness.send(task="demo")
    await harness.fail(seat, await harness.claim(seat))
    await age(harness)
    assert await harness.value("select count(*) from runs where job_id = $1", sent.key.job_id) == 1
    target = ObstoreObjects(f"file://{tmp_path}/archive")
    await archive_slice(harness.store, target, SystemClock(), 30)
    assert sent.key.id not in await archived(target)
