"""Calendars: names become content when a job is registered, and jobs follow what changes."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.engine import calendars as step
from bellringer.engine import register
from bellringer.errors import Conflict, InvalidInput, InvalidSchedule, NotFound
from bellringer.schedule import (
    Cron,
    HolidayCalendar,
    Schedule,
    cron,
    cron_schedule,
    every,
    holiday_calendars,
    rrule,
    rrule_schedule,
)
from bellringer.store import calendars, explain, jobs, revisions
from bellringer.store.connection_pool import connect
from bellringer.store.interned_names import Catalog
from bellringer.verify import Finding, VerifyScope, verify

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

DAY = timedelta(days=1)


def a_calendar(name: str, *dates: date, weekend: frozenset[int] = frozenset()) -> HolidayCalendar:
    return HolidayCalendar(name=name, dates=frozenset(dates), weekend=weekend)


async def put(harness: EngineHarness, calendar: HolidayCalendar, most: int = 10_000) -> int:
    version = await step.put_calendar(harness.store, calendar, tenant_id=harness.tenant, who="me")
    await step.update_jobs(
        harness.store, harness.catalog, calendar.name, tenant_id=harness.tenant, who="me", limit=most
    )
    return version


async def digests(harness: EngineHarness, job_id: UUID) -> list[str]:
    schedules = (await harness.read(job_id)).schedules
    return [s.days_off.digest for s in schedules if isinstance(s, Cron) and s.days_off is not None]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that has just started: no calendar is known."""
    monkeypatch.setattr(holiday_calendars, "_calendars_by_digest", {})
    for cache in (
        holiday_calendars._working_days_of_month,
        cron_schedule._compile_cached,
        rrule_schedule._compile_cached,
    ):
        cache.cache_clear()


# Keeping them


async def test_a_version_counts_on_only_where_the_content_differs(harness: EngineHarness) -> None:
    first, second = a_calendar("de", date(2026, 12, 25)), a_calendar("de", date(2026, 12, 26))
    assert [await put(harness, c) for c in (first, first, second, first)] == [1, 1, 2, 3]
    kept = await calendars.get(harness.store, 1, "de")
    assert kept is not None
    assert (kept.calendar, kept.version, kept.changed_by) == (first, 3, "me")


async def test_the_weekend_is_part_of_the_content(harness: EngineHarness) -> None:
    assert await put(harness, a_calendar("de", weekend=frozenset({5, 6}))) == 1
    assert await put(harness, a_calendar("de", weekend=frozenset({4, 5}))) == 2


async def test_a_calendar_that_cannot_be_used_is_refused_and_not_kept(harness: EngineHarness) -> None:
    with pytest.raises(InvalidInput, match="weekend contains all seven days"):
        await put(harness, a_calendar("none", weekend=frozenset(range(7))))
    assert await calendars.get(harness.store, 1, "none") is None


async def test_two_who_put_at_once_take_two_versions(harness: EngineHarness) -> None:
    days = [date(2026, 1, n) for n in range(1, 9)]
    versions = await asyncio.gather(
        *(step.put_calendar(harness.store, a_calendar("de", day), tenant_id=1, who="me") for day in days)
    )
    assert sorted(versions) == list(range(1, 9))


async def test_tenants_have_their_own(harness: EngineHarness) -> None:
    [second] = await harness.tenants(1)
    await put(harness, a_calendar("de"))
    assert await calendars.get(harness.store, second, "de") is None
    with pytest.raises(InvalidSchedule):
        await harness.for_tenant(second).job("job", cron("0 9 * * *", calendar="de"))


# Registering with them


async def test_a_day_off_has_no_run_and_the_next_day_has(harness: EngineHarness) -> None:
    today = harness.noon.date()
    await put(harness, a_calendar("de", today))
    job_id = await harness.job("job", cron("30 12 * * *", calendar="de"))
    await harness.pass_time(3600)
    await harness.tick_all()
    assert await harness.fired(job_id) == []
    await harness.set_clock(harness.noon + DAY + timedelta(minutes=30))
    await harness.tick_all()
    assert await harness.fired(job_id) == [86_400 + 1800]


async def test_a_name_that_is_not_known_is_refused_with_the_nearest(harness: EngineHarness) -> None:
    await put(harness, a_calendar("germany"))
    with pytest.raises(InvalidSchedule) as refused:
        await harness.job("job", cron("0 9 * * *"), cron("0 9 1 * *", calendar="germny"))
    assert (refused.value.code, refused.value.pointer) == ("calendar_unknown", "/schedules/1/calendar")
    assert refused.value.hint == "did you mean germany?"
    assert await jobs.find(harness.store, 1, "job") is None


async def test_a_digest_that_the_caller_made_up_is_replaced(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de", date(2026, 12, 25)))
    job_id = await harness.job("job", cron("0 9 * * *", calendar="de", calendar_digest="0" * 32))
    assert await digests(harness, job_id) == [a_calendar("de", date(2026, 12, 25)).digest]


async def test_equal_content_is_one_schedule_whatever_its_name(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de", date(2026, 12, 25)))
    await put(harness, a_calendar("at", date(2026, 12, 25)))
    first = await harness.read(await harness.job("first", cron("0 9 * * *", calendar="de")))
    second = await harness.read(await harness.job("second", cron("0 9 * * *", calendar="at")))
    plain = await harness.read(await harness.job("plain", cron("0 9 * * *")))
    assert first.schedule_ids == second.schedule_ids != plain.schedule_ids


async def test_declaring_again_changes_nothing_until_the_calendar_does(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de", date(2026, 12, 25)))
    definition = harness.definition("job", cron("H 9 * * *", calendar="de", shift="next"))
    [made] = await harness.declare(definition)
    assert await harness.declare(definition) == []
    await step.put_calendar(harness.store, a_calendar("de", date(2026, 12, 26)), tenant_id=1, who="me")
    [changed] = await harness.declare(definition)
    assert (changed.job_id, changed.revision) == (made.job_id, 2)
    assert await harness.declare(definition) == []


async def test_an_h_is_spread_by_the_name_and_stays_when_the_job_is_renamed(harness: EngineHarness) -> None:
    [first, second] = await harness.register(
        harness.definition("a", cron("H H * * *")), harness.definition("b", cron("H H * * *"))
    )
    one, other = [await harness.read(job.job_id) for job in (first, second)]
    assert one.schedule_ids != other.schedule_ids
    assert isinstance(one.schedules[0], Cron)
    assert one.schedules[0].seed == "1:a"
    renamed = harness.definition("c", *one.schedules)
    await harness.change(first.job_id, renamed)
    assert (await harness.read(first.job_id)).schedule_ids == one.schedule_ids


@pytest.mark.parametrize(
    "schedule",
    [
        cron("*/30 * * * *", calendar="de"),
        rrule("FREQ=DAILY;BYHOUR=9,15", start="2026-01-01T09:00", calendar="de", shift="next"),
    ],
    ids=["cron", "rrule"],
)
async def test_a_process_that_has_just_started_reads_what_it_needs(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, schedule: Schedule
) -> None:
    await put(harness, a_calendar("de", (harness.noon + 2 * DAY).date()))
    job_id = await harness.job("job", schedule)
    for read in (harness.read, lambda j: explain.load_instant_facts(harness.store, j, harness.after(1), 1)):
        forget(monkeypatch)
        await read(job_id)
        assert len(holiday_calendars._calendars_by_digest) == 1
    forget(monkeypatch)
    catalog = Catalog(harness.store)
    [number] = (await harness.read(job_id)).schedule_ids
    forget(monkeypatch)
    found = (await catalog.schedules([number]))[number]
    assert found.next_after(harness.noon) is not None
    forget(monkeypatch)
    [listed] = await jobs.list_by_id(harness.store, 1, None, 10)
    assert listed.schedules[0].next_after(harness.noon) == found.next_after(harness.noon)


# Following


async def test_jobs_follow_a_change_as_a_revision_that_says_why(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de"))
    job_id = await harness.job("job", cron("0 9 * * *", calendar="de"), cron("0 10 * * *"), tags=("a",), priority=7)
    other = await harness.job("other", every("1h"))
    before = await harness.read(job_id)
    changed = a_calendar("de", date(2026, 12, 25))
    assert await put(harness, changed) == 2
    after = await harness.read(job_id)
    assert await digests(harness, job_id) == [changed.digest]
    assert (after.revision, after.tags, after.priority) == (2, before.tags, before.priority)
    assert after.schedules[1] == before.schedules[1]
    newest, _ = await revisions.newest(harness.store, job_id, 10)
    assert (newest["what"], newest["who"], newest["why"]) == ("changed", "me", "calendar de, version 2")
    assert (await harness.read(other)).revision == 1


async def test_paused_jobs_follow_and_stay_paused(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de"))
    job_id = await harness.job("job", cron("* * * * *", calendar="de"))
    await harness.pause(job_id)
    changed = a_calendar("de", date(2026, 12, 25))
    await put(harness, changed)
    assert await digests(harness, job_id) == [changed.digest]
    await harness.pass_time(120)
    await harness.tick_all()
    assert await harness.fired(job_id) == []


async def test_a_follow_that_broke_off_goes_on_when_it_is_repeated(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "JOBS_PER_CHANGE", 3)
    await put(harness, a_calendar("de"))
    definitions = [harness.definition(f"job {n}", cron("0 9 * * *", calendar="de")) for n in range(8)]
    made = await harness.register(*definitions)
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
        await put(harness, changed)
    kept = await calendars.get(harness.store, 1, "de")
    assert kept is not None
    assert (kept.version, kept.jobs, kept.outdated) == (2, 8, 5)
    assert await put(harness, changed) == 2
    kept = await calendars.get(harness.store, 1, "de")
    assert kept is not None
    assert (kept.version, kept.jobs, kept.outdated) == (2, 8, 0)
    assert {(await harness.read(job.job_id)).revision for job in made} == {2}


async def test_a_follow_does_no_more_than_it_may(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de"))
    await harness.register(*(harness.definition(f"job {n}", cron("0 9 * * *", calendar="de")) for n in range(5)))
    await put(harness, a_calendar("de", date(2026, 12, 25)), most=2)
    kept = await calendars.get(harness.store, 1, "de")
    assert kept is not None
    assert kept.outdated == 3


async def test_a_job_that_is_changed_meanwhile_follows_too(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(harness, a_calendar("de"))
    job_id = await harness.job("job", cron("0 9 * * *", calendar="de"))
    await step.put_calendar(harness.store, a_calendar("de", date(2026, 12, 25)), tenant_id=1, who="me")
    real, edits = jobs.get_many, 0

    async def get_many(*args: object) -> object:
        nonlocal edits
        read = await real(*args)  # type: ignore[arg-type]
        edits += 1
        if edits == 1:
            await harness.sql("update jobs set revision = revision + 1 where job_id = $1", job_id)
        return read

    monkeypatch.setattr(jobs, "get_many", get_many)
    await step.update_jobs(harness.store, harness.catalog, "de", tenant_id=1, who="me", limit=10)
    assert edits == 2
    assert await digests(harness, job_id) == [a_calendar("de", date(2026, 12, 25)).digest]


async def test_a_job_that_can_no_longer_be_registered_keeps_no_other_from_following(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de"))
    bad = await harness.job("bad", cron("0 9 * * *", calendar="de"))
    good = await harness.job("good", cron("0 9 * * *", calendar="de"))
    await harness.sql("update jobs set priority = 42 where job_id = $1", bad)
    changed = a_calendar("de", date(2026, 12, 25))
    await put(harness, changed)
    assert await digests(harness, good) == [changed.digest]
    assert await digests(harness, bad) == [a_calendar("de").digest]


async def test_verify_knows_what_a_calendar_was_at_every_time(
    harness: EngineHarness, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    today, tomorrow = harness.noon.date(), harness.noon.date() + DAY
    await put(harness, a_calendar("de", tomorrow))
    job_id = await harness.job("job", cron("0 * * * *", calendar="de"))
    for hour in range(1, 30):
        await harness.set_clock(harness.noon + timedelta(hours=hour))
        await harness.tick_all()
        if hour == 5:
            await put(harness, a_calendar("de", today))
    fired = [seconds / 3600 for seconds in await harness.fired(job_id)]
    assert fired == [1, 2, 3, 4, 5, *range(12, 30)]
    forget(monkeypatch)
    connection, found = await connect(dsn), list[Finding]()
    await harness.set_clock(harness.noon + timedelta(hours=29, minutes=5))
    try:
        asked = VerifyScope(start=harness.noon, end=harness.noon + timedelta(hours=29), unstarted_after=None)
        await verify(connection, asked, found.append)
    finally:
        await connection.close()
    assert found == []


# Deleting


async def test_a_calendar_that_jobs_use_stays(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de"))
    made = [await harness.job(f"job {n}", cron("0 9 * * *", calendar="de")) for n in range(7)]
    with pytest.raises(Conflict) as refused:
        await step.delete_calendar(harness.store, "de", tenant_id=1)
    assert refused.value.code == "calendar_in_use"
    assert refused.value.message.count("job ") == 5
    assert refused.value.message.endswith(" and more")
    for job_id in made:
        await harness.retire(job_id)
    await step.delete_calendar(harness.store, "de", tenant_id=1)
    with pytest.raises(NotFound):
        await step.delete_calendar(harness.store, "de", tenant_id=1)
    assert await calendars.list_page(harness.store, 1, None, 10) == []


async def test_a_calendar_that_is_created_again_counts_on(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de"))
    await step.delete_calendar(harness.store, "de", tenant_id=1)
    with pytest.raises(InvalidSchedule):
        await harness.job("job", cron("0 9 * * *", calendar="de"))
    assert await put(harness, a_calendar("de")) == 2
    await harness.job("job", cron("0 9 * * *", calendar="de"))


# Finding


async def test_the_jobs_of_a_calendar_are_found_without_looking_at_others(harness: EngineHarness) -> None:
    await put(harness, a_calendar("de"))
    await harness.job("job", cron("0 9 * * *", calendar="de"))
    await harness.sql(
        "insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedules, pool_id, priority, misfire,"
        " overlap, created_at, updated_at) select gen_random_uuid(), 1, 0, 'x' || n, 1, '{}', $1, 1, 5, 'fire_once',"
        " 'skip', now(), now() from generate_series(1, 20000) n",
        '[{"cron": "0 9 * * *"}]',
    )
    for statement, arguments in (
        (calendars._SQL.get, (1, "de", 100)),
        (calendars._SQL.list, (1, None, 10, 100)),
        (calendars._SQL.outdated, (1, "de", 100)),
        (calendars._SQL.jobs_with_calendar, (1, "de", 5)),
        (calendars._SQL.delete, (1, "de")),
    ):
        async with harness.store.pool.acquire() as connection, connection.transaction():
            await connection.fetch(statement, *arguments)
            read = await connection.fetchval(
                "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'jobs'"
            )
        assert read < 10, f"{statement} reads {read:,} jobs"
