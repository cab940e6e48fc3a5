"""The path of a newcomer: from an empty page to a run that was brought back to life."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .conftest import Eye, Open, Shop, until

TENANT = "newcomer"  # with nothing in it, whatever other tests have made
NAME = "ship-orders"
WHY = "the truck stands still"


def test_from_an_empty_page_to_a_run_that_was_brought_back(look: Open, shop: Shop) -> None:
    shop.ask("POST", "tenants", {"name": TENANT})
    eye = look(shop.console, tenant=TENANT)
    eye.refusals = {422}  # of a schedule that is not finished
    page = eye.go()
    page.get_by_text("Waiting for your first run").wait_for()
    page.get_by_role("link", name="Or create a job here").click()
    create(page)
    first = run_now(eye)
    expect(page.locator(".verdict")).to_contain_text("Succeeded")  # it was told so, live
    page.get_by_text("order 7 goes to Paris").wait_for()
    page.get_by_text("shipping").first.wait_for()  # what its handler logged

    shop.break_down(WHY)
    page.goto(f"{shop.console}jobs/{NAME}")
    second = run_now(eye)
    assert second != first
    expect(page.locator(".verdict")).to_contain_text(f"RuntimeError: {WHY}")
    eye.picture("newcomer dead run")

    page.get_by_role("link", name="Dead letters", exact=True).click()
    expect(page.locator(".head .sum")).to_contain_text("1 dead letter in 1 group")
    page.get_by_text(WHY).first.wait_for()
    shop.mend()
    page.get_by_role("button", name="Retry: RuntimeError").click()
    page.get_by_role("button", name="Retry 1 dead letter").click()
    page.get_by_role("heading", name="Retry dead letters").wait_for()  # the operation, and how far it is
    until(lambda: shop.ask("GET", f"runs/{second}", **{"X-Tenant": TENANT})["state"] == "succeeded", "it was redriven")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.get_by_role("heading", name="No dead letters").wait_for()
    eye.go()
    expect(page.locator(".verdict")).to_be_visible()


def create(page: Page) -> None:
    """A job by its form, which says when it would fire while it is written."""
    page.get_by_label("Name", exact=True).fill(NAME)
    page.get_by_label("Task", exact=True).fill("shop.ship")
    page.get_by_label("order", exact=False).first.fill("7")
    page.get_by_label("Schedule", exact=True).select_option("cron")
    page.get_by_label("Cron expression").fill("61 * * * *")
    expect(page.locator(".field", has=page.get_by_label("Cron expression"))).to_contain_text("61")  # said by the server
    page.get_by_label("Cron expression").fill("30 2 * * 1-5")
    page.get_by_label("Time zone").fill("Europe/Paris")
    expect(page.locator(".preview tbody tr")).to_have_count(10)
    page.get_by_role("button", name="Create job").click()
    page.get_by_role("heading", name=NAME, exact=True).wait_for()


def run_now(eye: Eye) -> str:
    """Run the job of the page by its button, and go to the run; answers the run's id."""
    page = eye.page
    page.get_by_role("button", name="Run now…").click()
    page.get_by_role("dialog").get_by_role("button", name="Run now", exact=True).click()
    page.get_by_role("link", name="Show the run").last.click()
    page.wait_for_url("**/runs/*")
    return page.url.rsplit("/", 1)[1]
