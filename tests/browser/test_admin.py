"""Tenants, keys, webhooks, the audit and the settings: made, changed and ended in the browser, truly so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from .conftest import Eye, Open, Shop, until


def test_a_tenant_is_made_changed_and_suspended(eye: Eye, shop: Shop) -> None:
    page = eye.go("tenants")
    page.get_by_role("button", name="New tenant…").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("globex.")
    form.get_by_label("Jobs").fill("many")
    eye.refusals = {422}
    form.get_by_role("button", name="Create tenant").click()
    expect(form.locator("[aria-invalid=true]")).to_have_count(2)  # the server said so, at the fields
    form.get_by_label("Name").fill("globex")
    form.get_by_label("Jobs").fill("5")
    form.get_by_role("button", name="Create tenant").click()
    row = page.get_by_role("row").filter(has_text="globex")
    expect(row.get_by_role("meter", name="Jobs of globex")).to_have_attribute("aria-valuemax", "5")
    row.get_by_role("button", name="More actions: globex").click()
    page.get_by_role("menuitem", name="Edit…").click()
    form.get_by_label("Share").fill("3")
    form.get_by_label("Jobs").fill("")
    form.get_by_role("button", name="Save").click()
    expect(form).to_have_count(0)
    tenant = shop.ask("GET", "tenants/globex")
    assert (tenant["weight"], tenant["quotas"]) == (3, {})
    row.get_by_role("button", name="More actions: globex").click()
    page.get_by_role("menuitem", name="Suspend…").click()
    expect(form.get_by_role("button", name="Cancel")).to_be_focused()
    form.get_by_role("button", name="Suspend globex").click()
    expect(row.get_by_text("suspended")).to_be_visible()
    assert shop.ask("GET", "tenants/globex")["suspended_at"] is not None
    expect(row.locator(".since")).to_be_visible()
    shown = page.locator(".table.tenants").evaluate("(one) => [one.scrollWidth, one.clientWidth]")
    assert shown[0] <= shown[1], "the table scrolls sideways"
    row.get_by_role("button", name="More actions: globex").click()
    page.get_by_role("menuitem", name="Unsuspend…").click()
    form.get_by_role("button", name="Unsuspend globex").click()
    expect(row.get_by_text("active")).to_be_visible()
    assert shop.ask("GET", "tenants/globex")["suspended_at"] is None
    row.get_by_role("link", name="globex").click()
    expect(page.get_by_role("region", name="API keys for globex")).to_be_visible()
    expect(row.get_by_role("link", name="globex")).to_have_attribute("aria-current", "true")


def test_a_key_is_shown_once_rotated_and_revoked(eye: Eye, shop: Shop) -> None:
    page = eye.go("settings")
    page.get_by_role("button", name="New key…").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("robot")
    form.get_by_label("Scopes").fill("jobs, runs")
    form.get_by_label("Expires").fill("90d")
    form.get_by_role("button", name="Create key").click()
    expect(form).to_contain_text("shown only once")
    key = form.locator("pre").inner_text()
    assert shop.ask("GET", "whoami", Authorization=f"Bearer {key}")["who"] == "key:robot"
    form.get_by_role("button", name="I have stored it").click()
    assert key not in page.content()
    [made] = [one for one in shop.ask("GET", "api-keys")["items"] if one["name"] == "robot"]
    assert (made["role"], made["scopes"], made["state"]) == ("operator", ["jobs", "runs"], "active")
    page.get_by_role("button", name="Rotate robot…").click()
    form.get_by_label("Grace").fill("0s")
    form.get_by_role("button", name="Rotate", exact=True).click()
    expect(form).to_contain_text("shown only once")
    assert form.locator("pre").inner_text() != key
    form.get_by_role("button", name="I have stored it").click()
    page.get_by_role("button", name="Revoke robot…").click()
    form.get_by_role("button", name="Revoke robot").click()
    expect(page.get_by_role("button", name="Revoke robot…")).to_have_count(0)
    page.get_by_label("Show expired and revoked keys").first.check()
    expect(page.get_by_role("row").filter(has_text="robot")).to_have_count(2)
    assert "ended=yes" in page.url


def test_a_webhook_is_made_tested_and_switched_off(eye: Eye, shop: Shop) -> None:
    page = eye.go("settings?tab=webhooks")
    page.get_by_role("button", name="New endpoint…").click()
    form = page.get_by_role("dialog")
    to = f"{shop.url}/healthz"
    form.get_by_label("URL").fill(to)
    form.get_by_label("dead a run gave up").check()
    form.get_by_role("button", name="Create endpoint").click()
    assert form.locator("pre").inner_text().startswith("whsec_")
    form.get_by_role("button", name="I have stored it").click()
    row = page.get_by_role("row").filter(has_text=to)
    row.get_by_role("button", name="Test").click()
    deliveries = page.get_by_role("table", name="Deliveries to")
    expect(deliveries.locator("tbody tr")).to_have_count(1)  # told, once it was sent
    expect(deliveries.get_by_role("row").nth(1)).to_contain_text(re.compile(r"test event.*405", re.DOTALL))
    deliveries.get_by_role("button", name="Details of").click()
    expect(deliveries.get_by_label("Payload of")).to_contain_text('"type": "test"')
    deliveries.get_by_role("button", name="Details of").click()
    deliveries.get_by_role("button", name="again").click()
    page.mouse.move(0, 0)  # rows do not move under the pointer
    expect(deliveries.locator("tbody tr")).to_have_count(2)
    page.get_by_role("group", name="Show").get_by_role("button", name="Failed").click()
    assert "deliveries=failed" in page.url
    row.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Disable").click()
    expect(row.get_by_text("disabled")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(row.get_by_text("active")).to_be_visible()
    row.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete…").click()
    form.get_by_role("button", name="Delete whe_").click()
    expect(row).to_have_count(0)


def test_the_audit_shows_what_differs_and_can_be_taken_along(eye: Eye, shop: Shop, tmp_path: Path) -> None:
    body = {"task": "shop.pack", "kwargs": {"order": 4}, "schedule": {"every": "1h"}}
    job = shop.ask("PUT", "jobs/audited", body)
    shop.ask("PATCH", f"jobs/{job['job_id']}", {"priority": 9})
    page = eye.go(f"audit?target={job['job_id']}")
    rows = page.get_by_role("table", name="Changes").locator("tr[data-row]")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("job.changed")
    expect(rows.first).to_contain_text("127.0.0.1")
    expect(rows.first.locator("time").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d$"))
    expect(rows.first.locator(".changed")).to_contain_text(re.compile(r"priority \S+ → 9"))
    expect(rows.last.locator(".changed")).to_contain_text(re.compile(r"every 1h.*order.*4"))
    shown = page.locator(".table.audit").evaluate("(one) => [one.scrollWidth, one.clientWidth]")
    assert shown[0] <= shown[1], "the table scrolls sideways"
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    entry = page.locator("tr.detail")
    difference = entry.locator(".diff tbody tr", has_text="priority")
    expect(difference.locator(".after")).to_contain_text("9")
    [changed] = shop.ask("GET", f"audit?target={job['job_id']}&action=job.changed")["items"]
    for text in (changed["who"], changed["origin"], changed["request_id"]):
        expect(entry).to_contain_text(text)
    expect(page.get_by_role("dialog")).to_have_count(0)
    rows.last.get_by_role("button", expanded=False).click()
    expect(entry).to_have_count(2)  # several entries can be open at once
    rows.first.get_by_role("button", expanded=True).click()
    expect(entry).to_have_count(1)
    page.locator("tr[data-row]").last.focus()
    page.keyboard.press("Enter")
    expect(entry).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export and copy").click()
        page.get_by_role("menuitem", name="Export as NDJSON").click()
    download.value.save_as(tmp_path / "audit.ndjson")
    lines = [json.loads(line) for line in (tmp_path / "audit.ndjson").read_text().splitlines()]
    assert [line["action"] for line in lines] == ["job.created", "job.changed"]
    page.mouse.move(0, 0)  # rows do not move under the pointer
    page.get_by_label("Action").select_option("job.created")
    expect(rows).to_have_count(1)
    assert "action=job.created" in page.url
    until(lambda: shop.ask("GET", "audit/seals")["items"], "a scheduler has sealed them")
    eye.go("audit?tab=seals")
    expect(page.get_by_role("table", name="Seals").locator("tbody tr")).not_to_have_count(0)


def test_the_audit_names_the_job_of_a_run(eye: Eye, shop: Shop) -> None:
    job = shop.ask("PUT", "jobs/audited-run", {"task": "shop.pack", "kwargs": {"order": 4}})
    run = shop.ask("POST", f"jobs/{job['job_id']}/run", {})["run_id"]
    page = eye.go(f"audit?target={run}")
    row = page.get_by_role("table", name="Changes").locator("tr[data-row]")
    expect(row.get_by_role("link", name="audited-run")).to_have_attribute("href", re.compile(f"runs/{run}$"))
    expect(row.locator(".changed")).to_have_text(re.compile("started manually"))
    [entry] = shop.ask("GET", f"audit?target={run}")["items"]
    expect(row).to_contain_text(entry["request_id"][-8:])


def test_every_setting_of_the_server_is_described(eye: Eye, shop: Shop) -> None:
    page = eye.go("settings?tab=configuration")
    known = page.evaluate(
        "import('/console/static/parts/setting_groups.js')"
        ".then((one) => Object.values(one.GROUPS).flatMap(Object.keys))"
    )
    assert sorted(known) == sorted(setting["name"] for setting in shop.ask("GET", "settings")["items"])


def test_settings_say_where_they_come_from(eye: Eye) -> None:
    page = eye.go("settings?tab=configuration")
    table = page.get_by_role("table", name="Effective configuration")
    dsn = table.get_by_role("row").filter(has_text="BELLRINGER_DSN")
    expect(dsn).to_contain_text("environment")
    everything = table.locator("tbody tr").count()
    page.locator("label", has_text="Set by").get_by_role("combobox").select_option("environment")
    expect(dsn).to_be_visible()
    assert 0 < table.locator("tbody tr").count() < everything
    assert "source=environment" in page.url


def test_a_viewer_sees_who_may_do_it(look: Open, shop: Shop) -> None:
    key = shop.ask("POST", "api-keys", {"name": "onlooker", "role": "viewer"})["key"]
    eye = look(shop.console)
    eye.page.add_init_script(f"sessionStorage['bellringer.key'] = '{key}'")
    page = eye.go("settings")
    page.get_by_text("Only administrators can manage keys").wait_for()
    eye.go("audit")
    page.get_by_text("Only administrators can read the audit log").wait_for()
    eye.go("tenants")
    page.get_by_role("heading", name="Tenant default").wait_for()
    expect(page.get_by_role("table", name="Quotas").locator("tbody tr")).to_have_count(5)
    assert not any("/api/v1/tenants" in url or "/api/v1/api-keys" in url for url in eye.asked)


def test_an_operation_without_effect_is_neither_a_success_nor_a_failure(eye: Eye, shop: Shop) -> None:
    job = shop.ask(
        "PUT", "jobs/paused-twice", {"task": "shop.pack", "kwargs": {"order": 1}, "schedule": {"every": "1h"}}
    )
    shop.ask("POST", f"jobs/{job['job_id']}/pause", {})
    operation = shop.ask("POST", "bulk", {"action": "jobs.pause", "ids": [job["job_id"]]})["operation_id"]
    until(lambda: shop.ask("GET", f"operations/{operation}")["state"] == "done", "the operation has ended")
    page = eye.go(f"operations/{operation}")
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("1 unchanged (already paused)")
    expect(verdict).to_have_class(re.compile("tone-calm"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Pause job paused-twice")
    row = page.get_by_role("table", name="Items").locator("tr[data-row]")
    expect(row).to_contain_text("unchanged")
    expect(row.get_by_role("link", name="paused-twice")).to_have_attribute("href", re.compile(job["job_id"]))
    expect(page.get_by_role("progressbar")).to_have_count(0)
    eye.go("dead-letters")
    expect(page.get_by_role("link", name="Pause job")).to_have_count(0)
    eye.go("runs?tab=operations")
    expect(page.get_by_role("link", name="Pause job").first).to_be_visible()
