"""Everything without a mouse: pages by two letters, rows by j and k, the palette, dialogs that give the focus back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Eye, Shop

PAGES = {
    "o": "Overview",
    "j": "Jobs",
    "f": "Workflows",
    "r": "Runs",
    "d": "Dead letters",
    "c": "Calendar",
    "w": "Workers & pools",
    "k": "Cluster",
    "t": "Tenants",
    "a": "Audit",
    "s": "Settings",
}


def press(page: Page, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)


@pytest.fixture
def jobs(shop: Shop) -> list[str]:
    """Two jobs of this file, by their ids."""
    made = []
    for name in ("keys-a", "keys-b"):
        job = {"name": name, "task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "1h"}}
        made.append(
            shop.ask("PUT", f"jobs/{name}", {key: value for key, value in job.items() if key != "name"})["job_id"]
        )
    return made


def test_two_letters_open_a_page(eye: Eye) -> None:
    page = eye.go("jobs")
    for letter, name in PAGES.items():
        press(page, f"g {letter}")
        expect(page.locator(".rail a[aria-current=page]")).to_contain_text(name)
        eye.settled()


def test_rows_are_walked_opened_and_explained(eye: Eye, jobs: list[str]) -> None:
    page = eye.go("jobs?q=keys-&sort=name")
    rows = page.locator("tr[data-row]")
    expect(rows).to_have_count(2)
    press(page, "j")
    expect(rows.nth(0)).to_be_focused()
    press(page, "j")
    expect(rows.nth(1)).to_be_focused()
    press(page, "k")
    expect(rows.nth(0)).to_be_focused()
    press(page, "e")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_contain_text("Next run at 20")  # nothing is wrong with it
    press(page, "Escape")
    expect(dialog).to_have_count(0)
    expect(rows.nth(0)).to_be_focused()  # the dialog gave the focus back
    press(page, "x")
    expect(page.get_by_role("region", name="Bulk actions")).to_contain_text("1 selected")
    press(page, "Enter")
    expect(page.get_by_role("heading", name="keys-a", exact=True)).to_be_visible()
    assert page.url.endswith(f"jobs/{jobs[0]}")


def test_the_palette_finds_a_job(eye: Eye, jobs: list[str]) -> None:
    page = eye.go("cluster")
    press(page, "Control+k")
    field = page.get_by_role("combobox", name="Page, job name or run id")
    expect(field).to_be_focused()
    page.keyboard.type("keys-b")
    expect(page.locator(".palette [aria-selected=true]")).to_contain_text("keys-b")
    press(page, "Enter")
    expect(page.get_by_role("heading", name="keys-b", exact=True)).to_be_visible()
    press(page, "Control+k")
    page.keyboard.type("Audi")
    expect(page.get_by_role("option", name="Audit", exact=True)).to_be_visible()
    press(page, "Escape")
    expect(field).to_be_hidden()


def test_the_sheet_shows_the_keys_and_they_can_be_switched_off(eye: Eye) -> None:
    page = eye.go("jobs")
    press(page, "?")
    sheet = page.get_by_role("dialog")
    expect(sheet).to_contain_text("go to Dead letters")
    expect(sheet).to_contain_text("turn live updates on or off")
    press(page, "Escape")
    expect(sheet).to_have_count(0)
    eye.go("settings?tab=browser")
    page.get_by_label("Enable single-key shortcuts").uncheck()
    eye.go("jobs")
    press(page, "g r")
    press(page, "?")
    expect(sheet).to_have_count(0)
    assert page.url.endswith("/jobs")
    press(page, "Control+k")  # not of one letter: it stays
    expect(page.get_by_role("combobox", name="Page, job name or run id")).to_be_focused()


def test_the_whole_form_of_a_job_can_be_tabbed_through(eye: Eye) -> None:
    page = eye.go("jobs/new")
    names = []
    page.get_by_label("Name", exact=True).focus()
    for _ in range(12):
        press(page, "Tab")
        names.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert len(set(names)) > 8  # nothing holds the focus
    assert "BODY" not in names


def test_the_palette_finds_jobs_loosely_and_runs_commands_on_them(eye: Eye, shop: Shop, jobs: list[str]) -> None:
    page = eye.go("jobs")
    press(page, "Control+k")
    field = page.get_by_role("combobox", name="Page, job name or run id")
    field.fill("kysb")  # letters of keys-b, in their order
    expect(page.get_by_role("option", name=re.compile("^keys-b"))).to_be_visible()
    field.fill("pause keys-b")
    expect(page.get_by_role("option", name="Pause keys-b")).to_be_visible()
    press(page, "Enter")
    expect(page.get_by_role("status").filter(has_text="Paused keys-b")).to_be_visible()
    assert shop.ask("GET", f"jobs/{jobs[1]}")["paused"]
    press(page, "Control+k")
    field.fill("dark theme")
    expect(page.get_by_role("option", name="Use the dark theme")).to_be_visible()
    press(page, "Enter")
    expect(page.locator("html[data-theme=dark]")).to_have_count(1)
    shop.ask("POST", f"jobs/{jobs[1]}/resume", {"missed": "skip"})


def test_the_title_names_the_page_and_its_subject(eye: Eye, jobs: list[str]) -> None:
    page = eye.go("jobs")
    expect(page).to_have_title("Jobs · Bellringer")
    page.goto(page.url.replace("/jobs", f"/jobs/{jobs[0]}"))
    expect(page).to_have_title("keys-a · Bellringer")


def test_a_phone_has_a_menu_and_rows_as_cards(eye: Eye, jobs: list[str]) -> None:
    page = eye.go("jobs?q=keys-&sort=name")
    page.set_viewport_size({"width": 390, "height": 844})
    menu = page.get_by_role("button", name="Menu")
    link = page.get_by_role("navigation", name="pages", exact=True).get_by_role("link", name="Calendar")
    expect(link).to_be_hidden()
    menu.click()
    expect(link).to_be_visible()
    link.click()
    expect(page.get_by_role("heading", name="Calendar")).to_be_visible()
    expect(link).to_be_hidden()
    page.go_back()
    row = page.locator("tr[data-row]").first
    expect(row).to_be_visible()
    box = row.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
