"""Every page, in both themes and on a narrow screen: nothing goes wrong or leaves this machine, all is readable.

What it shows is full of markup (names, arguments, errors, log lines, tags), so each page is a test of that too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from .conftest import MARKUP, Eye, Shop, until

NARROW: Final = {"width": 360, "height": 740}
JOB_TABS: Final = ("runs", "ledger", "schedule", "configuration", "metrics", "revisions", "events")
PAGES: Final = (
    "",
    "jobs",
    "jobs/new",
    "jobs/new?from={job}",
    "jobs/{job}/edit",
    *(f"jobs/{{job}}?tab={tab}" for tab in JOB_TABS),
    "runs",
    "runs?tab=operations",
    "runs/{run}",
    "runs/{dead}",
    "operations/{operation}",
    "dead-letters",
    "dead-letters?fingerprint={fingerprint}",
    "dead-letters?view=discarded",
    "calendar",
    "calendar?view=month",
    "calendar?view=day",
    "calendar?tab=load",
    "workers",
    "cluster",
    "tenants?tenant=acme",
    "audit",
    "audit?tab=seals",
    "settings",
    "settings?tab=webhooks&endpoint={endpoint}",
    "settings?tab=configuration",
    "settings?tab=browser",
    "no-such-page",
)


@pytest.fixture(scope="module")
def full(started: Shop) -> Mapping[str, str]:
    """Something of everything, all of it named by markup."""
    name = {"name": MARKUP, "task": "shop.pack", "kwargs": {"order": 7, "note": MARKUP}, "tags": [MARKUP]}
    job = started.ask("POST", "jobs", {**name, "schedule": {"cron": "0 4 * * *", "tz": "Europe/Paris"}})
    started.ask("PATCH", f"jobs/{job['job_id']}", {"priority": 3})
    started.ask("POST", f"jobs/{job['job_id']}/pause", {"reason": MARKUP})
    run = started.ended(started.ask("POST", f"jobs/{job['job_id']}/run", {})["run_id"])
    assert run["state"] == "succeeded"
    started.break_down(f"the truck stands: {MARKUP}")
    order = {"task": "shop.ship", "kwargs": {"order": 8, "to": MARKUP}}
    dead = started.ended(started.ask("POST", "jobs/execute", order)["run_id"])
    assert dead["state"] == "dead"
    started.mend()
    groups = started.ask("GET", "dead-letters?group_by=fingerprint")["items"]
    operation = started.ask("POST", "bulk", {"action": "jobs.pause", "ids": [job["job_id"]], "reason": MARKUP})
    started.ask("POST", "tenants", {"name": "acme", "quotas": {"jobs": 10}})
    started.ask("POST", "api-keys", {"name": MARKUP, "role": "viewer"})
    hook = {"url": "https://example.com/hook", "kinds": ["late"], "description": MARKUP}
    endpoint = started.ask("POST", "webhook-endpoints", hook)
    return {
        "job": job["job_id"],
        "run": run["run_id"],
        "dead": dead["run_id"],
        "operation": operation["operation_id"],
        "fingerprint": groups[0]["fingerprint"],
        "endpoint": endpoint["endpoint_id"],
    }


def faults(page: Page) -> list[Any]:
    """What axe holds against a page, and where."""
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [(one["id"], [" ".join(map(str, node["target"])) for node in one["nodes"]][:5]) for one in found]


# Where names, arguments, errors and reasons are shown.
TELLING: Final = frozenset(
    {"jobs", "jobs/new?from={job}", "jobs/{job}/edit", "jobs/{job}?tab=configuration", "jobs/{job}?tab=revisions"}
    | {"runs", "runs?tab=operations", "runs/{run}", "runs/{dead}", "operations/{operation}"}
    | {"dead-letters", "dead-letters?fingerprint={fingerprint}", "audit", "settings"}
    | {"settings?tab=webhooks&endpoint={endpoint}"}
)
SHOWN: Final = (
    "document.body.innerText + [...document.querySelectorAll('input, textarea')].map((one) => one.value).join()"
)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_sound(path: str, eye: Eye, full: Mapping[str, str]) -> None:
    page = eye.go(path.format_map(full))
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "light"
    if path in TELLING:
        until(lambda: MARKUP in page.evaluate(SHOWN), f"{path} shows markup as text")
    page.evaluate(AXE_SCRIPT)
    name = path or "overview"
    eye.picture(f"{name} light")
    assert faults(page) == []
    page.keyboard.press("t")
    until(lambda: page.evaluate(theme) == "dark", "the page is dark")
    eye.picture(f"{name} dark")
    assert faults(page) == []
    page.set_viewport_size({"width": NARROW["width"], "height": NARROW["height"]})
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], "the page scrolls sideways"
    eye.picture(f"{name} narrow")
    assert faults(page) == []
    assert page.locator("img[src=x]").count() == 0
    assert page.locator(".trouble").count() == 0, page.locator(".trouble").all_inner_texts()
