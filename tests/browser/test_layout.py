"""What fits where: columns that do not overlap, cards on phones, targets for thumbs, large text and calm motion."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import pytest
from playwright.sync_api import FloatRect, Page, expect

from .conftest import Eye, Shop
from .test_five_seconds import execute

PHONE: Final = {"width": 390, "height": 844}
TAP_PIXELS: Final = 44
LONG: Final = "layout-invoices-and-reminders-for-the-customers-of-every-region-and-every-subsidiary"
PAGES: Final = (
    "",
    "jobs?q=layout-",
    "jobs/{job}",
    *(f"jobs/{{job}}?tab={tab}" for tab in ("ledger", "schedule", "configuration", "metrics", "revisions", "events")),
)
SIZES: Final = ((1440, 900), (1280, 860), (390, 844))
# Links inside of sentences and of table cells are exempt, as in WCAG 2.5.8; so are texts that only scroll.
TARGETS: Final = """() => [...document.querySelectorAll(
    'button, select, input, summary, [role=tab], [role=menuitem], a.button, a.chip, .rail a, main a.name')]
  .filter((one) => one.checkVisibility({visibilityProperty: true}) && one.getClientRects().length)
  .map((one) => {
    const target = one.matches('input[type=checkbox], input[type=radio]') ? one.closest('label') ?? one : one;
    const {width, height} = target.getBoundingClientRect();
    return {what: one.outerHTML.slice(0, 120), width: Math.round(width), height: Math.round(height)};
  })"""


@pytest.fixture(scope="module")
def made(started: Shop) -> Mapping[str, str]:
    """Jobs with long and short names, of which one has failed runs and several revisions."""
    body = {"task": "shop.pack", "kwargs": {"order": 1}, "tags": ["finance", "nightly", "customer-facing", "eu"]}
    cron = {"cron": "30 2 * * 1-5", "tz": "Europe/Paris"}
    started.ask("PUT", f"jobs/{LONG}", {**body, "schedule": cron})
    execute(started.dsn, "update jobs set owner = 'the-platform-team-of-the-north' where name = $1", LONG)
    started.ask("PUT", "jobs/layout-every-minute", {**body, "tags": [], "schedule": {"every": "1m"}})
    job = started.ask("PUT", "jobs/layout-b", {**body, "schedule": {"every": "1h"}})
    started.ask("PATCH", f"jobs/{job['job_id']}", {"priority": 3, "retry": {"attempts": 7}})
    started.ended(started.ask("POST", f"jobs/{job['job_id']}/run", {})["run_id"])
    started.break_down("no label")
    ship = {"task": "shop.ship", "kwargs": {"order": 4}, "schedule": {"every": "1h"}}
    failing = started.ask("PUT", "jobs/layout-failing", ship)
    started.ended(started.ask("POST", f"jobs/{failing['job_id']}/run", {})["run_id"])
    started.mend()
    return {"job": job["job_id"]}


def box(page: Page, selector: str) -> FloatRect:
    found = page.locator(selector).first.bounding_box()
    assert found is not None, selector
    return found


@pytest.mark.parametrize("width", [1440, 1280, 1024])
def test_the_columns_of_jobs_do_not_overlap(width: int, eye: Eye, made: Mapping[str, str]) -> None:
    page = eye.page
    page.set_viewport_size({"width": width, "height": 860})
    eye.go("jobs?q=layout-")
    rows = page.locator("tr[data-row]")
    expect(rows).to_have_count(4)
    for n in range(rows.count()):
        row = rows.nth(n)
        cells = [row.locator(one) for one in (".name", "td:nth-last-child(3)", ".owner-cell .clip", ".row-actions")]
        boxes = [cell.bounding_box() for cell in cells]
        for cell, place in zip(cells, boxes, strict=True):
            assert place is not None
            assert place["width"] > 5
            assert place["x"] + place["width"] <= width
            on_top = "(one, [x, y]) => one.contains(document.elementFromPoint(x, y))"
            middle = [place["x"] + place["width"] / 2, place["y"] + place["height"] / 2]
            assert cell.evaluate(on_top, middle), "the cell is covered"
        for left, right in pairwise(boxes):
            assert left is not None
            assert right is not None
            assert left["x"] + left["width"] <= right["x"] + 1
    heights = {round((rows.nth(n).bounding_box() or {"height": 0})["height"]) for n in range(rows.count())}
    assert max(heights) - min(heights) <= 1, "tags make no row higher"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = page.locator(".table.jobs").evaluate("(one) => [one.scrollWidth, one.clientWidth]")
    assert shown[0] <= shown[1], "the table scrolls sideways"


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_shows_cards_and_targets_for_thumbs(path: str, eye: Eye, made: Mapping[str, str]) -> None:
    page = eye.page
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    eye.go(path.format_map(made))
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "the page scrolls sideways"
    small = [one for one in page.evaluate(TARGETS) if min(one["height"], one["width"]) < TAP_PIXELS]
    assert small == []
    tables: list[list[Any]] = page.eval_on_selector_all(
        "main table", "(all) => all.map((one) => [one.caption?.textContent, getComputedStyle(one).display])"
    )
    assert [caption for caption, display in tables if display == "table"] == []


def test_a_phone_folds_the_filters_of_jobs(eye: Eye, made: Mapping[str, str]) -> None:
    page = eye.page
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    eye.go("jobs?q=layout-&tag=finance&state=enabled")
    toggle = page.get_by_role("button", name="Filters (1)")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_label("Tag", exact=True)).to_be_hidden()
    folded = box(page, ".table.jobs")["y"]
    assert folded < PHONE["height"] / 2, "the list begins in the upper half"
    toggle.click()
    expect(page.get_by_label("Tag", exact=True)).to_have_value("finance")
    assert box(page, ".table.jobs")["y"] > folded
    page.set_viewport_size({"width": 1280, "height": 860})
    expect(page.get_by_label("Tag", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_label("Tag", exact=True)).to_have_value("finance")  # wide pages show filters that are in use


def test_key_figures_have_their_words_below_the_number(eye: Eye, made: Mapping[str, str]) -> None:
    page = eye.page
    for width in (PHONE["width"], 1440):
        page.set_viewport_size({"width": width, "height": PHONE["height"]})
        eye.go()
        gaps = page.locator(".sums a").evaluate_all("""(all) => all.map((one) => {
            const [number, words] = [one.querySelector("strong"), document.createRange()];
            const isText = (child) => child.nodeType === Node.TEXT_NODE && child.data.trim();
            words.selectNodeContents([...one.childNodes].findLast(isText));
            return words.getBoundingClientRect().top - number.getBoundingClientRect().bottom;
        })""")
        assert len(gaps) > 5
        assert min(gaps) >= -2


def test_texts_that_are_cut_have_a_tooltip(eye: Eye, made: Mapping[str, str]) -> None:
    page = eye.page
    page.set_viewport_size({"width": 1024, "height": 860})
    eye.go("jobs?q=layout-")
    cut = page.locator(".table.jobs tbody *").evaluate_all("""(all) => all
        .filter((one) => getComputedStyle(one).textOverflow === "ellipsis" && one.scrollWidth > one.clientWidth)
        .map((one) => [one.textContent, Boolean(one.closest("[title]") ?? one.querySelector("[title]"))])""")
    assert len(cut) > 0
    assert [text for text, has_tooltip in cut if not has_tooltip] == []


def test_the_drawer_has_targets_for_thumbs(eye: Eye) -> None:
    page = eye.page
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    eye.go("jobs")
    page.get_by_role("button", name="Menu", exact=True).click()
    expect(
        page.get_by_role("navigation", name="pages", exact=True).get_by_role("link", name="Calendar")
    ).to_be_visible()
    links = page.locator(".rail a")
    assert links.count() > 10
    assert all((links.nth(n).bounding_box() or {"height": 0})["height"] >= TAP_PIXELS for n in range(links.count()))


@pytest.mark.parametrize("path", PAGES)
def test_large_text_needs_no_scrolling_sideways(path: str, eye: Eye, made: Mapping[str, str]) -> None:
    """A zoom of 200 % halves the viewport."""
    page = eye.page
    page.set_viewport_size({"width": 640, "height": 430})
    eye.go(path.format_map(made))
    assert page.evaluate("document.documentElement.scrollWidth") <= 640
    assert box(page, "main")["width"] <= 640


def test_nothing_moves_for_those_who_asked_for_less_motion(eye: Eye, made: Mapping[str, str]) -> None:
    page = eye.page
    page.emulate_media(reduced_motion="reduce")
    page.route("**/api/v1/jobs?*", lambda route: None)  # the list never arrives, so its placeholder stays
    page.goto(f"{eye.home}jobs")
    bone = page.locator(".skeleton.table .bone").first
    expect(bone).to_be_visible()
    assert bone.evaluate("(one) => getComputedStyle(one).animationName") == "none"
    assert page.evaluate("document.getAnimations().length") == 0
    page.emulate_media(reduced_motion="no-preference")
    assert bone.evaluate("(one) => getComputedStyle(one).animationName") == "bone"


def test_a_placeholder_keeps_the_place_of_the_list(eye: Eye, made: Mapping[str, str]) -> None:
    page = eye.page
    page.route("**/api/v1/jobs?*", lambda route: None)
    page.goto(f"{eye.home}jobs")
    skeleton = page.locator(".skeleton.table")
    expect(skeleton).to_have_attribute("aria-busy", "true")
    expect(skeleton.get_by_text("Loading")).to_be_attached()
    place = skeleton.bounding_box()
    assert place is not None
    page.unroute("**/api/v1/jobs?*")
    eye.go("jobs")
    assert abs(box(page, ".table.jobs")["y"] - place["y"]) <= 8


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_of_every_size_and_theme(
    theme: str, width: int, height: int, eye: Eye, made: Mapping[str, str]
) -> None:
    page = eye.page
    page.add_init_script(f"localStorage['bellringer.theme'] = '{theme}'")
    page.set_viewport_size({"width": width, "height": height})
    for path in PAGES:
        eye.go(path.format_map(made))
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == theme
        name = path.replace("{job}", "job").replace("?q=layout-", "").replace("?tab=", " ") or "overview"
        eye.picture(f"layout {name} {width} {theme}")
