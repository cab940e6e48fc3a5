"""Loops report their progress: failures count as progress for health, but not for ages and readiness."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from bellringer.core import loop_progress
from bellringer.core.background_loops import run_every
from bellringer.core.loop_progress import (
    METRICS_FOLDER_VARIABLE,
    LoopState,
    check_health,
    check_readiness,
    loop_role,
    loops_of_all_processes,
    loops_of_process,
    read_shared,
    track_loop,
    write_shared,
)


def find(name: str) -> LoopState:
    (found,) = [loop for loop in loops_of_process() if loop.name == name]
    return found


def age_of(name: str) -> float | None:
    return REGISTRY.get_sample_value("bellringer_loop_age_seconds", {"role": "worker", "loop": name})


async def test_a_step_that_hangs_is_named_and_a_step_that_fails_is_not() -> None:
    loop_role.set("worker")

    async def fails() -> None:
        raise RuntimeError("no database")

    tasks = [
        asyncio.create_task(run_every(0.01, fails, name="failing", step_seconds=0.1)),
        asyncio.create_task(run_every(0.01, asyncio.Event().wait, name="hanging", step_seconds=0.1)),
    ]
    try:
        await asyncio.sleep(0.5)
        healthy, document = check_health([find("hanging")])
        assert not healthy
        assert document["status"] == "stalled"
        assert list(document["checks"]) == ["worker hanging"]
        assert find("failing").age_seconds > 0.4, "a failed iteration is no success"
        assert find("failing").silent_seconds < 0.4, "but it ended"
        assert (age_of("hanging") or 0) > 0.4
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    assert age_of("hanging") is None, "a loop that has ended is not reported"


def test_readiness_needs_a_recent_success_of_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_readiness([], "worker")[1]["checks"] == {"process": "starting or stopping"}
    loop_role.set("worker")
    with track_loop("heartbeat", 60) as state:
        assert check_readiness([state], "worker")[0]
        assert not check_readiness([state], "scheduler")[0]
        state.succeeded_at -= loop_progress.READY_SECONDS + 1
        assert check_readiness([state], "worker") == (
            False,
            {"status": "not_ready", "checks": {"database": "no answer for 16 s"}},
        )


def test_processes_read_the_loops_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_FOLDER_VARIABLE, str(tmp_path))
    with track_loop("shared", 5) as state:
        state.ended_at -= 10
        write_shared()
        (tmp_path / f"loops_{os.getppid()}.json").write_bytes((tmp_path / f"loops_{os.getpid()}.json").read_bytes())
        (tmp_path / "loops_4194305.json").write_text("[]")  # no process has this id
        assert [loop.name for loop in loops_of_all_processes()].count("shared") == 2
    assert not (tmp_path / "loops_4194305.json").exists()
    healthy, document = check_health(read_shared(tmp_path, without=os.getpid()))
    assert not healthy
    assert "shared" in next(iter(document["checks"]))
