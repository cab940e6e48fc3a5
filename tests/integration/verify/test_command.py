"""`bellringer verify`: its exit codes, its words and its JSON."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from bellringer.cli import cli
from bellringer.core.policies import Misfire, Overlap
from bellringer.schedule import every

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.engine_harness import EngineHarness


async def call(dsn: str, *arguments: str) -> Result:
    environ = {"BELLRINGER_DSN": dsn}
    return await asyncio.to_thread(CliRunner().invoke, cli, ["verify", *arguments], None, environ)


@pytest.fixture
async def tens(harness: EngineHarness) -> UUID:
    """A job every ten seconds, two minutes of whose life are over; the last 70 s are not judged."""
    job_id = await harness.job("tens", every("10s"))
    for _ in range(12):
        await harness.pass_time(10)
        await harness.tick_all()
    return job_id


async def test_a_clean_window_exits_with_0(dsn: str, tens: UUID) -> None:
    result = await call(dsn)
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert (lines["jobs"], lines["expected"], lines["created"], lines["verdict"]) == ("1", "4", "4", "clean")
    assert not {"skipped", "pending"} & lines.keys()


async def test_an_empty_window_is_not_called_clean(dsn: str) -> None:
    result = await call(dsn)
    assert result.exit_code == 0, result.output
    assert "verdict      nothing to check: no occurrence was expected" in result.output


async def test_what_was_skipped_and_what_is_pending_are_reported_only_if_there_is_some(
    harness: EngineHarness, dsn: str
) -> None:
    await harness.job("slow", every("10s"), overlap=Overlap.SKIP, misfire=Misfire.FIRE_ALL)
    seat = await harness.join_worker()
    for _ in range(3):
        await harness.pass_time(10)
        await harness.tick_all()
        await harness.claim(seat)
    await harness.pass_time(300)
    await harness.tick_all()
    result = await call(dsn)
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert (lines["expected"], lines["created"], lines["skipped"], lines["pending"]) == (
        "25",
        "1",
        "2 by overlap",
        "22",
    )


async def test_a_finding_exits_with_1_and_is_reported(harness: EngineHarness, dsn: str, tens: UUID) -> None:
    await harness.sql("delete from runs where scheduled_for = $1", harness.after(30))
    result = await call(dsn, "--from", "1h")
    assert result.exit_code == 1
    moment = f"{harness.after(30):%Y-%m-%dT%H:%M:%SZ}"
    assert f"missing    {moment}  tens  neither a run nor a gap" in result.output
    assert result.output.endswith("not clean\n")
    assert (await call(dsn, "--to", f"{harness.after(30):%Y-%m-%dT%H:%M:%SZ}")).exit_code == 0


async def test_json_is_a_line_for_each_finding_and_one_for_the_sums(
    harness: EngineHarness, dsn: str, tens: UUID
) -> None:
    await harness.sql("delete from runs where scheduled_for <= $1", harness.after(20))
    result = await call(dsn, "--json", "--job", "tens")
    assert result.exit_code == 1
    *findings, last = [json.loads(line) for line in result.output.splitlines()]
    assert [finding["finding"] for finding in findings] == ["missing", "missing"]
    assert {finding["job_id"] for finding in findings} == {str(tens)}
    assert (last["summary"]["missing"], last["summary"]["created"], last["summary"]["clean"]) == (2, 2, False)


async def test_late_runs_are_wrong_only_if_strict(harness: EngineHarness, dsn: str, tens: UUID) -> None:
    await harness.sql(
        "update runs set fired_at = scheduled_for + $2 where scheduled_for = $1",
        harness.after(30),
        timedelta(minutes=2),
    )
    assert (await call(dsn)).exit_code == 0
    assert (await call(dsn, "--late-after", "3m", "--strict")).exit_code == 0
    assert (await call(dsn, "--strict")).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--from", "yesterday"], 2, "--from 'yesterday' cannot be read"),
        (["--from", "1h", "--to", "2h"], 2, "nothing can be judged"),
        (["--job", "nothing"], 4, "there was no job 'nothing'"),
        (["--tenant", "nobody"], 4, "there is no tenant 'nobody'"),
    ],
)
async def test_a_wrong_call_is_reported(dsn: str, tens: UUID, arguments: list[str], code: int, says: str) -> None:
    result = await call(dsn, *arguments)
    assert result.exit_code == code
    assert says in result.output
