"""Schedules that end by a count or a year: their jobs fire, are done, and are declared again without effect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bellringer.schedule import (
    HolidayCalendar,
    cron,
    cron_schedule,
    every,
    from_row,
    holiday_calendars,
    parse_hours,
)
from bellringer.store import calendars, jobs
from bellringer.store.interned_names import Catalog

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.engine_harness import EngineHarness


async def finish(harness: EngineHarness) -> int:
    return (await jobs.finish(harness.store, None, 1000)).jobs


async def fire_and_work(harness: EngineHarness, seconds: float) -> None:
    await harness.pass_time(seconds)
    await harness.tick()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))


async def test_a_job_is_done_after_its_last_counted_occurrence(harness: EngineHarness) -> None:
    job: UUID = await harness.job("counted", every("1m", times=2))
    stored = (await harness.read(job)).schedules[0]
    assert stored.repeat.start == stored.next_after(harness.after(0))  # type: ignore[union-attr]
    await fire_and_work(harness, 61)
    assert await finish(harness) == 0
    assert (await harness.read(job)).done_at is None
    await fire_and_work(harness, 60)
    await finish(harness)
    assert (await harness.read(job)).done_at is not None
    await fire_and_work(harness, 300)
    assert await harness.value("select count(*) from runs where job_id = $1", job) == 2


async def test_declaring_a_counted_schedule_again_changes_nothing(harness: EngineHarness) -> None:
    wanted = harness.definition("counted", every("1m", times=3))
    [made] = await harness.declare(wanted)
    before = (await harness.read(made.job_id)).schedules
    await harness.pass_time(90)
    assert await harness.declare(wanted) == []
    [changed] = await harness.declare(replace(wanted, priority=9))
    assert (changed.revision, (await harness.read(changed.job_id)).schedules) == (2, before)
    [counted_anew] = await harness.declare(harness.definition("counted", every("1m", times=4), priority=9))
    assert (await harness.read(counted_anew.job_id)).schedules != before


async def test_new_forms_are_read_by_a_process_that_has_just_started(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = HolidayCalendar(name="office", hours=parse_hours(["MON-FRI 09:00-17:30"]))
    await calendars.save(harness.store, harness.tenant, office, "me")
    schedules = [
        cron("0 15 10 ? * 6L 2030-2032", dialect="quartz"),
        cron("0 0 13 * FRI", day_match="both"),
        cron("0 * * * *", calendar="office", shift="next"),
        cron("0 22-4/2 * * *", times=3, start="2030-01-01T00:00:00Z"),
    ]
    for number, schedule in enumerate(schedules):
        await harness.job(f"job {number}", schedule)
    ids = [row["schedule_id"] for row in await harness.sql("select schedule_id from schedules order by 1")]
    monkeypatch.setattr(holiday_calendars, "_calendars_by_digest", {})
    cron_schedule._compile_cached.cache_clear()
    from_row.cache_clear()
    found = await Catalog(harness.store).schedules(ids)
    assert len(found) == len(schedules)
    assert all(schedule.next_after(harness.after(0)) is not None for schedule in found.values())
