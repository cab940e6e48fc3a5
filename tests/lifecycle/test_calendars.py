"""Calendars: names become content when a job is registered, and jobs follow what changes."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.errors import Conflict, InvalidInput, InvalidSchedule, NotFound
from bellringer.lifecycle import calendars as step
from bellringer.lifecycle import register
from bellringer.schedule import Calendar, Cron, Schedule, cron, crontab, daysoff, every, recurrence, rrule
from bellringer.store import calendars, jobs, reasons, revisions
from bellringer.store.names import Names
from bellringer.store.pool import connect
from bellringer.verify import Asked, Finding, verify

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

DAY = timedelta(days=1)


def a_calendar(name: str, *dates: date, weekend: frozenset[int] = frozenset()) -> Calendar:
    return Calendar(name=name, dates=frozenset(dates), weekend=weekend)


async def put(bench: Bench, calendar: Calendar, most: int = 10_000) -> int:
    version = await step.put(bench.store, calendar, tenant_id=bench.tenant, who="me")
    await step.follow(bench.store, bench.names, calendar.name, tenant_id=bench.tenant, who="me", most=most)
    return version


async def digests(bench: Bench, job_id: UUID) -> list[str]:
    schedules = (await bench.read(job_id)).schedules
    return [s.days_off.digest for s in schedules if isinstance(s, Cron) and s.days_off is not None]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that has just started: no calendar is known."""
    monkeypatch.setattr(daysoff, "_known", {})
    for cache in (daysoff._worked, crontab._plan, recurrence._plan):
        cache.cache_clear()


# Keeping them


async def test_a_version_counts_on_only_where_the_content_differs(bench: Bench) -> None:
    first, second = a_calendar("de", date(2026, 12, 25)), a_calendar("de", date(2026, 12, 26))
    assert [await put(bench, c) for c in (first, first, second, first)] == [1, 1, 2, 3]
    kept = await calendars.get(bench.store, 1, "de")
    assert kept is not None
    assert (kept.calendar, kept.version, kept.changed_by) == (first, 3, "me")


async def test_the_weekend_is_part_of_the_content(bench: Bench) -> None:
    assert await put(bench, a_calendar("de", weekend=frozenset({5, 6}))) == 1
    assert await put(bench, a_calendar("de", weekend=frozenset({4, 5}))) == 2


async def test_a_calendar_that_cannot_be_used_is_refused_and_not_kept(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="every day is a day off"):
        await put(bench, a_calendar("none", weekend=frozenset(range(7))))
    assert await calendars.get(bench.store, 1, "none") is None


async def test_two_who_put_at_once_take_two_versions(bench: Bench) -> None:
    days = [date(2026, 1, n) for n in range(1, 9)]
    versions = await asyncio.gather(
        *(step.put(bench.store, a_calendar("de", day), tenant_id=1, who="me") for day in days)
    )
    assert sorted(versions) == list(range(1, 9))


async def test_tenants_have_their_own(bench: Bench) -> None:
    [second] = await bench.tenants(1)
    await put(bench, a_calendar("de"))
    assert await calendars.get(bench.store, second, "de") is None
    with pytest.raises(InvalidSchedule):
        await bench.of(second).job("job", cron("0 9 * * *", calendar="de"))


# Registering with them


async def test_a_day_off_has_no_run_and_the_next_day_has(bench: Bench) -> None:
    today = bench.noon.date()
    await put(bench, a_calendar("de", today))
    job_id = await bench.job("job", cron("30 12 * * *", calendar="de"))
    await bench.pass_time(3600)
    await bench.tick_all()
    assert await bench.fired(job_id) == []
    await bench.set_clock(bench.noon + DAY + timedelta(minutes=30))
    await bench.tick_all()
    assert await bench.fired(job_id) == [86_400 + 1800]


async def test_a_name_that_is_not_known_is_refused_with_the_nearest(bench: Bench) -> None:
    await put(bench, a_calendar("germany"))
    with pytest.raises(InvalidSchedule) as refused:
        await bench.job("job", cron("0 9 * * *"), cron("0 9 1 * *", calendar="germny"))
    assert (refused.value.code, refused.value.pointer) == ("calendar_unknown", "/schedules/1/calendar")
    assert refused.value.hint == "did you mean germany?"
    assert await jobs.find(bench.store, 1, "job") is None


async def test_a_digest_that_the_caller_made_up_is_replaced(bench: Bench) -> None:
    await put(bench, a_calendar("de", date(2026, 12, 25)))
    job_id = await bench.job("job", cron("0 9 * * *", calendar="de", calendar_digest="0" * 32))
    assert await digests(bench, job_id) == [a_calendar("de", date(2026, 12, 25)).digest]


async def test_equal_content_is_one_schedule_whatever_its_name(bench: Bench) -> None:
    await put(bench, a_calendar("de", date(2026, 12, 25)))
    await put(bench, a_calendar("at", date(2026, 12, 25)))
    first = await bench.read(await bench.job("first", cron("0 9 * * *", calendar="de")))
    second = await bench.read(await bench.job("second", cron("0 9 * * *", calendar="at")))
    plain = await bench.read(await bench.job("plain", cron("0 9 * * *")))
    assert first.schedule_ids == second.schedule_ids != plain.schedule_ids


async def test_declaring_again_changes_nothing_until_the_calendar_does(bench: Bench) -> None:
    await put(bench, a_calendar("de", date(2026, 12, 25)))
    definition = bench.definition("job", cron("H 9 * * *", calendar="de", shift="next"))
    [made] = await bench.declare(definition)
    assert await bench.declare(definition) == []
    await step.put(bench.store, a_calendar("de", date(2026, 12, 26)), tenant_id=1, who="me")
    [changed] = await bench.declare(definition)
    assert (changed.job_id, changed.revision) == (made.job_id, 2)
    assert await bench.declare(definition) == []


async def test_an_h_is_spread_by_the_name_and_stays_when_the_job_is_renamed(bench: Bench) -> None:
    [first, second] = await bench.register(
        bench.definition("a", cron("H H * * *")), bench.definition("b", cron("H H * * *"))
    )
    one, other = [await bench.read(job.job_id) for job in (first, second)]
    assert one.schedule_ids != other.schedule_ids
    assert isinstance(one.schedules[0], Cron)
    assert one.schedules[0].seed == "1:a"
    renamed = bench.definition("c", *one.schedules)
    await bench.change(first.job_id, renamed)
    assert (await bench.read(first.job_id)).schedule_ids == one.schedule_ids


@pytest.mark.parametrize(
    "schedule",
    [
        cron("*/30 * * * *", calendar="de"),
        rrule("FREQ=DAILY;BYHOUR=9,15", start="2026-01-01T09:00", calendar="de", shift="next"),
    ],
    ids=["cron", "rrule"],
)
async def test_a_process_that_has_just_started_reads_what_it_needs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, schedule: Schedule
) -> None:
    await put(bench, a_calendar("de", (bench.noon + 2 * DAY).date()))
    job_id = await bench.job("job", schedule)
    for read in (bench.read, lambda j: reasons.then(bench.store, j, bench.after(1), 1)):
        forget(monkeypatch)
        await read(job_id)
        assert len(daysoff._known) == 1
    forget(monkeypatch)
    names = Names(bench.store)
    [number] = (await bench.read(job_id)).schedule_ids
    forget(monkeypatch)
    found = (await names.schedules([number]))[number]
    assert found.next_after(bench.noon) is not None
    forget(monkeypatch)
    [listed] = await jobs.listing(bench.store, 1, None, 10)
    assert listed.schedules[0].next_after(bench.noon) == found.next_after(bench.noon)


# Following


async def test_jobs_follow_a_change_as_a_revision_that_says_why(bench: Bench) -> None:
    await put(bench, a_calendar("de"))
    job_id = await bench.job("job", cron("0 9 * * *", calendar="de"), cron("0 10 * * *"), tags=("a",), priority=7)
    other = await bench.job("other", every("1h"))
    before = await bench.read(job_id)
    changed = a_calendar("de", date(2026, 12, 25))
    assert await put(bench, changed) == 2
    after = await bench.read(job_id)
    assert await digests(bench, job_id) == [changed.digest]
    assert (after.revision, after.tags, after.priority) == (2, before.tags, before.priority)
    assert after.schedules[1] == before.schedules[1]
    newest, _ = await revisions.newest(bench.store, job_id, 10)
    assert (newest["what"], newest["who"], newest["why"]) == ("changed", "me", "calendar de, version 2")
    assert (await bench.read(other)).revision == 1


async def test_paused_jobs_follow_and_stay_paused(bench: Bench) -> None:
    await put(bench, a_calendar("de"))
    job_id = await bench.job("job", cron("* * * * *", calendar="de"))
    await bench.pause(job_id)
    changed = a_calendar("de", date(2026, 12, 25))
    await put(bench, changed)
    assert await digests(bench, job_id) == [changed.digest]
    await bench.pass_time(120)
    await bench.tick_all()
    assert await bench.fired(job_id) == []


async def test_a_follow_that_broke_off_goes_on_when_it_is_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "CHUNK", 3)
    await put(bench, a_calendar("de"))
    definitions = [bench.definition(f"job {n}", cron("0 9 * * *", calendar="de")) for n in range(8)]
    made = await bench.register(*definitions)
    changed = a_calendar("de", date(2026, 12, 25))
    real, calls = register.change_all, 0

    async def dies(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("the process is gone")
        return await real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(register, "change_all", dies)
    with pytest.raises(ConnectionError):
        await put(bench, changed)
    kept = await calendars.get(bench.store, 1, "de")
    assert kept is not None
    assert (kept.version, kept.jobs, kept.outdated) == (2, 8, 5)
    assert await put(bench, changed) == 2
    kept = await calendars.get(bench.store, 1, "de")
    assert kept is not None
    assert (kept.version, kept.jobs, kept.outdated) == (2, 8, 0)
    assert {(await bench.read(job.job_id)).revision for job in made} == {2}


async def test_a_follow_does_no_more_than_it_may(bench: Bench) -> None:
    await put(bench, a_calendar("de"))
    await bench.register(*(bench.definition(f"job {n}", cron("0 9 * * *", calendar="de")) for n in range(5)))
    await put(bench, a_calendar("de", date(2026, 12, 25)), most=2)
    kept = await calendars.get(bench.store, 1, "de")
    assert kept is not None
    assert kept.outdated == 3


async def test_a_job_that_is_changed_meanwhile_follows_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(bench, a_calendar("de"))
    job_id = await bench.job("job", cron("0 9 * * *", calendar="de"))
    await step.put(bench.store, a_calendar("de", date(2026, 12, 25)), tenant_id=1, who="me")
    real, edits = jobs.some, 0

    async def some(*args: object) -> object:
        nonlocal edits
        read = await real(*args)  # type: ignore[arg-type]
        edits += 1
        if edits == 1:
            await bench.sql("update jobs set revision = revision + 1 where job_id = $1", job_id)
        return read

    monkeypatch.setattr(jobs, "some", some)
    await step.follow(bench.store, bench.names, "de", tenant_id=1, who="me", most=10)
    assert edits == 2
    assert await digests(bench, job_id) == [a_calendar("de", date(2026, 12, 25)).digest]


async def test_a_job_that_can_no_longer_be_registered_keeps_no_other_from_following(bench: Bench) -> None:
    await put(bench, a_calendar("de"))
    bad = await bench.job("bad", cron("0 9 * * *", calendar="de"))
    good = await bench.job("good", cron("0 9 * * *", calendar="de"))
    await bench.sql("update jobs set priority = 42 where job_id = $1", bad)
    changed = a_calendar("de", date(2026, 12, 25))
    await put(bench, changed)
    assert await digests(bench, good) == [changed.digest]
    assert await digests(bench, bad) == [a_calendar("de").digest]


async def test_verify_knows_what_a_calendar_was_at_every_time(
    bench: Bench, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    today, tomorrow = bench.noon.date(), bench.noon.date() + DAY
    await put(bench, a_calendar("de", tomorrow))
    job_id = await bench.job("job", cron("0 * * * *", calendar="de"))
    for hour in range(1, 30):
        await bench.set_clock(bench.noon + timedelta(hours=hour))
        await bench.tick_all()
        if hour == 5:
            await put(bench, a_calendar("de", today))
    fired = [seconds / 3600 for seconds in await bench.fired(job_id)]
    assert fired == [1, 2, 3, 4, 5, *range(12, 30)]
    forget(monkeypatch)
    connection, found = await connect(dsn), list[Finding]()
    await bench.set_clock(bench.noon + timedelta(hours=29, minutes=5))
    try:
        await verify(connection, Asked(start=bench.noon, end=bench.noon + timedelta(hours=29)), found.append)
    finally:
        await connection.close()
    assert found == []


# Deleting


async def test_a_calendar_that_jobs_use_stays(bench: Bench) -> None:
    await put(bench, a_calendar("de"))
    made = [await bench.job(f"job {n}", cron("0 9 * * *", calendar="de")) for n in range(7)]
    with pytest.raises(Conflict) as refused:
        await step.drop(bench.store, "de", tenant_id=1)
    assert refused.value.code == "calendar_in_use"
    assert refused.value.message.count("job ") == 5
    assert refused.value.message.endswith(" and more")
    for job_id in made:
        await bench.retire(job_id)
    await step.drop(bench.store, "de", tenant_id=1)
    with pytest.raises(NotFound):
        await step.drop(bench.store, "de", tenant_id=1)
    assert await calendars.listing(bench.store, 1, None, 10) == []


async def test_a_calendar_that_is_made_anew_counts_on(bench: Bench) -> None:
    await put(bench, a_calendar("de"))
    await step.drop(bench.store, "de", tenant_id=1)
    with pytest.raises(InvalidSchedule):
        await bench.job("job", cron("0 9 * * *", calendar="de"))
    assert await put(bench, a_calendar("de")) == 2
    await bench.job("job", cron("0 9 * * *", calendar="de"))


# Finding


async def test_the_jobs_of_a_calendar_are_found_without_looking_at_others(bench: Bench) -> None:
    await put(bench, a_calendar("de"))
    await bench.job("job", cron("0 9 * * *", calendar="de"))
    await bench.sql(
        "insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedules, pool_id, priority, misfire,"
        " overlap, created_at, updated_at) select gen_random_uuid(), 1, 0, 'x' || n, 1, '{}', $1, 1, 5, 'fire_once',"
        " 'skip', now(), now() from generate_series(1, 20000) n",
        '[{"cron": "0 9 * * *"}]',
    )
    for statement, arguments in (
        (calendars._SQL.get, (1, "de", 100)),
        (calendars._SQL.list, (1, None, 10, 100)),
        (calendars._SQL.outdated, (1, "de", 100)),
        (calendars._SQL.users, (1, "de", 5)),
        (calendars._SQL.drop, (1, "de")),
    ):
        async with bench.store.pool.acquire() as connection, connection.transaction():
            await connection.fetch(statement, *arguments)
            read = await connection.fetchval(
                "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'jobs'"
            )
        assert read < 10, f"{statement} reads {read:,} jobs"
