"""An upgrade and the way back, with real processes of the previous release and of this one, under load."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest
from bench.rolling.fleet import environment_of_this_release
from bench.rolling.judge import RecordedStart, judge, read_executions
from bench.rolling.restarts import finish, loaded_fleet, restart_all
from tests.support.previous_release import PreviousRelease

from bellringer.store.connection_pool import Store, connect
from bellringer.testing.postgres import TestServer
from bellringer.verify import checker
from bellringer.verify.findings import Finding, VerifyScope

JOBS, SENDS_PER_SECOND = 20, 20
LATEST_MS = 15_000.0  # no start may be later, even on a busy machine; a lost shard or worker would cost more


@pytest.fixture
async def old_dsn(bellringer_server: TestServer, previous_release: PreviousRelease) -> AsyncIterator[str]:
    """A database of the previous release."""
    dsn = await bellringer_server.create_empty()
    done = previous_release.run("migrate", dsn=dsn)
    assert done.returncode == 0, done.stderr
    yield dsn
    await bellringer_server.drop(dsn)


async def bellringer(*command: str, dsn: str) -> list[str]:
    """Runs a command of this release; returns the lines that it prints."""
    environ = {**environment_of_this_release(), "BELLRINGER_DSN": dsn}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bellringer", *command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, f"{out.decode()}{err.decode()}"
    return out.decode().splitlines()


async def releases(dsn: str) -> set[str]:
    """The releases of the live schedulers and workers."""
    connection = await connect(dsn)
    try:
        rows = await connection.fetch(
            "select version from nodes union select version from workers where state in ('live', 'draining')"
        )
    finally:
        await connection.close()
    return {row["version"] for row in rows}


async def verify(dsn: str, until: int, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Verifies all occurrences up to a second, after which the schedulers were stopped."""
    monkeypatch.setattr(checker, "MIN_AGE", timedelta(0))  # all runs have ended, so none is too young
    end = datetime.fromtimestamp(until, UTC)
    scope = VerifyScope(start=end - timedelta(hours=1), end=end)
    findings: list[Finding] = []
    connection = await connect(dsn)
    try:
        await checker.verify(connection, scope, findings.append)
    finally:
        await connection.close()
    return findings


@pytest.mark.cluster
@pytest.mark.timeout(600)  # 22 processes start one after another; on an idle machine all of it takes less than a minute
async def test_an_upgrade_and_the_way_back_miss_and_double_nothing(
    old_dsn: str, previous_release: PreviousRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = previous_release.environ, environment_of_this_release()
    this = metadata.version("bellringer")
    async with loaded_fleet(
        old_dsn, tmp_path, before, jobs=JOBS, sends=SENDS_PER_SECOND, schedulers=2, workers=2
    ) as fleet:
        first = int(time.time()) + 2
        assert await releases(old_dsn) == {previous_release.version}
        plan = await bellringer("migrate", "plan", dsn=old_dsn)
        assert [line for line in plan if line.endswith("keep working")]

        assert (await bellringer("migrate", dsn=old_dsn))[-2].endswith("applied; the schema is current")
        for name in ("server-1", "worker-1", "scheduler-1"):  # a process of the old release may be restarted
            await fleet.replace(name, before)
        assert await releases(old_dsn) == {previous_release.version}

        await fleet.start("sender", "sender-2", after, str(SENDS_PER_SECOND))
        await fleet.replace_by_kind(after)
        assert await releases(old_dsn) == {this}

        await fleet.replace_by_kind(before)
        assert await releases(old_dsn) == {previous_release.version}
        verdict = await finish(fleet, JOBS, first)
    assert (verdict.missed, verdict.doubled, verdict.lost_attempts) == ([], [], 0)
    assert (fleet.not_ready, fleet.errors) == ([], [])
    assert verdict.executed > JOBS * 10
    assert verdict.late_max_ms < LATEST_MS
    assert await verify(old_dsn, verdict.last, monkeypatch) == []


@pytest.mark.cluster
async def test_a_rolling_restart_misses_and_doubles_nothing(dsn: str) -> None:
    """A smaller version of `python -m bench rolling`."""
    figures = await restart_all(dsn, 100, schedulers=2, workers=2, by_kind=True)
    verdict = figures.verdict
    assert (verdict.missed, verdict.doubled, verdict.lost_attempts) == ([], [], 0)
    assert (figures.not_ready, figures.failed_requests) == ([], [])
    assert figures.restarts == 6
    assert verdict.executed > 500
    assert verdict.late_max_ms < LATEST_MS


async def test_the_judge_finds_what_is_missed_doubled_and_lost(store: Store, dsn: str, tmp_path: Path) -> None:
    lines = [
        RecordedStart("job-0", "run_a", 1, 100.0, 100.1),
        RecordedStart("job-0", "run_b", 1, 101.0, 101.5),
        RecordedStart("job-0", "run_b", 2, 101.0, 102.0),
        RecordedStart("job-1", "run_c", 1, 100.0, 100.2),
        RecordedStart("job-1", "run_d", 1, 100.0, 100.2),
    ]
    text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    (tmp_path / f"executed-{os.getpid()}").write_text(text)
    (tmp_path / "sent-1").write_text("s-1 run_a\ns-2 run_z\n")
    assert read_executions(tmp_path) == lines
    verdict = await judge(dsn, tmp_path, 2, 100, 101)
    assert verdict.missed == ["job-1 at 101", "s-2 run_z"]
    assert verdict.doubled == ["job-0 run_b attempt 1", "job-1 at 100 has 2 runs"]
    assert verdict.late_max_ms == 500.0
