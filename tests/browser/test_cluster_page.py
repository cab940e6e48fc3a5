"""The cluster page with a second scheduler that joins and dies, discards that are undone, and pages on a phone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page, expect

from .conftest import BELLRINGER, PATIENCE, Eye, Open, Shop, until
from .test_pages import faults

PHONE: Final = {"width": 390, "height": 844}
TAP_PIXELS: Final = 44
SMALL_TARGETS: Final = """([selector, least]) => [...document.querySelectorAll(selector)].filter((one) => {
    const { width, height } = one.getBoundingClientRect();
    return width > 0 && height > 0 && (height < least - 0.5 || width < least - 0.5);
}).map((one) => one.outerHTML.slice(0, 120))"""


@pytest.fixture
def second(shop: Shop) -> Iterator[subprocess.Popen[bytes]]:
    """A second scheduler of the installation."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
    log = shop.folder / "second.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [BELLRINGER, "scheduler"],
            cwd=shop.folder,
            env={**kept, "BELLRINGER_DSN": shop.dsn},
            stdout=said,
            stderr=said,
        )
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(PATIENCE)


def name_of(shop: Shop, process: subprocess.Popen[bytes]) -> str:
    def look() -> str | None:
        return next((node["name"] for node in shop.ask("GET", "cluster")["nodes"] if node["pid"] == process.pid), None)

    return until(look, "the second scheduler has joined")


def shards(shop: Shop) -> dict[str, int]:
    found: dict[str, int] = {}
    for lease in shop.ask("GET", "cluster")["leases"]:
        found[lease["node"]] = found.get(lease["node"], 0) + 1
    return found


def test_moves_of_shards_are_shown_with_their_cause(eye: Eye, shop: Shop, second: subprocess.Popen[bytes]) -> None:
    name = name_of(shop, second)
    until(lambda: shards(shop).get(name) == 32, "the second scheduler has its share")
    page = eye.go("cluster")
    expect(page.locator(".shards .shard")).to_have_count(64)
    groups = page.locator(".shard-group")
    expect(groups).to_have_count(2)
    for n in range(2):  # sorted by holder, then by number
        numbers = [int(text) for text in groups.nth(n).locator(".shard").all_inner_texts()]
        assert len(numbers) == 32
        assert numbers == sorted(numbers)
    holders = page.locator(".holders li")
    expect(holders).to_have_text(
        [re.compile(r"32 of 64, held for \d"), re.compile(rf"{re.escape(name)}.*32 of 64, held for \d")]
    )
    moves = page.locator(".moves")
    expect(moves).to_contain_text("free shards")
    expect(moves.locator("li", has_text=name).first).to_contain_text(re.compile("32 (free )?shards"))
    expect(page.locator(".moves-column")).not_to_have_count(0)
    nodes = page.get_by_role("table", name="Scheduler nodes")
    expect(nodes.locator("tr", has_text=name).locator("[data-label='Held for']")).to_have_text(re.compile(r"\d"))
    second.send_signal(signal.SIGKILL)
    second.wait(PATIENCE)
    until(lambda: set(shards(shop).values()) == {64}, "the first scheduler has taken over")
    expired = moves.locator("li", has_text="lease expired").first
    expect(expired).to_contain_text("32 shards")
    expect(page.locator(".verdict")).to_contain_text(f"the leases of {name} on 32 shards expired")
    expect(page.locator(".verdict")).to_contain_text("Warning")
    expect(nodes.locator("tr", has_text=name)).to_contain_text(re.compile("lost|gone"))
    expect(expired).to_contain_text("from")
    expect(expired).to_contain_text(name)
    expect(page.locator(".shard-group")).to_have_count(1)
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []
    eye.picture("cluster moves light")
    page.get_by_role("group", name="Period").get_by_role("button", name="24 h").click()
    expect(expired).to_be_visible()
    assert "hours=24" in page.url


def test_the_health_of_the_database_is_shown(eye: Eye, shop: Shop) -> None:
    page = eye.go("cluster")
    card = page.get_by_role("region", name="Database")
    expect(card).to_contain_text("PostgreSQL")
    expect(card.get_by_role("meter", name="connections of the database server")).to_be_visible()
    expect(card).to_contain_text("complete for today and tomorrow")
    expect(card.locator("dd").nth(1)).to_have_text(re.compile(r"\d ?ms"))


def test_another_tenants_viewer_does_not_see_the_database(look: Open, shop: Shop) -> None:
    key = shop.ask("POST", "api-keys", {"name": "cluster viewer", "role": "viewer"})["key"]
    eye = look(shop.console)
    eye.page.add_init_script(f"sessionStorage['bellringer.key'] = '{key}'")
    page = eye.go("cluster")
    expect(page.locator(".shards .shard")).to_have_count(64)
    expect(page.get_by_role("region", name="Database")).to_have_count(0)
    assert not any("cluster/database" in url for url in eye.asked)


def die(shop: Shop, why: str, count: int) -> list[str]:
    shop.break_down(why)
    sent = [shop.ask("POST", "jobs/execute", {"task": "shop.ship", "kwargs": {"order": n}}) for n in range(count)]
    for run in sent:
        assert shop.ended(run["run_id"])["state"] == "dead"
    shop.mend()
    return [run["run_id"] for run in sent]


def dead(shop: Shop) -> set[str]:
    return {letter["run_id"] for letter in shop.ask("GET", "dead-letters?limit=200")["items"]}


def open_group(eye: Eye, shop: Shop, run_id: str) -> Page:
    items: list[Any] = shop.ask("GET", "dead-letters?limit=200")["items"]
    [letter] = [item for item in items if item["run_id"] == run_id]
    return eye.go(f"dead-letters?fingerprint={letter['fingerprint']}")


def test_the_discard_of_a_dead_letter_is_undone_from_its_notification(eye: Eye, shop: Shop) -> None:
    [run] = die(shop, "a broken axle", 1)
    page = open_group(eye, shop, run)
    page.get_by_role("button", name=f"Discard {run}").click()
    expect(page.locator(".notice")).to_contain_text("Discarded the dead letter")
    until(lambda: run not in dead(shop), "it was discarded")
    page.get_by_role("button", name="Undo").click()
    until(lambda: run in dead(shop), "it was restored")
    expect(page.get_by_role("button", name=f"Discard {run}")).to_be_visible()


def test_an_operation_that_discarded_dead_letters_is_undone(eye: Eye, shop: Shop) -> None:
    runs = die(shop, "a lost wheel", 3)
    page = open_group(eye, shop, runs[0])
    page.get_by_role("button", name="Discard these…").click()
    form = page.get_by_role("dialog")
    expect(form).to_contain_text("you can undo this for a day")
    form.get_by_label("Type 3 to continue").fill("3")
    form.get_by_role("button", name="Discard 3 dead letters").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Discard dead letters")
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.locator(".notices")).to_contain_text("Restored 3 dead letters")
    assert dead(shop) >= set(runs)
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.locator(".notices")).to_contain_text("Nothing to restore")


def test_actions_on_all_dead_letters_are_in_a_menu(eye: Eye, shop: Shop) -> None:
    die(shop, "a flat battery", 1)
    page = eye.go("dead-letters")
    assert page.locator("main button.main, main button.danger").count() == 0, "no loud button"
    page.get_by_role("button", name="More actions").click()
    expect(page.get_by_role("menuitem")).to_have_text(["Retry all…", "Discard all…", "Copy CLI", "Copy curl"])
    page.keyboard.press("Escape")
    page.get_by_role("button", name=re.compile("Discard: .*flat battery")).click()
    expect(page.get_by_role("dialog")).to_contain_text("Discard 1 dead letter")


def test_discarded_dead_letters_are_listed_and_restored(eye: Eye, shop: Shop) -> None:
    runs = die(shop, "no petrol", 3)
    shop.ask("POST", "dead-letters/discard", {"runs": runs})
    page = eye.go("dead-letters")
    page.get_by_role("group", name="View").get_by_role("button", name="Discarded").click()
    rows = page.get_by_role("table", name="Discarded dead letters").locator("tr[data-row]")
    expect(rows).to_have_count(3)
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []
    page.get_by_role("button", name=f"Restore {runs[0]}").click()
    expect(page.locator(".notices")).to_contain_text("Restored 1 dead letter")
    page.mouse.move(0, 0)  # rows do not move under the pointer
    expect(rows).to_have_count(2)
    assert runs[0] in dead(shop)
    page.get_by_role("button", name="Restore all").click()
    page.get_by_text("Nothing was discarded in the last day").wait_for()
    assert dead(shop) >= set(runs)


@pytest.mark.parametrize("path", ["cluster", "workers", "workflows", "dead-letters", "audit", "operations/{operation}"])
def test_pages_fit_a_phone_with_targets_for_a_thumb(path: str, eye: Eye, shop: Shop) -> None:
    pack = {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "1h"}}
    job_id = shop.ask("PUT", "jobs/on-a-phone", pack)["job_id"]
    shop.ask("PUT", "jobs/flow-on-a-phone", {"workflow": {"nodes": [{"name": "a", "task": "shop.give"}]}})
    if not dead(shop):
        die(shop, "a puncture", 1)
    operation = shop.ask("POST", "bulk", {"action": "jobs.resume", "ids": [job_id]})["operation_id"]
    eye.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    page = eye.go(path.format(operation=operation))
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "the page scrolls sideways"
    small = page.evaluate(SMALL_TARGETS, ["main button:not(.link), main select, main input[type=search]", TAP_PIXELS])
    assert small == []
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []
    eye.picture(f"{path} phone")
