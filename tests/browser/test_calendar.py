"""The calendar: named jobs at their times, holidays, freezes and clock changes; keyboard, zones, filters and views."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page, expect
from tests.support.past_runs import INSERT_RUN

from .conftest import Eye, Open, Shop
from .test_five_seconds import execute
from .test_pages import faults

TENANT: Final = "calendar"
HEADERS: Final = {"X-Tenant": TENANT}
SIZES: Final = ((1440, 900), (1280, 860), (390, 844))
# The last Sunday of October of next year: Berlin's clocks go back. The calendar shows the week before and the month.
OCTOBER: Final = date(datetime.now(UTC).year + 1, 10, 31)
SUNDAY: Final = OCTOBER - timedelta(days=(OCTOBER.weekday() + 1) % 7)
BEGIN_YESTERDAY: Final = "update jobs set created_at = created_at - interval '1 day' where name like 'calendar %'"
NOON_JOBS: Final = tuple(f"noon report {n:02}" for n in range(15))


@pytest.fixture(scope="module")
def filled(started: Shop) -> Shop:
    """A tenant with nightly, hourly and frequent jobs, a holiday and a freeze in the week of the clock change."""
    started.ask("POST", "tenants", {"name": TENANT})
    schedules = {
        "nightly backup": {"cron": "30 2 * * *", "tz": "Europe/Berlin"},
        "payroll": {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "calendar": "bank-holidays"},
        "sync": {"every": "5m"},
        "hourly count": {"cron": "0 * * * *", "tz": "Europe/Berlin"},
        **{f"pulse {n}": {"every": "10s"} for n in range(3)},
        **{name: {"cron": "0 12 * * *", "tz": "Europe/Berlin"} for name in NOON_JOBS},
    }
    holiday = SUNDAY - timedelta(days=3)
    started.ask("PUT", "calendars/bank-holidays", {"dates": [str(holiday)]}, **HEADERS)
    for name, schedule in schedules.items():
        tags = ["night"] if name == "nightly backup" else []
        job = {"name": name, "task": "shop.pack", "kwargs": {"order": 1}, "schedule": schedule, "tags": tags}
        # The calendar shows the definitions; the jobs shall not run while the pictures are made.
        started.ask("POST", "jobs", {**job, "starts_at": f"{SUNDAY.year}-09-01T00:00:00Z"}, **HEADERS)
    freeze = {"name": "autumn sale", "from": f"{SUNDAY - timedelta(days=5)}T08:00:00Z", "to": "30h"}
    started.ask("POST", "freezes", freeze, **HEADERS)
    return started


def week(**terms: str) -> str:
    query = "&".join(f"{name}={value}" for name, value in {"tz": "Europe/Berlin", "date": str(SUNDAY), **terms}.items())
    return f"calendar?{query}"


@pytest.fixture
def eye_of_tenant(look: Open, filled: Shop) -> Eye:
    return look(filled.console, tenant=TENANT)


def entry(page: Page, text: str) -> str:
    return page.locator(".event", has_text=text).first.inner_text().replace("\n", " ").strip()


def test_the_week_names_jobs_holidays_freezes_and_the_clock_change(eye_of_tenant: Eye) -> None:
    page = eye_of_tenant.go(week())
    assert entry(page, "nightly backup").split()[0] == "02:30"
    expect(page.locator(".agenda-sum")).to_contain_text(
        "3 jobs run more often than every minute: pulse 0, pulse 1, pulse 2"
    )
    expect(page.locator(".note.holiday")).to_contain_text("bank-holidays")
    expect(page.locator(".note.freeze").first).to_contain_text("autumn sale")
    expect(page.locator(".note.clocks")).to_have_text("clocks go back 1 h at 03:00")
    assert page.locator(".event", has_text="payroll").count() == 4  # Monday to Friday without the holiday
    bands = page.get_by_role("gridcell", name="Jobs that repeat all day").get_by_role("listitem")
    expect(bands).to_have_text(
        [re.compile("hourly count.*×25 a day", re.DOTALL), re.compile("sync.*×300 a day", re.DOTALL)]
    )
    expect(page.locator(".event", has_text="sync")).to_have_count(1)
    heights = page.locator(".hour").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert heights[4] < heights[2], "hours without jobs are lower than hours with jobs"
    assert page.locator("[role=gridcell].frozen").count() == 30  # hours
    page.locator(".event", has_text="nightly backup").first.click()
    expect(page.locator("h1")).to_have_text("nightly backup")


def test_more_jobs_expand_in_their_cell(eye_of_tenant: Eye) -> None:
    page = eye_of_tenant.go(week())
    noon = page.locator(f"[role=gridcell][aria-label^='{SUNDAY:%A}'][aria-label*='12:00']")
    assert noon.locator(".event").count() == 3
    expect(noon.get_by_role("button", name="more jobs")).to_have_text(f"+{len(NOON_JOBS) - 3} more")  # without sync
    noon.get_by_role("button", name="more jobs").click()
    expect(noon.locator(".event")).to_have_count(len(NOON_JOBS))
    noon.get_by_role("button", name="Show fewer").click()
    expect(noon.locator(".event")).to_have_count(3)


def test_entries_of_the_past_show_what_became_of_them(eye: Eye, shop: Shop) -> None:
    daily = {"task": "shop.pack", "schedule": {"cron": "0 0 * * *"}}
    ids = {
        name: shop.ask("POST", "jobs", {"name": f"calendar {name}", **daily})["job_id"]
        for name in ("good", "bad", "without run")
    }
    midnight = datetime.combine(datetime.now(UTC).date(), time(), UTC)
    execute(shop.dsn, BEGIN_YESTERDAY)
    execute(shop.dsn, INSERT_RUN, ids["good"], midnight, "succeeded")
    execute(shop.dsn, INSERT_RUN, ids["bad"], midnight, "dead")
    page = eye.go("calendar?tz=UTC")
    expect(page.locator(".event.is-succeeded")).to_have_attribute("title", "00:00 calendar good: no failure")
    expect(page.locator(".event.is-failed")).to_have_attribute("title", "00:00 calendar bad: failed")
    expect(page.locator(".event.is-none")).to_have_attribute("title", "00:00 calendar without run: no run")
    page.get_by_role("button", name="Day", exact=True).click()
    lanes = page.locator(".day-lanes li:not(.mark)").filter(has_text="calendar")
    expect(lanes).to_have_count(3)
    expect(lanes.filter(has_text="bad").locator(".mark.is-failed")).to_have_attribute("title", "00:00: failed")
    for job_id in ids.values():
        shop.ask("DELETE", f"jobs/{job_id}")


def test_a_phone_shows_a_month_as_days_with_dots(eye_of_tenant: Eye) -> None:
    page = eye_of_tenant.page
    page.set_viewport_size({"width": 390, "height": 844})
    eye_of_tenant.go(week(view="month"))
    days = page.get_by_role("group", name="Days").get_by_role("button")
    assert days.count() in {28, 35, 42}
    monday = SUNDAY - timedelta(days=6)
    days.filter(has_text=re.compile(f"^{monday.day}\\s*$")).last.click()
    expect(page.get_by_role("heading", name=f"Monday {monday.day} October")).to_be_visible()
    expect(page.locator(".days .event", has_text="nightly backup")).to_have_count(1)


def test_the_keyboard_moves_through_cells_and_periods(eye_of_tenant: Eye) -> None:
    page = eye_of_tenant.go(week(view="month"))
    focused = "document.activeElement.getAttribute('aria-label')"
    page.locator("[role=gridcell][tabindex='0']").focus()
    first = page.evaluate(focused)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) != first
    assert page.locator("[role=gridcell][tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('[role=gridcell]').tabIndex") == 0
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "gridcell"
    title = page.locator(".period").inner_text()
    page.keyboard.press("PageDown")
    expect(page.locator(".period")).not_to_have_text(title)
    page.keyboard.press("[")
    expect(page.locator(".period")).to_have_text(title)


def test_zone_filters_and_views_are_part_of_the_address(eye_of_tenant: Eye) -> None:
    page = eye_of_tenant.go(week())
    page.get_by_label("Time zone").select_option("America/New_York")
    expect(page.locator(".event", has_text="nightly backup").first).to_contain_text("20:30")
    assert "tz=America" in page.url
    page.get_by_label("Tag").fill("night")
    page.get_by_label("Tag").press("Enter")
    expect(page.locator(".event", has_text="sync")).to_have_count(0)
    expect(page.locator(".event", has_text="nightly backup").first).to_be_visible()
    page.get_by_role("button", name="Month", exact=True).click()
    expect(page.locator(".agenda.month")).to_be_visible()
    page.get_by_role("button", name="Show Wednesday").first.click()
    expect(page.locator(".day-lanes")).to_be_visible()
    page.get_by_label("Tag").fill("none")
    page.get_by_label("Tag").press("Enter")
    expect(page.locator(".empty")).to_contain_text("No matching jobs")
    page.get_by_role("button", name="Clear the filters").click()
    page.get_by_role("button", name="Today", exact=True).click()
    expect(page.locator(".tick.is-now")).to_have_count(1)


def test_the_load_leaves_out_frequent_jobs_until_they_are_wanted(eye: Eye, shop: Shop) -> None:
    shop.ask("POST", "jobs", {"name": "every second", "task": "shop.give", "schedule": {"every": "30s"}})
    shop.ask("POST", "jobs", {"name": "at times", "task": "shop.give", "schedule": {"cron": "*/10 * * * *"}})
    page = eye.go("calendar?tab=load")
    expect(page.locator("main")).to_contain_text("more often than every minute")
    before = page.locator(".verdict .said").inner_text()
    page.get_by_label("Include jobs that run more often").check()
    expect(page.locator(".verdict .said")).not_to_have_text(before)
    page.get_by_role("button", name="Color by rank").click()
    expect(page.locator(".heat")).not_to_have_count(0)
    eye.picture("calendar load quantile")
    for name in ("every second", "at times"):
        shop.ask("DELETE", f"jobs/{name.replace(' ', '%20')}")


@pytest.mark.parametrize("view", ["week", "month", "day"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_sound_in_both_themes_and_all_sizes(eye_of_tenant: Eye, view: str, theme: str) -> None:
    page = eye_of_tenant.page
    page.add_init_script(f"localStorage['bellringer.theme'] = '{theme}'")
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        eye_of_tenant.go(week(view=view, date=str(SUNDAY - timedelta(days=2 if view == "day" else 0))))
        page.evaluate(AXE_SCRIPT)
        eye_of_tenant.picture(f"calendar {view} {theme} {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        assert faults(page) == []
