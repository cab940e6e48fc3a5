"""Retime: hands follow new rules of the time zones, shard by shard, and every move is on record."""

from __future__ import annotations

import asyncio
import struct
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.leases import Holding
from bellringer.engine import tzdata_update as retiming
from bellringer.engine.tzdata_update import RetimePass, is_up_to_date, newest_rules, plan_corrections
from bellringer.schedule import cron, every, time_zones
from bellringer.schedule.time_zones import TzRules, tz_version
from bellringer.scheduler.monitoring import Monitoring
from bellringer.store import tzdata
from bellringer.store.cohorts import Cohort
from bellringer.store.tzdata import AppliedRules, Correction
from bellringer.telemetry import TZ_BEHIND

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

SYSTEM = zoneinfo.TZPATH
ZONE = "Test/Island"
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
Decree = Callable[[float], None]


@pytest.fixture
def decree(tmp_path: Path) -> Iterator[Decree]:
    """An island whose government decides how many hours ahead of UTC it lives; at first, none."""

    def rule(hours: float) -> None:
        offset = round(hours * 3600)
        head = b"TZif2" + bytes(15)
        body = struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", offset, 0, 0) + b"TST\0"
        west = "-" if offset > 0 else "+"  # POSIX counts to the west
        footer = f"\n<TST>{west}{abs(offset) // 3600}:{abs(offset) % 3600 // 60:02d}\n".encode()
        (tmp_path / "Test").mkdir(exist_ok=True)
        (tmp_path / ZONE).write_bytes(head + body + head + body + footer)
        zoneinfo.reset_tzpath(to=[str(tmp_path), *SYSTEM])
        _forget()

    rule(0)
    yield rule
    zoneinfo.reset_tzpath(to=SYSTEM)
    _forget()


def _forget() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    for kept in vars(time_zones).values():
        if hasattr(kept, "cache_clear") and not isinstance(kept, FunctionType):
            kept.cache_clear()


async def rules(harness: EngineHarness, version: str) -> TzRules:
    await harness.sql("insert into tz_versions (version) values ($1) on conflict do nothing", version)
    return next(r for r in await tzdata.list_versions(harness.store) if r.version == version)


async def retime(harness: EngineHarness, version: str, holding: Holding | None = None) -> RetimePass:
    if holding is None:
        holding = harness.holding if harness.holding.tokens else await harness.hold()
    now = await harness.now()
    return await retiming.retime_cohorts(harness.store, harness.catalog, holding, now, await rules(harness, version))


async def hand(harness: EngineHarness, job: UUID) -> float:
    """Where the hand of a job stands, in hours after noon."""
    at = await harness.value(
        "select min(c.next_at) from cohorts c join jobs j on j.shard = c.shard and c.schedule_id = any (j.schedule_ids)"
        " where j.job_id = $1",
        job,
    )
    return round(harness.seconds(at) / 3600, 4)


async def moves(harness: EngineHarness) -> list[tuple[str, float, float]]:
    rows = await harness.sql(
        "select version, old_next, new_next from tz_moves join tz_versions using (tz_id) order by tz_id, old_next"
    )
    return [(version, harness.seconds(old) / 3600, harness.seconds(new) / 3600) for version, old, new in rows]


async def followed(harness: EngineHarness) -> set[str]:
    return {applied.rules.version for applied in (await tzdata.applied_rules(harness.store)).values()}


AT_13 = "0 13 * * *"


@pytest.mark.parametrize(
    ("hours", "place"),
    [(-2, 3), (-0.5, 1.5), (0.5, 0.5), (2, 23), (1, 0)],
    ids=["later", "by half an hour", "earlier", "never into the past", "to this very moment"],
)
async def test_a_cohort_goes_where_new_rules_say(
    harness: EngineHarness, decree: Decree, hours: float, place: float
) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    assert await hand(harness, job) == 1
    decree(hours)
    done = await retime(harness, "2026b")
    assert (done.moved, len(done.shards)) == (1, 64)
    assert await hand(harness, job) == place
    assert await moves(harness) == [("2026b", 1, place)]
    assert await followed(harness) == {"2026b"}


async def test_it_fires_by_the_new_rules_and_not_by_the_old(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    decree(-2)
    await retime(harness, "2026b")
    await harness.set_clock(harness.noon + 2 * HOUR)
    assert await harness.tick_all() == 0
    await harness.set_clock(harness.noon + 3 * HOUR)
    assert await harness.tick_all() == 1
    assert await harness.fired(job) == [3 * 3600]
    assert await hand(harness, job) == 27


async def test_what_a_cohort_waited_for_and_now_lies_in_the_past_is_a_gap(
    harness: EngineHarness, decree: Decree
) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    await harness.set_clock(harness.noon + HOUR / 2)
    newcomer = await harness.job("newcomer", cron(AT_13, tz=ZONE))
    decree(0.75)
    await retime(harness, "2026b")
    assert await hand(harness, job) == 24.25
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["count"], gap["reason"]) == (15 * 60, 1, "retimed")
    assert gap["to_at"] == pytest.approx(15 * 60, abs=0.001)
    assert await harness.gaps(newcomer) == []


async def test_what_has_run_is_not_a_gap(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    await harness.set_clock(harness.noon + HOUR)
    await harness.tick_all()
    await harness.pass_time(60)
    decree(-2)
    await retime(harness, "2026b")
    assert await hand(harness, job) == 3
    decree(0)  # the government thinks better of it: what the hand waits for is what has run
    await harness.seize()
    await retime(harness, "2026c")
    assert await hand(harness, job) == 25
    assert await harness.gaps(job) == []


async def test_cohorts_that_no_zone_moves_stay(harness: EngineHarness, decree: Decree) -> None:
    steady = [
        await harness.job("interval", every("1h")),
        await harness.job("utc", cron(AT_13)),
        await harness.job("paris", cron("0 3 1 1 *", tz="Europe/Paris")),
    ]
    before = [await hand(harness, job) for job in steady]
    decree(-2)
    assert (await retime(harness, "2026b")).moved == 0
    assert [await hand(harness, job) for job in steady] == before
    assert await moves(harness) == []
    assert await followed(harness) == {"2026b"}


async def test_what_was_looked_through_is_not_looked_at_again(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    await retime(harness, "2026b")
    decree(-2)  # the same version cannot say otherwise: were it looked at, the hand would move
    assert (await retime(harness, "2026b")).moved == 0
    await harness.seize()  # a new holder of the same rules need not look either
    assert (await retime(harness, "2026b")).moved == 0
    assert await hand(harness, job) == 1


async def test_a_holder_that_said_nothing_makes_the_next_one_look(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    decree(-2)
    await retime(harness, "2026b")
    decree(0)
    await harness.seize()  # an older node, which fires by its own rules and dies before it says so
    await harness.set_clock(harness.noon + 3 * HOUR)
    await harness.tick_all()
    assert await hand(harness, job) == 25
    await harness.pass_time(1)
    decree(-2)
    await harness.seize()
    assert (await retime(harness, "2026b")).moved == 1
    assert await hand(harness, job) == 27


async def test_a_holder_with_older_rules_moves_nothing_and_says_by_which_it_fires(
    harness: EngineHarness, decree: Decree
) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    decree(-2)
    await retime(harness, "2026b")
    decree(0)
    await harness.seize()
    assert (await retime(harness, "2026a")).moved == 0
    assert await hand(harness, job) == 3
    assert await followed(harness) == {"2026a"}
    assert (await newest_rules(harness.store, await rules(harness, "2026a"))).version == "2026b"
    await harness.set_clock(harness.noon + 3 * HOUR)
    await harness.tick_all()  # by the older rules
    assert await hand(harness, job) == 25
    await harness.pass_time(1)
    decree(-2)
    await harness.seize()
    assert (await retime(harness, "2026b")).moved == 1
    assert await hand(harness, job) == 27


@pytest.mark.parametrize(
    ("applied", "token", "version", "settled"),
    [
        (None, 1, "2026a", False),
        (("2026a", 7), 7, "2026a", True),
        (("2026a", 7), 8, "2026a", True),
        (("2026a", 7), 9, "2026a", False),
        (("2026a", 7), 7, "2026b", False),
        (("2026b", 7), 9, "2026a", True),
    ],
)
def test_a_shard_is_settled_while_its_holders_follow_one_another(
    applied: tuple[str, int] | None, token: int, version: str, settled: bool
) -> None:
    number = {"2026a": 1, "2026b": 2}
    known = applied and AppliedRules(rules=TzRules(number[applied[0]], applied[0]), token=applied[1])
    assert is_up_to_date(known, token, TzRules(number[version], version)) is settled


async def test_a_stale_holder_is_refused(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    stale = await harness.hold()
    await harness.seize()
    decree(-2)
    done = await retime(harness, "2026b", stale)
    assert (done.moved, done.shards) == (0, frozenset())
    assert await hand(harness, job) == 1
    assert await followed(harness) == set()


async def test_two_nodes_retime_at_once_and_each_cohort_moves_once(harness: EngineHarness, decree: Decree) -> None:
    jobs = [await harness.job(f"job {n}", cron(f"{n} 13 * * *", tz=ZONE)) for n in range(20)]
    all_shards = await harness.hold()
    halves = [
        Holding(all_shards.holder, {s: t for s, t in all_shards.tokens.items() if s % 2 == half}) for half in (0, 1)
    ]
    decree(-2)
    done = await asyncio.gather(*(retime(harness, "2026b", half) for half in (*halves, all_shards)))
    assert sum(d.moved for d in done) == 20
    assert [await hand(harness, job) for job in jobs] == [round(3 + n / 60, 4) for n in range(20)]
    assert len(await moves(harness)) == 20


async def test_a_kill_between_two_chunks_loses_nothing(
    harness: EngineHarness, decree: Decree, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.share_shard(5)
    jobs = [await harness.job(f"job {n}", cron(f"{n} 13 * * *", tz=ZONE)) for n in range(5)]
    monkeypatch.setattr(retiming, "COHORTS_PER_CHUNK", 2)
    write, calls = tzdata.move_cohorts, 0

    async def killed(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return await write(*arguments)

    monkeypatch.setattr(tzdata, "move_cohorts", killed)
    decree(-2)
    with pytest.raises(KeyboardInterrupt):
        await retime(harness, "2026b")
    assert len(await moves(harness)) == 2
    assert 5 not in await tzdata.applied_rules(harness.store)
    done = await retime(harness, "2026b")
    assert (done.moved, len(done.shards)) == (3, 64)
    assert [await hand(harness, job) for job in jobs] == [round(3 + n / 60, 4) for n in range(5)]
    assert len(await moves(harness)) == 5


async def test_a_cohort_that_moves_meanwhile_is_looked_at_again(
    harness: EngineHarness, decree: Decree, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    read = tzdata.zoned_cohorts

    async def overtaken(*arguments: Any) -> list[Cohort]:
        found = await read(*arguments)
        if found:  # a tick, or a job that joined anew
            await harness.sql("update cohorts set next_at = next_at + interval '1 day'")
        return found

    decree(-2)
    with monkeypatch.context() as patch:
        patch.setattr(tzdata, "zoned_cohorts", overtaken)
        done = await retime(harness, "2026b")
    assert (done.moved, len(done.shards)) == (0, 63)
    assert await hand(harness, job) == 25
    assert (await retime(harness, "2026b")).shards == frozenset(range(64))
    assert await hand(harness, job) == 3


async def test_an_edit_goes_before_or_after_and_the_job_keeps_one_cohort(
    harness: EngineHarness, decree: Decree
) -> None:
    jobs = [await harness.job(f"job {n}", cron(f"{n} 13 * * *", tz=ZONE)) for n in range(10)]
    await harness.hold()
    decree(-2)
    later = cron("30 14 * * *", tz=ZONE)
    edits = [harness.change(job, harness.definition(f"job {n}", later)) for n, job in enumerate(jobs)]
    await asyncio.gather(retime(harness, "2026b"), *edits)
    await retime(harness, "2026c")  # hands that joined while it looked
    assert {await hand(harness, job) for job in jobs} == {4.5}


@pytest.mark.parametrize("column", ["cursor", "target_at"])
async def test_a_cohort_in_the_middle_of_something_is_left(harness: EngineHarness, decree: Decree, column: str) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    values = {"cursor": UUID(int=1), "target_at": harness.noon}
    await harness.sql(f"update cohorts set {column} = $1", values[column])
    decree(-2)
    assert (await retime(harness, "2026b")).moved == 0
    begun = Correction(
        (await harness.due_cohorts(harness.noon + 2 * HOUR))[0], harness.noon + 3 * HOUR
    )  # since it was read
    assert (
        await tzdata.move_cohorts(harness.store, harness.holding, await rules(harness, "2026b"), [begun])
    ).moved == 0
    assert await hand(harness, job) == 1


async def test_what_was_fired_ahead_of_its_time_is_not_a_move(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron("* * * * * *", seconds=True, tz=ZONE))
    await harness.pass_time(0.5)
    await harness.tick_all(lead=1)
    assert await harness.fired(job) == [1]
    assert await hand(harness, job) == round(2 / 3600, 4)
    done = await retime(harness, "2026b")
    assert (done.moved, len(done.shards)) == (0, 64)
    assert await hand(harness, job) == round(2 / 3600, 4)


async def test_a_cohort_does_not_go_back_to_what_was_fired_ahead(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron("0 13 * * *", tz=ZONE))
    await harness.set_clock(harness.noon + HOUR - 0.5 * SECOND)
    await harness.tick_all(lead=1)
    assert await harness.fired(job) == [3600]
    assert await hand(harness, job) == 25
    wrong = Correction((await harness.due_cohorts(harness.noon + 26 * HOUR))[0], harness.noon + HOUR)
    fired = await tzdata.move_cohorts(harness.store, harness.holding, await rules(harness, "2026b"), [wrong])
    assert fired.moved == 0
    assert await hand(harness, job) == 25


def test_where_cohorts_should_be_is_worked_out_purely(decree: Decree) -> None:
    now = datetime.fromisoformat("2026-06-01T12:00:00+00:00")
    schedules = {1: cron(AT_13, tz=ZONE), 2: cron("0 0 1 1 *", tz=ZONE)}
    hands: Sequence[Cohort] = [Cohort(now + HOUR, 0, 1), Cohort(now + HOUR, 1, 1), Cohort(now + HOUR, 0, 9)]
    assert plan_corrections(hands, schedules, now) == []
    decree(-2)
    assert [(move.cohort, move.to) for move in plan_corrections(hands, schedules, now)] == [
        (hands[0], now + 3 * HOUR),
        (hands[1], now + 3 * HOUR),
    ]


async def test_the_rules_of_this_process_have_one_number(harness: EngineHarness) -> None:
    number = await tzdata.local_tz_id(harness.store)
    assert number == await tzdata.local_tz_id(harness.store)
    assert await harness.value("select version from tz_versions where tz_id = $1", number) == tz_version()
    assert await harness.value("select count(*) from tz_versions") == 1


async def test_a_node_looks_through_its_shards_once_a_lease(harness: EngineHarness, decree: Decree) -> None:
    job = await harness.job("job", cron(AT_13, tz=ZONE))
    node = Monitoring(harness.store, harness.catalog)
    decree(-2)
    assert await node.retime(await harness.hold()) == 1
    await harness.sql("delete from tz_applied")
    decree(-3)
    assert await node.retime(harness.holding) == 0
    assert await node.retime(await harness.seize()) == 1
    assert await hand(harness, job) == 4


async def test_a_node_with_older_rules_says_so_and_one_with_the_newest_does_not(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Monitoring(harness.store, harness.catalog)
    await node.check_rules()
    assert TZ_BEHIND._value.get() == 0
    await rules(harness, "9999z")
    await node.check_rules()
    assert TZ_BEHIND._value.get() == 1
    await harness.sql("delete from tz_versions where version = '9999z'")
    monkeypatch.setattr(
        "bellringer.scheduler.monitoring.installed_tz_version", lambda: "9999z"
    )  # an upgrade under its feet
    await node.check_rules()
    assert TZ_BEHIND._value.get() == 1
