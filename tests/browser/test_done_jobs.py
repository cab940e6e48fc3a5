"""A job that is deleted when it is done, by the form of the console; and one that is kept, in the list of done jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from playwright.sync_api import expect

from .conftest import Open, Shop, until

TENANT = "once-only"


def test_a_one_shot_is_created_listed_as_done_and_deleted(look: Open, shop: Shop) -> None:
    tenant = {"X-Tenant": TENANT}
    shop.ask("POST", "tenants", {"name": TENANT})
    page = look(shop.console, tenant=TENANT).go("jobs/new")
    page.get_by_label("Name", exact=True).fill("once")
    page.get_by_label("Task", exact=True).fill("shop.no_such_task")
    page.get_by_label("Schedule", exact=True).select_option("manual")
    page.get_by_label("After completion").select_option("delete")
    page.get_by_role("button", name="Create job").click()
    until(lambda: shop.ask("GET", "jobs", **tenant)["items"], "the job is stored")
    [job] = shop.ask("GET", "jobs", **tenant)["items"]
    assert job["after_completion"] == "delete"
    page.goto(f"{shop.console}jobs/{job['job_id']}?tab=configuration")
    expect(page.locator("main")).to_contain_text("After completion")

    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    kept = {"name": "kept", "task": "shop.ship", "kwargs": {"order": 1}, "schedule": {"at": soon}}
    shop.ask("POST", "jobs", kept, **tenant)
    shop.ask("POST", "jobs", {**kept, "name": "gone", "after_completion": "delete"}, **tenant)
    until(lambda: shop.ask("GET", "jobs?state=done", **tenant)["items"], "the job that is kept is done")
    until(lambda: "gone" not in {one["name"] for one in shop.ask("GET", "jobs", **tenant)["items"]}, "it was deleted")
    page.goto(f"{shop.console}jobs?state=done")
    expect(page.locator("main tbody tr")).to_have_count(1)
    badge = page.locator("main tbody .state").first
    expect(badge).to_contain_text("done")
    assert "tone-mute" in (badge.get_attribute("class") or "")
