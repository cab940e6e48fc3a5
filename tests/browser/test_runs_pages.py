"""The list of runs and the page of a run, the settings of the process, and notifications of the browser."""

from __future__ import annotations

import os
import re
import socket
from typing import Any, Final

import pytest
from playwright.sync_api import Locator, expect

from .conftest import Eye, Shop, until

WHY: Final = "the axle of truck 17 broke"
HOURLY: Final = {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "1h"}}


@pytest.fixture
def dead(shop: Shop) -> Any:
    """A run that failed, of a job."""
    shop.break_down(WHY)
    job = shop.ask("PUT", "jobs/runs-page", {**HOURLY, "task": "shop.ship"})
    run = shop.ended(shop.ask("POST", f"jobs/{job['job_id']}/run", {})["run_id"])
    assert run["state"] == "dead"
    return run


def top(locator: Locator) -> float:
    box = locator.bounding_box()
    assert box is not None
    return box["y"]


def worker_name(shop: Shop, number: int) -> str:
    [name] = [one["name"] for one in shop.ask("GET", "workers")["items"] if one["worker_id"] == number]
    return str(name)


def test_a_dead_run_says_what_went_wrong_once(eye: Eye, shop: Shop, dead: Any) -> None:
    page = eye.go(f"runs/{dead['run_id']}")
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text(f"RuntimeError: {WHY}")
    name = worker_name(shop, dead["worker_id"])
    expect(verdict).to_contain_text(f"on {name}")
    expect(page.locator(".logs")).to_contain_text("shipping")
    expect(page.get_by_role("group", name="Traceback")).to_contain_text("ship")
    assert page.locator("main").inner_text().count(WHY) == 1, page.locator("main").inner_text()
    logs, attempts = page.get_by_role("region", name="Logs"), page.get_by_role("region", name="Attempts")
    assert top(verdict) < top(attempts) < top(logs)
    expect(attempts).to_contain_text(name)


def test_the_logs_of_a_run_are_followed(eye: Eye, shop: Shop) -> None:
    run = shop.ask("POST", "jobs/execute", {"task": "shop.wait", "kwargs": {"seconds": 60}})["run_id"]
    page = eye.go(f"runs/{run}")
    expect(page.get_by_role("region", name="Logs").get_by_role("status").first).to_contain_text("Following")
    expect(page.locator(".verdict")).to_contain_text("Running")
    expect(page.locator(".verdict")).to_contain_text(" on ")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator(".verdict")).to_contain_text("Cancelled")


def test_a_run_that_waits_says_why_first(eye: Eye, shop: Shop) -> None:
    run = shop.ask("POST", "jobs/execute", {"task": "shop.pack", "kwargs": {"order": 1}, "delay": "1h"})["run_id"]
    page = eye.go(f"runs/{run}")
    expect(page.get_by_role("region", name="Why it waits")).to_be_visible()
    expect(page.get_by_role("region", name="Logs")).to_have_count(0)
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Copy run id").click()
    expect(page.get_by_role("status").filter(has_text="Copied the run id")).to_be_visible()
    shop.ask("POST", f"runs/{run}/cancel", {})


def test_the_list_names_workers_and_puts_the_search_first(eye: Eye, shop: Shop, dead: Any) -> None:
    page = eye.go("runs?job=runs-page")
    row = page.get_by_role("row").filter(has_text="runs-page").first
    expect(row).to_contain_text(worker_name(shop, dead["worker_id"]))
    search = page.get_by_role("combobox", name="Search runs")
    box = search.bounding_box()
    main = page.locator("main").bounding_box()
    assert box is not None
    assert main is not None
    assert box["width"] > 0.9 * (main["width"] - 40)
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Retry all dead or retrying runs…").click()
    shop.mend()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile(r"Retry \d+ runs?")).click()
    page.wait_for_url("**/operations/*")
    until(lambda: shop.ask("GET", f"runs/{dead['run_id']}")["state"] == "succeeded", "it was retried")
    eye.go("runs?job=runs-page&state=succeeded")
    page.get_by_role("button", name="More actions").click()
    expect(page.get_by_role("menuitem", name="Copy CLI")).to_be_visible()
    expect(page.get_by_role("menuitem", name=re.compile("^Retry all"))).to_have_count(0)


def test_a_healthy_job_is_explained_calmly(eye: Eye, shop: Shop) -> None:
    shop.ask("PUT", "jobs/runs-healthy", HOURLY)
    shop.ask("PUT", "jobs/runs-manual", {"task": "shop.pack", "kwargs": {"order": 1}})
    shop.ask("PUT", "jobs/runs-paused", HOURLY)
    paused = shop.ask("GET", "jobs?q=runs-paused")["items"][0]["job_id"]
    shop.ask("POST", f"jobs/{paused}/pause", {})
    for name, title in (
        ("runs-healthy", re.compile(r"^Next run at \d{4}-")),
        ("runs-manual", "runs-manual runs only when it is triggered"),
        ("runs-paused", "Why is runs-paused not running?"),
    ):
        page = eye.go(f"jobs?q={name}")
        page.locator("tr[data-row]").first.focus()
        page.keyboard.press("e")
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading")).to_have_text(title)
        blocking = dialog.locator("li.tone-bad")
        if name == "runs-paused":
            expect(blocking).not_to_have_count(0)
        else:
            expect(dialog.locator("li").first).to_be_visible()
            assert blocking.count() == 0
        page.keyboard.press("Escape")


def test_settings_name_the_process_they_are_of(eye: Eye, shop: Shop) -> None:
    page = eye.go("settings?tab=configuration")
    process = page.locator(".lead", has_text="This server")
    expect(process).to_contain_text(socket.gethostname())
    expect(process).to_contain_text("runs the API and console, a scheduler")
    pid = shop.ask("GET", "settings")["process"]["pid"]
    expect(process).to_contain_text(str(pid))
    os.kill(pid, 0)  # it is a process of this machine
    source = page.locator("label", has_text="Set by").get_by_role("combobox")
    source.select_option("dev")
    until(lambda: "source=dev" in page.url, "the filter is part of the address")
    expect(page.get_by_role("table").or_(page.get_by_text("No matching settings"))).to_be_visible()


NOTIFICATIONS: Final = """
globalThis.shown = [];
globalThis.askedFor = 0;
globalThis.Notification = class {
  static permission = "default";
  static async requestPermission() { askedFor += 1; return (Notification.permission = "granted"); }
  constructor(title, { body }) { shown.push(`${title}: ${body}`); }
};
"""  # Chromium without a display shows no notifications


def test_new_attention_items_are_announced_while_the_tab_is_hidden(eye: Eye, shop: Shop) -> None:
    page = eye.page
    page.add_init_script(NOTIFICATIONS)
    page.clock.install()
    eye.go("settings?tab=browser")
    box = page.get_by_label("Browser notifications")
    expect(box).not_to_be_checked()
    assert page.evaluate("askedFor") == 0  # only a click asks
    box.check()
    expect(box).to_be_checked()
    assert page.evaluate("askedFor") == 1

    def looked() -> int:
        return sum("/overview?range=1h" in url for url in eye.asked)

    assert looked() == 0  # a visible tab does not ask
    with page.expect_response(lambda response: "/overview?range=1h" in response.url):  # it learns what is there
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { configurable: true, get: () => true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    shop.break_down(WHY)
    job = shop.ask("PUT", "jobs/runs-notified", {**HOURLY, "task": "shop.ship"})
    shop.ended(shop.ask("POST", f"jobs/{job['job_id']}/run", {})["run_id"])

    def announced() -> bool:
        page.clock.fast_forward(61_000)
        page.wait_for_timeout(200)
        return any("runs-notified" in text for text in page.evaluate("shown"))

    until(announced, "the failing job is announced")
    count = len(page.evaluate("shown"))
    page.evaluate(
        "Object.defineProperty(document, 'hidden', { configurable: true, get: () => false });"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    before = looked()
    page.clock.fast_forward(200_000)
    page.wait_for_timeout(200)
    assert looked() == before
    assert len(page.evaluate("shown")) == count


def test_a_worker_links_to_the_runs_that_it_executes(eye: Eye, shop: Shop) -> None:
    shop.ask("PUT", "jobs/long%20shift", {"task": "shop.wait"})
    run = shop.ask("POST", "jobs/long%20shift/run", {})["run_id"]
    state = until(lambda: (one := shop.ask("GET", f"runs/{run}"))["state"] == "running" and one, "the run executes")
    page = eye.go("workers")
    row = page.get_by_role("table", name="Workers").locator("tr[data-row]").filter(has_text="long shift")
    expect(row).to_contain_text(worker_name(shop, state["worker_id"]))
    eye.picture("workers with a running run")
    row.get_by_title("Show the running runs").click()
    page.wait_for_url(f"**/runs?worker={state['worker_id']}&state=running")
    expect(page.get_by_role("table", name="Runs")).to_contain_text("long shift")
    shop.ask("POST", f"runs/{run}/cancel", {})
    assert shop.ended(run)["state"] == "cancelled"
