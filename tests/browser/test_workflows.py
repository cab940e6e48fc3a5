"""Workflows in the console: the list, a workflow run as graph, timeline and list, nodes, and versions of a graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from random import Random
from typing import Any, Final
from urllib.parse import quote

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Locator, Page, expect

from .conftest import MARKUP, Eye, Open, Shop, until
from .test_pages import NARROW, faults

Node = dict[str, Any]
ETL: Final[tuple[Node, ...]] = (
    {"name": "extract", "task": "shop.give", "kwargs": {"value": [1, 2, 3, 4, 5]}},
    {"name": "weigh", "task": "shop.weigh", "over": {"node": "extract"}, "takes": {"order": {"item": True}}},
    {"name": "load", "task": "shop.give", "takes": {"value": {"node": "weigh"}}},
    {"name": MARKUP, "task": "shop.give", "kwargs": {"value": MARKUP}, "after": ["extract"]},
    {"name": "pick", "task": "shop.give", "kwargs": {"value": "weekday"}},
    {"name": "weekday", "task": "shop.pack", "kwargs": {"order": 1}, "after": [{"node": "pick", "is": "weekday"}]},
    {"name": "weekend", "task": "shop.pack", "kwargs": {"order": 2}, "after": [{"node": "pick", "is": "weekend"}]},
    {"name": "pause", "wait": {"for": "300ms"}, "after": ["weekday"]},
    {"name": "approved", "signal": {"timeout": "1h"}, "after": ["weekday"]},
    {"name": "sub", "workflow": {"nodes": [{"name": "deep", "task": "shop.give"}]}, "after": ["pick"]},
    {"name": "report", "task": "shop.give", "after": ["load", "pause", "approved", "sub"], "when": "all_done"},
    {"name": "unpack", "task": "shop.give", "undoes": "weekday"},
)
PATHS: Final = (
    "workflows",
    "runs/{run}",
    "runs/{run}?dir=tb&follow=1",
    "runs/{run}?node=weigh&element=dead",
    "runs/{run}?node=weigh[2]",
    "runs/{run}?node={markup}",
    "runs/{run}?view=gantt&node=load",
    "runs/{run}?view=list",
    "runs/{run}?tab=run",
    "runs/{waiting}?node=approved",
    "runs/{node}",
    "runs/{sub}",
    "runs?state=dead",
    "jobs/{job}/edit",
    "jobs/{job}?tab=graph&node=weigh",
    "jobs/{job}?tab=graph&version={new}&against={old}&node=load",
)


def make(shop: Shop, name: str, *nodes: Node, **more: Any) -> str:
    """A workflow, or a new version of it; answers the job's id."""
    made = shop.ask("PUT", f"jobs/{quote(name, safe='')}", {"workflow": {"nodes": list(nodes), **more}})
    job_id: str = made["job_id"]
    return job_id


def start(shop: Shop, job_id: str) -> str:
    run_id: str = shop.ask("POST", f"jobs/{job_id}/run", {})["run_id"]
    return run_id


def states(shop: Shop, run_id: str) -> dict[str, str]:
    return {node["name"]: node["state"] for node in shop.ask("GET", f"runs/{run_id}/graph")["nodes"]}


def waits(shop: Shop, run_id: str, name: str, state: str) -> None:
    until(lambda: states(shop, run_id)[name] == state, f"{name} is {state}")


def versions(shop: Shop, job_id: str) -> list[int]:
    return [one["version"] for one in shop.ask("GET", f"jobs/{job_id}/graph/versions")["items"]]


@pytest.fixture(scope="module")
def full(started: Shop) -> Mapping[str, str]:
    """A workflow with nodes of every kind, two versions of it, a run that has died and one that waits."""
    changed = [node for node in ETL if node["name"] != "weekend"]
    changed[2] = {**changed[2], "priority": 7, "after": ["pick"]}
    job = make(started, f"etl {MARKUP}", *ETL, params={"region": {"default": {"value": "eu"}}}, output="report")
    started.break_down(f"no scales: {MARKUP}")
    run = start(started, job)
    waits(started, run, "approved", "waiting")
    started.ask("POST", f"runs/{run}/signals/approved", {"payload": {"by": MARKUP}})
    assert started.ended(run)["state"] == "dead"
    started.mend()
    waiting = start(started, job)
    waits(started, waiting, "approved", "waiting")
    graph = started.ask("GET", f"runs/{run}/graph")
    of = {one["name"]: one["run_id"] for one in graph["nodes"]}
    make(started, f"etl {MARKUP}", *changed, {"name": "tell", "task": "shop.give", "after": ["load"]})
    new, old = versions(started, job)
    found = {
        "job": job,
        "run": run,
        "waiting": waiting,
        "node": of[MARKUP],
        "sub": of["sub"],
        "new": str(new),
        "old": str(old),
    }
    return {**found, "markup": quote(MARKUP)}


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_sound(path: str, eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(path.format_map(full))
    until(lambda: MARKUP in page.evaluate("document.body.textContent"), "markup is shown as text")
    page.evaluate(AXE_SCRIPT)
    eye.picture(f"workflow {path} light")
    assert faults(page) == []
    page.keyboard.press("t")
    until(lambda: page.evaluate("document.documentElement.dataset.theme") == "dark", "the page is dark")
    eye.picture(f"workflow {path} dark")
    assert faults(page) == []
    page.set_viewport_size({"width": NARROW["width"], "height": NARROW["height"]})
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], "the page scrolls sideways"
    page.locator("[role=tabpanel], table, .cards, .job-form").first.evaluate("(one) => one.scrollIntoView()")
    eye.picture(f"workflow {path} narrow")
    assert faults(page) == []
    assert page.locator("img[src=x]").count() == 0
    assert page.locator(".trouble").count() == 0, page.locator(".trouble").all_inner_texts()


def box(page: Page, name: str) -> Locator:
    return page.locator(f'.dag [data-node="{name}"]')


def test_who_has_none_is_shown_how_to_write_one(look: Open, shop: Shop) -> None:
    shop.ask("POST", "tenants", {"name": "flowless"})
    eye = look(shop.console, tenant="flowless")
    page = eye.go("jobs")
    page.keyboard.press("g")
    page.keyboard.press("f")
    page.get_by_role("heading", name="No workflows yet").wait_for()
    expect(page.get_by_label("etl.py", exact=True)).to_contain_text("@app.workflow")
    eye.picture("workflows none")


def test_a_workflow_is_found_in_the_list_and_opened(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go("workflows?q=etl")
    row = page.get_by_role("row").filter(has_text=MARKUP)
    expect(row).to_contain_text("12 nodes")
    expect(row).to_contain_text(re.compile(r"running\s*\d+ of 12 nodes"))
    row.get_by_role("link", name="Last run").click()
    page.wait_for_url(f"**/runs/{full['waiting']}")
    expect(box(page, "approved")).to_contain_text("waiting")


def test_the_graph_reports_states_maps_branches_and_the_critical_path(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(f"runs/{full['run']}")
    expect(box(page, "weigh")).to_contain_text("×5")
    expect(box(page, "weigh")).to_contain_text("1 dead")
    expect(box(page, "weigh")).to_contain_text("4 succeeded")
    expect(box(page, "weekend")).to_have_attribute(
        "aria-label", "weekend: skipped, its branch was not taken, task shop.pack"
    )
    expect(box(page, "load")).to_contain_text("skipped")
    expect(page.locator(".dag .on-line", has_text="= weekday")).to_have_count(1)
    strong = page.locator(".dag .box.strong")
    path = until(
        lambda: [one["name"] for one in page_graph(eye, full["run"])["nodes"] if one["critical"]], "there is a path"
    )
    expect(strong).to_have_count(len(path))
    expect(page.locator(".dag .line.strong")).to_have_count(1)


def test_failed_nodes_are_listed_with_their_errors(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(f"runs/{full['run']}")
    expect(page.locator(".verdict")).to_contain_text("Node weigh[2] failed: RuntimeError: no scales")
    page.locator(".verdict").get_by_role("link", name="Show weigh[2]").click()
    expect(page.get_by_role("complementary", name="node weigh[2]")).to_be_visible()
    page.keyboard.press("Escape")
    row = page.get_by_role("table", name="Failed nodes").locator("tr[data-row]")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("RuntimeError: no scales")
    row.get_by_role("link", name="Logs of weigh[2]").click()
    expect(page.get_by_role("heading", name="weigh[2]", exact=True)).to_be_visible()


def test_nodes_are_folded_below_their_workflow_run(eye: Eye, shop: Shop) -> None:
    nodes = [{"name": name, "task": "shop.give"} for name in ("one", "two")]
    run = start(shop, make(shop, "folded", *nodes))
    assert shop.ended(run)["state"] == "succeeded"
    page = eye.go("runs")
    rows = page.get_by_role("table", name="Runs").locator("tr[data-row]")
    expect(rows.filter(has_text="folded")).to_have_count(1)
    page.get_by_role("button", name="Show 2 node runs of folded").click()
    expect(rows.filter(has_text="folded")).to_have_count(3)
    page.get_by_role("button", name="Hide 2 node runs of folded").click()
    expect(rows.filter(has_text="folded")).to_have_count(1)
    eye.go("runs?cause=workflow")  # single nodes are asked for
    expect(rows.filter(has_text="folded")).to_have_count(2)


def test_a_workflow_is_started_and_paused_from_the_list(eye: Eye, shop: Shop) -> None:
    job = make(shop, "listed", {"name": "pack", "task": "shop.pack", "kwargs": {"order": 1}})
    page = eye.go("workflows?q=listed")
    page.get_by_role("button", name="Run now: listed").click()
    page.get_by_role("link", name="Show the run").wait_for()
    page.get_by_role("button", name="Pause: listed").click()
    page.get_by_role("button", name="Resume: listed").wait_for()
    assert shop.ask("GET", f"jobs/{job}")["paused"] is not None


def test_the_list_names_the_failed_node_and_the_state_of_the_job(eye: Eye, shop: Shop) -> None:
    shop.break_down("no scales")
    job = make(shop, "breaks", {"name": "weigh", "task": "shop.weigh", "kwargs": {"order": 3}})
    run = start(shop, job)
    assert shop.ended(run)["state"] == "dead"
    shop.mend()
    page = eye.go("workflows?q=breaks")
    table = page.get_by_role("table", name="Workflows")
    expect(table.locator("tr[data-row]")).to_contain_text("failing")
    expect(table.locator("tr.detail")).to_contain_text("RuntimeError: no scales")
    shop.ask("POST", f"jobs/{job}/pause", {})
    expect(table.locator("tr[data-row]")).to_contain_text("paused")
    table.get_by_role("link", name="Show weigh").click()
    page.wait_for_url(f"**/runs/{run}?node=weigh")


def test_a_wide_graph_fits_a_phone(eye: Eye, shop: Shop) -> None:
    nodes = [{"name": f"read {n}", "task": "shop.give"} for n in range(3)]
    run = start(shop, make(shop, "wide", *nodes, {"name": "train", "task": "shop.give", "after": ["read 0", "read 1"]}))
    assert shop.ended(run)["state"] == "succeeded"
    eye.page.set_viewport_size({"width": NARROW["width"], "height": NARROW["height"]})
    page = eye.go(f"runs/{run}")
    expect(page.locator(".dag .box")).to_have_count(4)
    for n in range(3):
        place = box(page, f"read {n}").bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= NARROW["width"]
        assert place["width"] > 80  # readable
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()


def page_graph(eye: Eye, run_id: str) -> Any:
    return eye.page.evaluate("(id) => fetch(`../api/v1/runs/${id}/graph`).then((it) => it.json())", run_id)


def test_the_elements_of_a_map_are_listed_and_opened(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(f"runs/{full['run']}")
    box(page, "weigh").click()
    panel = page.get_by_role("complementary", name="node weigh")
    expect(panel.locator(".elements li")).to_have_count(5)
    panel.get_by_role("group", name="elements by state").get_by_role("button", name="dead").click()
    expect(panel.locator(".elements li")).to_have_count(1)
    assert "element=dead" in page.url
    panel.locator(".elements button").click()
    element = page.get_by_role("complementary", name="node weigh[2]")
    expect(element).to_contain_text("RuntimeError: no scales")
    element.get_by_role("link", name="attempts and logs").click()
    expect(page.get_by_role("heading", name="weigh[2]", exact=True)).to_be_visible()
    page.get_by_role("navigation", name="Breadcrumbs").get_by_role("link", name="workflow run").click()
    expect(element).to_be_visible()  # the crumb leads back to it


def test_nodes_are_walked_by_the_keyboard(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(f"runs/{full['run']}")
    box(page, "extract").focus()
    page.keyboard.press("ArrowRight")
    focused = "document.activeElement.dataset.node"
    moved = until(lambda: (name := page.evaluate(focused)) != "extract" and name, "the focus moves along")
    page.keyboard.press("ArrowLeft")
    until(lambda: page.evaluate(focused) in {"extract", "pick"}, "and back")
    box(page, moved).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name=f"node {moved}")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_have_count(0)
    zoomed = "document.querySelector('.dag g').getAttribute('transform')"
    before = page.evaluate(zoomed)
    page.keyboard.press("+")
    assert page.evaluate(zoomed) != before
    page.get_by_role("button", name="List", exact=True).click()
    rows = page.locator("tr[data-row]")
    expect(rows).to_have_count(12)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    name = rows.nth(1).get_attribute("data-row")
    expect(page.get_by_role("complementary", name=f"node {name}")).to_be_visible()
    assert "view=list" in page.url


def test_a_graph_is_dragged_zoomed_by_the_wheel_and_turned(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(f"runs/{full['run']}")
    place = "document.querySelector('.dag > svg > g').getAttribute('transform')"
    frame = page.locator(".dag > svg").bounding_box()
    assert frame is not None
    at = (frame["x"] + 20, frame["y"] + frame["height"] - 20)
    first = page.evaluate(place)
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] + 90, at[1] - 60, steps=5)
    page.mouse.up()
    second = page.evaluate(place)
    assert second != first
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    until(lambda: page.evaluate(place).split("scale")[1] != second.split("scale")[1], "it is closer")
    page.get_by_role("button", name="Fit the graph").click()
    across = box(page, "report").bounding_box()
    page.get_by_role("button", name="Down").click()
    assert "dir=tb" in page.url
    until(lambda: box(page, "report").bounding_box() != across, "it goes down")


def test_a_run_is_repaired_node_by_node(eye: Eye, shop: Shop) -> None:
    """Live: what is done is seen without a reload."""
    nodes = [{"name": "list", "task": "shop.give", "kwargs": {"value": [1, 2, 3]}}, ETL[1] | {"over": {"node": "list"}}]
    job = make(
        shop,
        "mended",
        *nodes,
        {"name": "ship", "task": "shop.ship", "kwargs": {"order": 1}},
        {**ETL[2], "after": ["ship"]},
    )
    shop.break_down("no scales")
    run = start(shop, job)
    assert shop.ended(run)["state"] == "dead"
    page = eye.go(f"runs/{run}?node=ship")
    page.get_by_role("button", name="Mark…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Mark…").click()  # the node is still beside the graph
    page.get_by_label("Reason").fill("shipped by hand")
    page.get_by_label("Result", exact=True).fill('"gone"')
    page.get_by_role("button", name="Mark succeeded").click()
    expect(box(page, "ship")).to_contain_text("succeeded")
    shop.mend()
    page.get_by_role("button", name="Retry all failed").click()
    expect(box(page, "load")).to_contain_text("succeeded")
    expect(page.locator(".verdict")).to_contain_text("Succeeded")
    box(page, "list").click()
    page.get_by_role("button", name="Retry with downstream").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("These 3 nodes have succeeded")
    dialog.get_by_role("button", name="Run again", exact=True).click()
    until(lambda: shop.ask("GET", f"runs/{run}/graph")["nodes"][0]["attempt"] >= 1, "it ran again")
    assert shop.ended(run)["state"] == "succeeded"


def test_a_workflow_is_run_with_params_and_edited(eye: Eye, shop: Shop) -> None:
    node = {"name": "give", "task": "shop.give", "takes": {"value": {"param": "what"}}}
    params = {"what": {}, "day": {"default": {"run": "date"}}}
    job = make(shop, "params", node, params=params, output="give")
    page = eye.go(f"jobs/{job}/edit")
    page.get_by_label("Parameters").fill('{"what": "nothing"}')
    page.get_by_role("button", name="Review changes…").click()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="params", exact=True).wait_for()
    page.get_by_role("button", name="Run now…").click()
    field = page.get_by_role("dialog").get_by_label("Parameters")
    expect(field).to_have_value('{\n  "what": "nothing"\n}')
    expect(page.get_by_role("dialog")).to_contain_text("parameters: day (optional), what")
    field.fill('{"what": "all"}')
    page.get_by_role("dialog").get_by_role("button", name="Run now", exact=True).click()
    page.get_by_role("link", name="Show the run").last.click()
    expect(box(page, "give")).to_contain_text("succeeded")
    box(page, "give").click()
    expect(page.locator("pre[aria-label=Result]")).to_have_text('"all"')
    assert shop.ask("GET", f"jobs/{job}")["workflow"]["nodes"] == 1


def test_a_signal_is_sent_and_a_node_and_the_run_are_cancelled(eye: Eye, shop: Shop) -> None:
    nodes = (
        {"name": "approve", "signal": {}},
        {"name": "long", "task": "shop.wait", "after": ["approve"]},
        {"name": "longer", "task": "shop.wait", "after": ["approve"]},
        {"name": "end", "task": "shop.give", "after": ["long", "longer"], "when": "all_done"},
    )
    run = start(shop, make(shop, "signalled", *nodes))
    page = eye.go(f"runs/{run}?node=approve")
    expect(box(page, "approve")).to_contain_text("waiting")
    reason = page.locator(".reasons li", has_text="waits for the signal")
    expect(reason).to_have_class("tone-calm")
    page.get_by_role("button", name="Send signal…").click()
    page.get_by_label("Payload").fill('{"by": "ana"}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(box(page, "long")).to_contain_text("running")
    box(page, "long").click()
    page.get_by_role("button", name="Cancel…").last.click()
    page.get_by_role("button", name="Cancel the node's run").click()
    expect(box(page, "long")).to_contain_text("cancelled")
    expect(box(page, "longer")).to_contain_text("running")
    page.get_by_role("group", name="Actions", exact=True).get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    expect(box(page, "end")).to_contain_text("skipped")
    assert shop.ended(run)["state"] == "cancelled"


def test_a_graph_follows_what_runs(eye: Eye, shop: Shop) -> None:
    chain = [{"name": f"c{n}", "task": "shop.give", "after": [f"c{n - 1}" if n else "gate"]} for n in range(12)]
    long = {"name": "far", "task": "shop.wait", "after": ["c11"]}
    run = start(shop, make(shop, "followed", {"name": "gate", "signal": {}}, *chain, long))
    waits(shop, run, "gate", "waiting")
    page = eye.go(f"runs/{run}")
    page.get_by_label("Follow running nodes").check()
    page.mouse.move(5, 5)  # under the pointer nothing moves by itself
    expect(box(page, "far")).to_have_count(0)  # out of sight
    shop.ask("POST", f"runs/{run}/signals/gate", {})
    expect(box(page, "far")).to_contain_text("running")
    expect(box(page, "far")).to_be_in_viewport()
    page.get_by_role("button", name="Timeline", exact=True).click()
    expect(page.locator(".gantt li").last).to_contain_text("far")
    expect(page.locator(".gantt .now").first).to_be_attached()
    shop.ask("POST", f"runs/{run}/cancel", {})
    assert shop.ended(run)["state"] == "cancelled"


def test_versions_are_compared_in_the_picture_and_in_words(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(f"jobs/{full['job']}?tab=graph")
    expect(page.locator(".dag .box")).to_have_count(12)
    page.get_by_label("Compare with").select_option(full["old"])
    words = page.get_by_role("region", name="Differences between versions")
    expect(words).to_contain_text("Nodes added: tell")
    expect(words).to_contain_text("Nodes removed: weekend")
    expect(words).to_contain_text("Nodes changed: load (after, priority)")
    expect(words).to_contain_text("pick → load")
    expect(page.locator(".dag .box.mark-added")).to_have_attribute("data-node", "tell")
    expect(page.locator(".dag .box.mark-removed")).to_have_attribute("data-node", "weekend")
    expect(page.locator(".dag .box.mark-changed")).to_have_count(1)
    expect(page.locator(".dag .line.added")).to_have_count(1)
    box(page, "load").click()
    expect(page.get_by_role("complementary", name="node load")).to_contain_text("priority")


def test_a_map_expands_to_its_elements_in_the_gantt(eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(f"runs/{full['run']}?view=gantt")
    rows = page.locator(".gantt .element")
    expect(rows).to_have_count(0)
    page.get_by_role("button", name="Show 5 elements of weigh").click()
    expect(rows).to_have_count(5)
    expect(page.locator(".gantt .element .run")).to_have_count(5)
    expect(page.locator(".gantt .element .run.tone-bad")).to_have_count(1)
    expect(rows.nth(2)).to_contain_text("dead")
    assert page.locator(".gantt .element .at-bar").all_inner_texts()[0].endswith("s")
    page.evaluate(AXE_SCRIPT)
    assert faults(page) == []
    rows.nth(2).get_by_role("button").click()
    expect(page.get_by_role("complementary", name="node weigh[2]")).to_be_visible()
    page.get_by_role("button", name="Hide 5 elements of weigh").click()
    expect(rows).to_have_count(0)


def test_a_large_map_shows_its_elements_in_parts(eye: Eye, shop: Shop) -> None:
    many = {
        "name": "many",
        "task": "shop.give",
        "over": {"value": list(range(120))},
        "takes": {"value": {"item": True}},
    }
    run = start(shop, make(shop, "large map", many))
    assert shop.ended(run)["state"] == "succeeded"
    page = eye.go(f"runs/{run}?view=gantt")
    page.get_by_role("button", name="Show 120 elements of many").click()
    bars = page.locator(".gantt .element .run")
    expect(bars).to_have_count(50)
    page.get_by_role("button", name="Show more elements of many: 70 left").click()
    expect(bars).to_have_count(100)
    page.get_by_role("button", name="Show more elements of many: 20 left").click()
    expect(bars).to_have_count(120)


def test_workflows_are_filtered_by_the_state_of_their_last_run(eye: Eye, shop: Shop) -> None:
    pack = {"name": "pack", "task": "shop.pack", "kwargs": {"order": 1}}
    done, idle = make(shop, "filtered done", pack), make(shop, "filtered idle", pack)
    assert shop.ended(start(shop, done))["state"] == "succeeded"
    page = eye.go("workflows?q=filtered")
    rows = page.get_by_role("table", name="Workflows").locator("tr[data-row]")
    expect(rows).to_have_count(2)
    chips = page.get_by_role("group", name="State of the last run")
    expect(chips.get_by_role("button")).to_have_text(["succeeded 1", "no runs yet 1"])
    chips.get_by_role("button", name="no runs yet").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("filtered idle")
    assert "state=none" in page.url
    chips.get_by_role("button", name="succeeded").click()
    expect(rows).to_have_count(2)
    chips.get_by_role("button", name="no runs yet").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("filtered done")
    assert shop.ended(start(shop, idle))["state"] == "succeeded"
    expect(rows).to_have_count(2)  # live
    eye.go("workflows?q=filtered&state=dead")
    page.get_by_text("No matching workflows").wait_for()
    page.get_by_role("link", name="show all workflows").click()
    expect(rows).not_to_have_count(0)


LAY_OUT: Final = """async ([names, edges, direction]) => {
    const { BOX, layout } = await import("./static/lib/layout.js");
    const { boxes, lines, width, height } = layout(names.map((name) => ({ name })), edges, direction);
    return { boxes: Object.fromEntries(boxes), lines: lines.length, width, height, box: BOX };
}"""


@pytest.mark.parametrize("direction", ["lr", "tb"])
def test_boxes_stand_apart_behind_those_they_wait_for(eye: Eye, direction: str) -> None:
    page = eye.go("workflows")
    along, across = ("x", "y") if direction == "lr" else ("y", "x")
    chance = Random(7)
    for size in (1, 2, 15, 60):
        names = [f"n{n}" for n in range(size)]
        pairs = {(names[chance.randrange(n)], names[n]) for n in range(1, size) for _ in range(2)}
        edges = [{"from": one, "to": other} for one, other in sorted(pairs)]
        plan = page.evaluate(LAY_OUT, [names, edges, direction])
        boxes, box = plan["boxes"], plan["box"]
        assert plan["lines"] == len(edges)
        for one, other in pairs:
            assert boxes[one][along] + box["width" if direction == "lr" else "height"] < boxes[other][along]
        for one, other in combinations(boxes.values(), 2):
            assert abs(one["x"] - other["x"]) >= box["width"] or abs(one["y"] - other["y"]) >= box["height"]
        assert all(0 <= at["x"] <= plan["width"] and 0 <= at["y"] <= plan["height"] for at in boxes.values())
    circle = [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]  # two versions laid over each other
    found = page.evaluate(LAY_OUT, [["a", "b"], circle, direction])["boxes"]
    assert found["a"][along] < found["b"][along]
    assert found["a"][across] == found["b"][across]


MANY: Final = 500


def test_five_hundred_nodes_are_drawn_at_once_and_move_smoothly(eye: Eye, shop: Shop) -> None:
    """Each waits for two before it. Other processes have the cores too, so the bounds are wide."""
    wait = [{"name": "gate", "signal": {}}]
    nodes = [
        {"name": f"n{n}", "task": "shop.give", "after": sorted({f"n{n - 7}", f"n{n - 11}"}) if n >= 11 else ["gate"]}
        for n in range(MANY - 1)
    ]
    run = start(shop, make(shop, "many", *wait, *nodes))
    waits(shop, run, "gate", "waiting")
    page = eye.go(f"runs/{run}")
    page.wait_for_selector(".dag .box")
    assert 10 < page.locator(".dag .box").count() < 200  # what is out of sight is not drawn
    spent = page.evaluate(
        """async () => {
            const { layout } = await import("./static/lib/layout.js");
            const graph = await (await fetch(`../api/v1/runs/${location.pathname.split("/").pop()}/graph`)).json();
            const before = performance.now();
            layout(graph.nodes, graph.edges);
            return performance.now() - before;
        }"""
    )
    assert spent < 2_000
    eye.picture("workflow of 500 nodes begun")
    drawn = {view: page.evaluate(DRAW, [n, mark]) for view, n, mark in VIEWS}
    assert max(drawn.values()) < 5_000, drawn
    page.get_by_role("button", name="Fit the graph").click()
    expect(page.locator(".dag .box")).to_have_count(MANY)
    eye.picture("workflow of 500 nodes")
    longest = page.evaluate(PAN)
    print(f"layout {spent:.0f} ms, drawn in ms {drawn}, median frame while all of it moves {longest:.0f} ms")
    assert longest < 250
    shop.ask("POST", f"runs/{run}/cancel", {})


VIEWS: Final = (("list", 2, "tr[data-row]"), ("gantt", 1, ".gantt li"), ("graph", 0, ".dag .box"))
DRAW: Final = """async ([n, mark]) => {
    const before = performance.now();
    document.querySelectorAll(".segments button")[n].click();
    while (!document.querySelector(mark)) await new Promise(requestAnimationFrame);
    return Math.round(performance.now() - before);
}"""
PAN: Final = """async () => {
    const svg = document.querySelector(".dag > svg");
    const { left, top } = svg.getBoundingClientRect();
    const at = (type, x) =>
        svg.dispatchEvent(new PointerEvent(type, { pointerId: 1, clientX: left + x, clientY: top + 300 }));
    svg.setPointerCapture = () => {};
    const frames = [];
    at("pointerdown", 100);
    let before = performance.now();
    for (let step = 0; step < 40; step += 1) {
        at("pointermove", 110 + step * 10);
        await new Promise(requestAnimationFrame);
        frames.push(performance.now() - before);
        before = performance.now();
    }
    at("pointerup", 500);
    return frames.sort((a, b) => a - b)[20];
}"""
