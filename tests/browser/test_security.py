"""What the console refuses, survives and promises: other origins, a path prefix, a login, and silence while paused."""

from __future__ import annotations

import urllib.error
import urllib.request
from email.message import Message

from playwright.sync_api import expect

from .conftest import PATIENCE, Eye, Open, Shop, until
from .proxy import proxy


def headers_of(url: str) -> Message:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        headers: Message = answer.headers
        return headers


def test_pages_and_files_carry_the_policy(shop: Shop) -> None:
    for path in ("", "jobs/anything", "static/app.js", "static/styles/base.css"):
        headers = headers_of(f"{shop.console}{path}")
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_the_root_is_the_console_for_people_and_the_index_for_programs(shop: Shop) -> None:
    for wanted, is_console in (
        (None, True),
        ("text/html,*/*;q=0.8", True),
        ("*/*", False),
        ("application/json", False),
    ):
        request = urllib.request.Request(f"{shop.url}/", headers={"Accept": wanted} if wanted else {})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.url.endswith("/console/") == is_console, wanted
            assert ("default-src" in (answer.headers["Content-Security-Policy"] or "")) == is_console


def test_the_policy_holds_in_the_browser(eye: Eye) -> None:
    page = eye.go("jobs")
    ran = page.evaluate(
        """() => new Promise((tell) => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) =>
                tell([window.ran ?? false, effectiveDirective]));
            document.body.append(script);
        })"""
    )
    assert ran == [False, "script-src-elem"]
    assert [wrong for wrong in eye.wrong if "Content Security Policy" not in wrong] == []
    eye.wrong.clear()


def asked(eye: Eye) -> int:
    """How many requests there were, after a moment: what the browser tells is heard while one waits for it."""
    eye.page.wait_for_timeout(200)
    return len(eye.asked)


def test_paused_means_no_requests(eye: Eye, shop: Shop) -> None:
    beats = {"task": "shop.pack", "kwargs": {"order": 2}, "schedule": {"every": "1s"}}
    shop.ask("PUT", "jobs/beats", beats)
    page = eye.go("runs")
    live = page.get_by_role("button", name="Live")
    expect(live).to_be_visible()
    before = len(eye.asked)
    until(lambda: asked(eye) > before + 1, "it reads anew by itself, as runs come")
    page.keyboard.press(".")
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    page.wait_for_timeout(1500)  # what was asked before may still come
    held = len(eye.asked)
    page.wait_for_timeout(4000)
    assert eye.asked[held:] == []
    page.keyboard.press(".")
    until(lambda: asked(eye) > held, "it goes on")
    shop.ask("DELETE", "jobs/beats")


def test_behind_a_proxy_below_a_path_by_a_key(look: Open, shop: Shop) -> None:
    """Who comes through a proxy is not of this machine, so this is the login too."""
    job = {"task": "shop.pack", "kwargs": {"order": 3}, "schedule": {"every": "1h"}}
    shop.ask("PUT", "jobs/behind", job)
    key = shop.ask("POST", "api-keys", {"name": "proxied", "role": "viewer"})
    with proxy(shop.port, "/ops/bell") as base:
        eye = look(f"{base}/console/")
        eye.refusals = {401}
        page = eye.page
        page.goto(f"{eye.home}jobs?q=behind")
        field = page.get_by_label("API key or token")
        field.fill("br_aaaaaaaa_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        field.fill(key["key"])
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="behind", exact=True).click()
        expect(page.get_by_role("heading", name="behind", exact=True)).to_be_visible()
        assert page.url.startswith(f"{base}/console/jobs/")
        expect(page.get_by_role("button", name="Run now…")).to_have_count(
            0
        )  # a viewer's page offers no more than it may
        expect(page.get_by_role("button", name="Live")).to_be_visible()
        page.reload()  # a deep link, and the key lasts as long as the tab
        expect(page.get_by_role("heading", name="behind", exact=True)).to_be_visible()
        assert all(url.startswith(base) for url in eye.asked)
        eye.picture("behind a proxy")
        page.get_by_role("button", name="Log out").click()
        expect(field).to_be_visible()
        page.close()  # or it would ask on when the proxy is gone
