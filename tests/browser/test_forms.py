"""Forms: errors at their fields, schedules without cron, and a question before changes are lost."""

from __future__ import annotations

import re
from typing import Final

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Dialog, Locator, Page, expect

from .conftest import Eye, Open, Shop
from .proxy import proxy
from .test_pages import faults


def rendered(page: Page) -> None:
    """Wait until the page has reacted to input."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")


HOURLY: Final = {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "1h"}}


def field(page: Page, label: str) -> Locator:
    """The field with this label, including its hint and errors."""
    return page.locator(".field").filter(has=page.get_by_label(label, exact=True))


def test_each_error_is_shown_once_at_its_field(eye: Eye) -> None:
    page = eye.go("jobs/new")
    eye.refusals = {422}
    page.get_by_label("Name", exact=True).fill("forms-errors")
    page.get_by_label("Task", exact=True).fill("shop.pack")
    page.get_by_label("Cron expression").fill("61 4 * * *")
    page.get_by_text("Start, end, jitter, lateness").click()
    page.get_by_label("Jitter", exact=True).fill("soon")
    page.get_by_text("Start, end, jitter, lateness").click()  # the section is closed again
    expect(field(page, "Cron expression").locator(".fault")).to_be_visible()  # by the preview
    page.get_by_role("button", name="Create job").click()
    expect(field(page, "Jitter").locator(".fault")).to_be_visible()  # the section of an error opens
    messages = [text.removeprefix("⚠").strip() for text in page.locator(".fault").all_inner_texts()]
    assert len(messages) == 2
    for message in messages:
        expect(page.get_by_text(message)).to_have_count(1)
    expect(page.get_by_label("Cron expression")).to_be_focused()
    expect(page.locator(".form-error")).to_have_text("2 fields need a correction.")
    assert page.locator(".trouble").count() == 0
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []


def test_a_dialog_with_input_asks_before_it_closes(eye: Eye) -> None:
    page = eye.go("tenants")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="New tenant…").click()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)  # nothing was typed
    page.get_by_role("button", name="New tenant…").click()
    dialog.get_by_label("Name").fill("acme")
    page.keyboard.press("Escape")
    expect(dialog.get_by_role("alert")).to_have_text("Your input is not saved. Close again to discard it.")
    expect(dialog.get_by_label("Name")).to_have_value("acme")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="New tenant…").click()
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_label("Name").fill("acme")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()  # says what it does
    expect(dialog).to_have_count(0)


def test_a_dialog_shows_errors_at_its_fields(eye: Eye) -> None:
    page = eye.go("tenants")
    eye.refusals = {422}
    page.get_by_role("button", name="New tenant…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("a/b")
    dialog.get_by_label("Jobs").fill("many")
    dialog.get_by_role("button", name="Create tenant").click()
    expect(dialog.locator(".fault")).to_have_count(2)
    expect(dialog.get_by_label("Name")).to_be_focused()
    expect(dialog.locator(".form-error")).to_have_text("2 fields need a correction.")
    assert dialog.locator(".trouble").count() == 0
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []


def test_common_schedules_write_cron(eye: Eye) -> None:
    page = eye.go("jobs/new")
    cron = page.get_by_label("Cron expression")
    preset = page.get_by_label("Common schedules")
    preset.select_option("weekdays")
    expect(cron).to_have_value("0 9 * * 1-5")
    page.get_by_label("Time of day").fill("18:30")
    expect(cron).to_have_value("30 18 * * 1-5")
    preset.select_option("weekly")
    page.get_by_label("Weekday", exact=True).select_option("Friday")
    expect(cron).to_have_value("30 18 * * 5")
    preset.select_option("monthly")
    page.get_by_label("Day of the month", exact=True).fill("31")
    expect(cron).to_have_value("30 18 31 * *")
    expect(field(page, "Day of the month")).to_contain_text("months without this day are skipped")
    expect(page.locator(".preview tbody tr")).to_have_count(10)
    cron.fill("*/15 * * * *")  # by hand: the select follows
    expect(preset).to_have_value("quarters")
    cron.fill("7 3 * 2 *")
    expect(preset).to_have_value("")
    expect(page.get_by_label("Time of day")).to_have_count(0)
    preset.select_option("month_end")
    expect(page.locator(".preview .meaning")).to_contain_text("last day")


def test_a_schedule_is_written_in_english(eye: Eye, shop: Shop) -> None:
    page = eye.go("jobs/new")
    eye.refusals = {422}
    english = page.get_by_label("Describe it in English")
    english.fill("every blue moon")
    expect(field(page, "Describe it in English").locator(".fault")).to_be_visible()
    english.fill("every weekday at 9:00 in Berlin")
    expect(page.locator(".understood .meaning")).to_contain_text("Europe/Berlin")
    expect(page.locator(".understood tbody tr")).to_have_count(3)
    english.press("Enter")  # takes it over, and does not submit the form
    expect(page.get_by_label("Cron expression")).to_have_value(re.compile(r"^0 9 \* \* "))
    expect(page.get_by_label("Time zone")).to_have_value("Europe/Berlin")
    expect(page.locator(".understood")).to_have_count(0)
    expect(page.locator(".preview tbody tr")).to_have_count(10)
    english.fill("every 15 minutes")
    page.get_by_role("button", name="Use this schedule").click()
    page.get_by_label("Name", exact=True).fill("forms-english")
    page.get_by_label("Task", exact=True).fill("shop.give")
    page.get_by_role("button", name="Create job").click()
    expect(page.get_by_role("heading", name="forms-english", exact=True)).to_be_visible()
    [job] = shop.ask("GET", "jobs?q=forms-english")["items"]
    assert job["schedules"][0] in ({"every": "15m"}, {"cron": "*/15 * * * *"})


@pytest.mark.parametrize("way", ["link", "shortcut", "palette", "back"])
def test_a_changed_form_asks_before_it_is_left(eye: Eye, way: str) -> None:
    page = eye.go("runs")
    page.get_by_role("link", name="Jobs", exact=True).click()
    eye.settled()
    page.get_by_role("link", name=re.compile("New job|Create")).first.click()
    page.get_by_role("heading", name="Create a job").wait_for()

    def leave() -> None:
        if way == "link":
            page.get_by_role("link", name="Runs", exact=True).click()
        elif way == "shortcut":
            page.get_by_role("heading", name="Create a job").click()
            page.evaluate("document.activeElement.blur()")
            page.keyboard.press("g")
            page.keyboard.press("r")
        elif way == "palette":
            page.keyboard.press("Control+k")
            page.get_by_role("combobox", name="Page, job name or run id").fill("Runs")
            page.keyboard.press("Enter")
        else:
            page.evaluate("history.back()")

    question = page.get_by_role("dialog", name="Leave without saving?")
    name = page.get_by_label("Name", exact=True)
    name.fill("half a job")
    rendered(page)
    address = page.url
    leave()
    expect(question.get_by_role("button", name="Keep editing")).to_be_focused()
    if way == "link":
        page.evaluate(AXE_SCRIPT)
        assert faults(page) == []
        eye.picture("leave without saving")
    page.keyboard.press("Enter")
    expect(question).to_have_count(0)
    assert page.url == address
    expect(name).to_have_value("half a job")
    leave()
    question.get_by_role("button", name="Leave without saving").click()
    expect(page.get_by_role("heading", name="Jobs" if way == "back" else "Runs", exact=True)).to_be_visible()
    assert page.url.endswith("/jobs" if way == "back" else "/runs")
    if way == "back":
        page.evaluate("history.back()")  # the history is as if nothing had been asked
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


def test_an_unchanged_or_saved_form_does_not_ask(eye: Eye, shop: Shop) -> None:
    page = eye.go("jobs/new")
    name = page.get_by_label("Name", exact=True)
    name.fill("x")
    name.fill("")
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    job = shop.ask("PUT", "jobs/forms-saved", HOURLY)
    eye.go(f"jobs/{job['job_id']}/edit")
    page.get_by_label("Priority").fill("7")
    page.get_by_role("button", name="Review changes…").click()
    page.get_by_role("button", name="Save changes").click()
    expect(page.get_by_role("heading", name="forms-saved", exact=True)).to_be_visible()
    assert shop.ask("GET", f"jobs/{job['job_id']}")["priority"] == 7


def test_the_browser_asks_before_a_changed_form_is_reloaded(eye: Eye) -> None:
    page = eye.go("jobs/new")
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.remove_listener("dialog", eye.refuse)
    page.on("dialog", stay)
    page.get_by_label("Name", exact=True).press_sequentially("half")  # browsers ask only after input by the user
    rendered(page)
    with page.expect_event("dialog"):
        page.evaluate("void setTimeout(() => location.reload())")
    assert asked == ["beforeunload"]
    expect(page.get_by_label("Name", exact=True)).to_have_value("half")


def test_the_login_says_how_to_get_the_first_key(look: Open, shop: Shop) -> None:
    with proxy(shop.port, "/ops/login") as base:
        eye = look(f"{base}/console/")
        eye.refusals = {401}
        page = eye.page
        page.goto(eye.home)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.get_by_text("I don’t have a key").click()
        command = page.get_by_label("Create the first key", exact=True)
        expect(command).to_have_text(re.compile(r"keys create first --role admin --dsn postgresql://"))
        page.get_by_role("button", name="Copy: Create the first key").click()
        expect(page.get_by_role("button", name="Copy: Create the first key")).to_have_text("Copied")
        key = page.get_by_label("API key or token")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("Enter a key")
        key.fill("br_aaaaaaaa_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not valid")
        expect(page.get_by_role("alert")).to_have_count(1)
        expect(key).to_be_focused()
        page.evaluate(AXE_SCRIPT)
        assert faults(page) == []
        eye.picture("login light")
        page.close()
