"""Menus, saved filters, links to share, and charts that zoom."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from .conftest import Eye, Shop, until

NAME = "parts-a"


@pytest.fixture(scope="module")
def job(started: Shop) -> str:
    """A job with runs, of which some needed a second attempt and failed."""
    body = {"task": "shop.ship", "kwargs": {"order": 2}, "schedule": {"every": "1h"}, "tags": ["parts"]}
    made = started.ask("PUT", f"jobs/{NAME}", {**body, "retry": {"attempts": 2, "base": "10ms", "cap": "10ms"}})
    for _ in range(3):
        started.ended(started.ask("POST", f"jobs/{made['job_id']}/run", {})["run_id"])
    started.break_down("no label")
    started.ended(started.ask("POST", f"jobs/{made['job_id']}/run", {})["run_id"])
    started.mend()
    return str(made["job_id"])


def copied(page: Page) -> str:
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def test_a_menu_is_used_by_keyboard_and_gives_the_focus_back(eye: Eye, job: str) -> None:
    page = eye.go("jobs?q=parts-")
    button = page.get_by_role("button", name=f"More: {NAME}")
    button.focus()
    page.keyboard.press("ArrowDown")
    menu = page.get_by_role("menu")
    items = menu.get_by_role("menuitem")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(items.first).to_be_focused()
    page.keyboard.press("End")
    expect(menu.get_by_role("menuitem", name="Delete…")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(items.first).to_be_focused()
    page.keyboard.press("b")
    expect(menu.get_by_role("menuitem", name="Backfill…")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_have_count(0)
    expect(button).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Enter")
    page.keyboard.press("p")
    expect(menu.get_by_role("menuitem", name="Pause p", exact=True)).to_be_focused()
    page.keyboard.press("p")
    expect(menu.get_by_role("menuitem", name="Pause, with a reason or an end…")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text(f"Pause {NAME}")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()


def test_a_menu_is_not_cut_and_closes_beside_it(eye: Eye, job: str) -> None:
    page = eye.go("jobs?q=parts-")
    page.get_by_role("button", name=f"More: {NAME}").click()
    menu = page.get_by_role("menu")
    expect(menu).to_be_visible()
    box = menu.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280
    assert box["y"] + box["height"] <= 860
    assert page.get_by_role("dialog").count() == 0, "the menu is no dialog"
    page.get_by_role("heading", name="Jobs", exact=True).click()
    expect(menu).to_have_count(0)
    page.get_by_role("button", name=f"More: {NAME}").click()
    menu.get_by_role("menuitem", name="Revisions").click()
    page.wait_for_url("**/jobs/*?tab=revisions")


def test_filters_are_saved_renamed_and_deleted(eye: Eye, job: str) -> None:
    page = eye.go("jobs?q=parts-&tag=parts")
    page.get_by_role("button", name="Save filters…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("Ops parts")
    dialog.get_by_role("button", name="Save", exact=True).click()
    chip = page.get_by_role("link", name="Ops parts")
    expect(chip).to_have_attribute("aria-current", "true")
    expect(page.get_by_role("button", name="Save filters…")).to_have_count(0)
    eye.go("jobs")
    expect(chip).not_to_have_attribute("aria-current", "true")
    chip.click()
    page.wait_for_url("**/jobs?q=parts-&tag=parts")
    page.get_by_role("button", name="Change the filter: Ops parts").click()
    page.get_by_role("menuitem", name="Rename…").click()
    dialog.get_by_label("Name").fill("Our parts")
    dialog.get_by_role("button", name="Rename", exact=True).click()
    renamed = page.get_by_role("link", name="Our parts")
    expect(renamed).to_be_visible()
    expect(chip).to_have_count(0)
    page.reload()
    expect(renamed).to_be_visible()
    page.get_by_role("button", name="Change the filter: Our parts").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(renamed).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(renamed).to_be_visible()


def test_a_shared_link_has_absolute_times(eye: Eye, job: str) -> None:
    page = eye.go("?range=6h")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as").click()
    page.get_by_role("menuitem", name="Copy link").click()
    expect(page.get_by_role("status").filter(has_text="Copied the link")).to_be_attached()
    link = copied(page)
    terms = parse_qs(urlsplit(link).query)
    start, end = terms["zoom"][0].split("..")
    assert terms["range"] == ["6h"]
    assert start.endswith("Z")
    assert start < end
    page.goto(link)
    eye.settled()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()


def test_a_link_to_a_time_that_the_overview_no_longer_has_leads_to_the_runs(eye: Eye, job: str) -> None:
    page = eye.go("?zoom=2026-01-05T10:00:00Z..2026-01-05T11:00:00Z")
    page.get_by_role("link", name="Show the runs of that time").click()
    page.wait_for_url("**/runs?from=2026-01-05T10*")
    eye.settled()


def test_charts_are_zoomed_by_dragging_and_reset_by_a_button(eye: Eye, job: str) -> None:
    page = eye.go()
    chart = page.get_by_role("slider", name="runs started and failed")
    plot = chart.locator(".u-over").bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + plot["width"] * 0.3, plot["y"] + 20)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] * 0.8, plot["y"] + 30, steps=5)
    page.mouse.up()
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    expect(chart).to_have_attribute("data-zoomed", "true")
    start, end = parse_qs(urlsplit(page.url).query)["zoom"][0].split("..")
    assert start < end
    reset.click()
    expect(reset).to_have_count(0)
    assert "zoom" not in page.url


def test_charts_are_read_and_zoomed_by_keyboard(eye: Eye, job: str) -> None:
    page = eye.go()
    charts = page.locator(".small-chart [role=slider]")
    chart = charts.first
    chart.focus()
    page.keyboard.press("End")
    expect(chart).to_have_attribute("aria-valuetext", re.compile("started .* failed"))
    at_end = chart.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowLeft")
    until(lambda: chart.get_attribute("aria-valuetext") != at_end, "the crosshair has moved")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    expect(charts.last).to_have_attribute("data-zoomed", "true")
    page.keyboard.press("0")
    expect(page.get_by_role("button", name="Reset zoom")).to_have_count(0)


def test_the_metrics_of_a_job_show_percentiles_attempts_and_failures(eye: Eye, job: str) -> None:
    page = eye.go(f"jobs/{job}?tab=metrics&range=1h")
    for name in ("Duration", "Lateness", "Attempts", "Attempts per run"):
        expect(page.locator(".small-chart").get_by_role("heading", name=name, exact=True)).to_be_visible()
    measures = page.locator(".measures")
    expect(measures).to_have_attribute("aria-label", "The last hour")
    expect(measures).to_contain_text("2 of 5 attempts")
    expect(measures).to_contain_text("Usual duration")
    failures = page.get_by_role("slider", name="failed attempts among all attempts")
    expect(failures).to_be_visible()
    assert "2 of 5 attempts failed" in (failures.get_attribute("aria-label") or "")
    assert failures.locator("canvas").evaluate(
        "(one) => new Set(one.getContext('2d').getImageData(0, 0, one.width, one.height).data).size > 3"
    ), "something is drawn"
    page.get_by_text("Charts as a table").click()
    table = page.get_by_role("table", name="Metrics per 1m")
    expect(table.locator("tbody tr").first).to_be_visible()
    page.get_by_role("button", name="7 days").click()
    page.wait_for_url("**tab=metrics*")
    expect(page.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")
    eye.go(f"jobs/{job}?tab=metrics")
    expect(page.get_by_role("button", name="1 day")).to_have_attribute("aria-pressed", "true")


def test_the_ledger_shows_the_error_of_a_failed_occurrence(eye: Eye, job: str) -> None:
    page = eye.go(f"jobs/{job}?tab=ledger")
    failed = page.locator("tbody tr", has=page.get_by_text("failed", exact=True))
    expect(failed).to_have_count(1)
    expect(failed).to_contain_text("RuntimeError: no label · no retries left")
    expect(page.locator("tbody tr").last).to_contain_text("manual")
    page.get_by_role("button", name="failed 1").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "outcome=failed" in page.url


def test_the_runs_of_a_job_show_their_state_and_are_filtered(eye: Eye, job: str) -> None:
    page = eye.go(f"jobs/{job}")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.locator(".state")).to_have_count(4)
    page.get_by_role("button", name="dead 1").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("RuntimeError: no label")
    page.get_by_role("button", name="manual").click()
    expect(rows).to_have_count(4)
    assert "cause=manual" in page.url
    page.get_by_role("tab", name="Ledger").click()
    assert "cause" not in page.url


def test_occurrences_without_a_run_are_listed_among_the_runs(eye: Eye, shop: Shop) -> None:
    body = {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "1s"}}
    gapped = shop.ask("PUT", "jobs/parts-gap", body)["job_id"]
    until(lambda: shop.ask("GET", f"runs?job={gapped}&state=succeeded")["items"], "the job has run")
    shop.ask("POST", f"jobs/{gapped}/pause", {})
    paused = shop.ask("GET", f"jobs/{gapped}")["paused"]["at"]
    until(lambda: (datetime.now(UTC) - datetime.fromisoformat(paused)).total_seconds() > 3, "times have passed")
    shop.ask("POST", f"jobs/{gapped}/resume", {"missed": "skip"})
    until(lambda: any(one["kind"] == "gap" for one in shop.ask("GET", f"jobs/{gapped}/ledger")["items"]), "a gap")
    shop.ask("PATCH", f"jobs/{gapped}", {"enabled": False})
    page = eye.go(f"jobs/{gapped}")
    gap = page.locator("tbody tr", has=page.get_by_text("paused", exact=True).first)
    expect(gap.first).to_contain_text("without a run")
    page.get_by_role("button", name="succeeded").click()
    expect(page.locator("tbody")).not_to_contain_text("without a run")
    shop.ask("DELETE", f"jobs/{gapped}")


def test_events_that_repeat_are_one_row(eye: Eye, shop: Shop) -> None:
    shop.break_down("no driver")
    body = {"task": "shop.ship", "kwargs": {"order": 1}, "retry": {"attempts": 1}}
    failing = shop.ask("PUT", "jobs/parts-repeats", body)["job_id"]
    for _ in range(3):
        shop.ended(shop.ask("POST", f"jobs/{failing}/run", {})["run_id"])
    page = eye.go(f"jobs/{failing}?tab=events&kind=dead")
    expect(page.locator("tr[data-row]")).to_have_count(1)
    expect(page.locator("tr[data-row]")).to_contain_text("RuntimeError: no driver")
    fold = page.get_by_role("button", name="×3")
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.click()
    expect(page.locator(".also").get_by_role("link")).to_have_count(2)
    shop.mend()
    shop.ask("DELETE", f"jobs/{failing}")


def test_the_events_of_a_job_name_errors_runs_and_changes(eye: Eye, job: str) -> None:
    page = eye.go(f"jobs/{job}?tab=events")
    dead = page.locator("tbody tr", has=page.get_by_text("dead", exact=True))
    expect(dead).to_contain_text("RuntimeError: no label · no retries left")
    expect(dead.get_by_role("link")).to_have_attribute("href", re.compile("/runs/"))
    page.get_by_role("button", name="created 1").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="revision 1").click()
    page.wait_for_url("**tab=revisions*")


def test_the_labels_of_an_axis_differ_and_averages_are_never_rounded_to_nothing(eye: Eye) -> None:
    page = eye.go("jobs")
    labels = page.evaluate("""async () => {
        const app = document.querySelector("script[type=module]").src;
        const scales = await import(new URL("parts/chart_scales.js", app));
        return [
            scales.SECONDS.labels([0, 0.0001, 0.0002, 0.0003], 0.0001), scales.SECONDS.labels([0, 0.05, 0.1], 0.05),
            scales.SECONDS.labels([0, 0.5, 1], 0.5), scales.SECONDS.labels([0, 30, 60, 90], 30),
            scales.MILLISECONDS.labels([0, 0.5, 1], 0.5), scales.AVERAGE.labels([0, 0.02, 0.04], 0.02),
            scales.COUNT.labels([0, 500, 1000], 500), [0, 0.001, 0.07, 3.14, 1234].map(scales.formatAverage),
            scales.COUNT.increments.every(Number.isInteger)]}""")
    assert labels == [
        ["0", "0.1ms", "0.2ms", "0.3ms"],
        ["0", "50ms", "100ms"],
        ["0", "0.5s", "1.0s"],
        ["0", "30s", "1m", "1m 30s"],
        ["0", "0.5ms", "1.0ms"],
        ["0", "0.02", "0.04"],
        ["0", "500", "1,000"],
        ["0", "<0.01", "0.07", "3.1", "1,234"],
        True,
    ]


def test_ages_are_less_precise_the_longer_they_are(eye: Eye) -> None:
    page = eye.go("")
    ages = page.evaluate("""async () => {
        const app = document.querySelector("script[type=module]").src;
        const { formatAge } = await import(new URL("lib/time.js", app));
        return [3, 36, 552, 2300, 11_520, 61_500, 1_700_000].map(formatAge)}""")
    assert ages == ["3s", "36s", "9m 12s", "38m", "3h 12m", "17h", "19d"]


def test_the_configuration_shows_first_what_differs_from_the_defaults(eye: Eye, job: str) -> None:
    page = eye.go(f"jobs/{job}?tab=configuration")
    retry = page.get_by_role("region", name="Retry")
    expect(retry).to_contain_text("Attempts")
    expect(retry).to_contain_text("2")
    expect(page.get_by_role("region", name="Payload")).to_contain_text('"order": 2')
    expect(page.get_by_text("Give up after")).to_be_hidden()
    expect(page.get_by_role("region", name="Overlap and misfire")).to_contain_text("fire once")
    page.get_by_text("more settings at their defaults").click()
    expect(page.get_by_text("Give up after")).to_be_visible()
    assert "defaults=1" in page.url


def test_revisions_show_inner_differences(eye: Eye, shop: Shop, job: str) -> None:
    made = shop.ask(
        "PUT", "jobs/parts-b", {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"cron": "0 4 * * *"}}
    )
    shop.ask("PATCH", f"jobs/{made['job_id']}", {"retry": {"attempts": 9}, "kwargs": {"order": 2}})
    page = eye.go(f"jobs/{made['job_id']}?tab=revisions")
    rows = page.get_by_role("group", name="Differences").locator("tbody tr")
    expect(page.get_by_role("table", name="Revisions of parts-b")).to_contain_text(
        "kwargs.order 1 → 2, retry.attempts 3 → 9"
    )
    expect(rows.filter(has_text="retry.attempts").locator(".after")).to_contain_text("9")
    expect(rows.filter(has_text="kwargs.order").locator(".before")).to_contain_text("1")
    page.get_by_role("combobox", name="To").select_option("1")
    expect(page.locator("main")).to_contain_text("Revision 1")


def test_lanes_say_where_their_future_marks_stop(eye: Eye, shop: Shop, job: str) -> None:
    shop.ask("PUT", "jobs/parts-often", {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "10s"}})
    shop.ask("POST", "jobs/parts-often/run", {})
    page = eye.go()
    lane = page.locator(".timeline li", has=page.get_by_role("link", name="parts-often"))
    expect(lane.get_by_text("60 shown, more follow")).to_be_visible()
    shop.ask("DELETE", "jobs/parts-often")


def test_the_overview_lists_every_problem_with_a_link(eye: Eye, shop: Shop, job: str) -> None:
    made = shop.ask("PUT", "jobs/parts-unknown", {"task": "shop.nobody_knows_it"})
    run = shop.ask("POST", f"jobs/{made['job_id']}/run", {})
    page = eye.go()
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("Problem")
    expect(verdict.get_by_role("link", name=re.compile("no live worker", re.IGNORECASE))).to_be_visible()
    others = page.locator(".attention > li, .problems > li").filter(has_text="dead letter")
    expect(others.get_by_role("link")).to_be_visible()
    shop.ask("POST", f"runs/{run['run_id']}/cancel", {})
    shop.ask("DELETE", f"jobs/{made['job_id']}")
