"""The command palette: actions, jobs by a few letters of their name, tenants; and the sheet of shortcuts."""

from __future__ import annotations

import re
from typing import Final

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Locator, Page, expect

from .conftest import Eye, Shop, until
from .test_pages import faults

HOURLY: Final = {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "1h"}}
MANY: Final = 230  # more than one page of the loose search


def open_palette(page: Page) -> Locator:
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Page, job name or run id")
    expect(field).to_be_focused()
    return field


@pytest.fixture(scope="module")
def many(started: Shop) -> str:
    """A job behind more jobs than one page of a list has; returns its name."""
    for first in range(0, MANY, 100):
        items = [{**HOURLY, "name": f"aa-filler-{n:03}"} for n in range(first, min(first + 100, MANY))]
        started.ask("POST", "jobs/bulk", {"items": items})
    started.ask("PUT", "jobs/zz-quarterly-vat-report", HOURLY)
    return "zz-quarterly-vat-report"


def test_letters_find_a_job_beyond_the_first_page(eye: Eye, many: str) -> None:
    page = eye.go("cluster")
    field = open_palette(page)
    for letters in ("zzqvr", "zz-q rprt", "qvatr"):
        field.fill(letters)
        option = page.get_by_role("option", name=f"{many} Every")
        expect(option).to_be_visible()
        typed = letters.replace(" ", "")
        until(lambda: "".join(option.locator("mark").all_inner_texts()) == typed, f"{typed} are marked")  # noqa: B023
    field.press("Enter")
    expect(page.get_by_role("heading", name=many, exact=True)).to_be_visible()


def test_actions_are_listed_and_take_a_job(eye: Eye, shop: Shop) -> None:
    job = shop.ask("PUT", "jobs/palette-job", HOURLY)
    page = eye.go("cluster")
    field = open_palette(page)
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []
    eye.picture("palette light")
    field.fill("pause a")
    field.fill("Pause a job")
    page.get_by_role("option", name="Pause a job…").click()
    expect(field).to_have_value("pause ")  # the name of the job follows
    field.press_sequentially("palette-job")
    expect(page.get_by_role("option", name="Pause palette-job")).to_be_visible()
    field.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Paused palette-job")).to_be_visible()
    assert shop.ask("GET", f"jobs/{job['job_id']}")["paused"]
    open_palette(page).fill("resume palette-job")
    field.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Resumed palette-job")).to_be_visible()
    open_palette(page).fill("run palette-job")
    field.press("Enter")
    page.get_by_role("link", name="Show the run").last.click()
    page.wait_for_url("**/runs/*")
    open_palette(page).fill("edit palette-job")
    field.press("Enter")
    expect(page.get_by_role("heading", name="Edit palette-job")).to_be_visible()
    open_palette(page).fill("create a job")
    field.press("Enter")
    expect(page.get_by_role("heading", name="Create a job")).to_be_visible()


def test_keys_typed_while_the_palette_opens_are_not_lost(eye: Eye) -> None:
    page = eye.go("jobs")
    for _ in range(10):
        page.keyboard.press("Control+k")
        page.keyboard.type("pri")
        expect(page.locator(".palette input")).to_have_value("pri")
        page.keyboard.press("Escape")
        expect(page.locator(".palette")).to_be_hidden()


def test_names_that_begin_with_the_text_are_first_and_a_job_has_actions(eye: Eye, shop: Shop) -> None:
    for name in ("a-quince", "quince-jam", "xquince"):
        shop.ask("PUT", f"jobs/{name}", HOURLY)
    page = eye.go("cluster")
    field = open_palette(page)
    field.fill("quince")
    options = page.locator(".palette").get_by_role("option")
    expect(options.first).to_contain_text("quince-jam")
    names = options.locator(".said").all_inner_texts()
    assert names[:3] == ["quince-jam", "a-quince", "xquince"]
    assert names[3:7] == [f"{verb} quince-jam" for verb in ("Run now:", "Pause", "Explain", "Edit")]
    field.press("ArrowDown")  # the actions are those of the chosen job
    expect(page.get_by_role("option", name="Pause a-quince")).to_be_visible()
    field.press("ArrowRight")
    field.press("ArrowDown")
    field.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Paused a-quince")).to_be_visible()


def test_the_page_of_a_job_offers_its_actions_first(eye: Eye, shop: Shop) -> None:
    job = shop.ask("PUT", "jobs/palette-here", HOURLY)
    page = eye.go(f"jobs/{job['job_id']}")
    open_palette(page)
    expect(page.get_by_role("option").first).to_have_accessible_name(re.compile("Run now: palette-here"))
    page.keyboard.press("ArrowUp")  # from the first to the last
    expect(page.locator(".palette li").last).to_have_attribute("aria-selected", "true")
    expect(page.locator(".palette li").last).to_be_in_viewport()


def test_the_palette_switches_to_another_tenant(eye: Eye, shop: Shop) -> None:
    shop.ask("POST", "tenants", {"name": "palette-tenant"})
    page = eye.go("cluster")
    open_palette(page).fill("palette-ten")
    expect(page.get_by_role("option", name="Switch to palette-tenant")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".who")).to_contain_text("palette-tenant")
    assert page.url.endswith("/cluster")


@pytest.mark.parametrize(("platform", "keys"), [("Linux x86_64", "Ctrl K"), ("MacIntel", "⌘ K")])
def test_keys_have_the_names_of_the_platform(eye: Eye, platform: str, keys: str) -> None:
    eye.page.add_init_script(
        f"Object.defineProperty(navigator, 'platform', {{ get: () => '{platform}' }});"
        "Object.defineProperty(navigator, 'userAgentData', { get: () => undefined });"
    )
    page = eye.go("settings?tab=browser")
    expect(page.get_by_text(f"press ? to list them; {keys} and")).to_be_visible()
    expect(page.locator(".bar .find kbd")).to_have_text(keys)
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(sheet.locator("dt").filter(has_text="K").first).to_have_text(keys)
    expect(sheet.get_by_role("heading", name="On every page")).to_be_visible()
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []
    eye.picture(f"shortcuts {platform}")
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)


def test_arrows_and_escape_and_an_empty_result(eye: Eye) -> None:
    page = eye.go("cluster")
    field = open_palette(page)
    field.fill("run_x")
    expect(page.locator(".palette").get_by_role("option")).to_have_count(1)
    field.fill("pause qqqqqqqq")
    expect(page.locator(".palette")).to_contain_text("Nothing found.")
    field.press("Escape")
    expect(field).to_be_hidden()
