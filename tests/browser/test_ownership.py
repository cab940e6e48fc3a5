"""Orphans and drift of jobs that code declares, as the console shows them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from playwright.sync_api import expect

from bellringer import App, every

from .conftest import Open, Shop

TENANT = "owned"


def declare(dsn: str, version: str, *names: str) -> None:
    """Declare jobs on a thread of its own: Playwright runs an event loop on this one."""
    app = App(dsn, tenant=TENANT, name="billing", version=version)
    for name in names:
        app.schedule(every("1h"))(app.task(name=name)(lambda: None))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(app.declare).result()
        thread.submit(app.close).result()


def test_an_orphan_has_a_badge_and_drift_is_listed(look: Open, shop: Shop) -> None:
    shop.ask("POST", "tenants", {"name": TENANT})
    declare(shop.dsn, "1", "report", "sync")
    declare(shop.dsn, "2", "report")
    shop.ask("PATCH", "jobs/report", {"priority": 9}, **{"X-Tenant": TENANT})
    page = look(shop.console, tenant=TENANT).go("jobs?orphaned=true")
    expect(page.locator("main tbody tr")).to_have_count(1)
    expect(page.locator("main tbody")).to_contain_text("orphaned")
    page.get_by_role("link", name="sync", exact=True).click()
    expect(page.locator("main header")).to_contain_text("orphaned")
    expect(page.locator("main")).to_contain_text("version 1 was the last that did")

    page.goto(f"{shop.console}jobs/{shop.ask('GET', 'jobs/report', **{'X-Tenant': TENANT})['job_id']}")
    page.get_by_text("Differs from the code of the app billing in 1 field").click()
    drift = page.get_by_role("group", name="Drift")
    expect(drift.get_by_role("columnheader", name="In code")).to_be_visible()
    expect(drift.get_by_role("row", name="priority")).to_contain_text("9")
    expect(page.locator("main")).to_contain_text("Differs from the code of the app billing")

    page.goto(shop.console)
    expect(page.locator(".attention")).to_contain_text(
        "Job “sync” still fires, but the code of the app “billing” no longer declares it"
    )
