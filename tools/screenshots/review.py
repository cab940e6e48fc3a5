"""`python -m tools.screenshots.review FOLDER [NAME…]` takes pictures of every page for a review of the console.

Each page is taken in both themes on a large and a small screen and on a phone; except for the palette, the pictures
show the whole page.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from bellringer.testing.postgres import serve
from tools.screenshots.pictures import Bookshop, find_chromium, open_bookshop, open_page, wait_for

SCREENS: Final = {"1440": (1440, 900), "1280": (1280, 800), "390": (390, 844)}
THEMES: Final = ("light", "dark")
EXPIRED_KEY: Final = "br_aaaaaaaa_expired"
PAGES: Final[Mapping[str, str]] = {
    "overview": "",
    "jobs": "jobs",
    "job-runs": "jobs/{job}?tab=runs",
    "job-ledger": "jobs/{failing}?tab=ledger",
    "job-schedule": "jobs/{report}?tab=schedule",
    "job-configuration": "jobs/{report}?tab=configuration",
    "job-metrics": "jobs/{job}?tab=metrics",
    "job-revisions": "jobs/{priced}?tab=revisions",
    "job-events": "jobs/{failing}?tab=events",
    "job-form": "jobs/new",
    "runs": "runs",
    "operations": "runs?tab=operations",
    "operation": "operations/{operation}",
    "run-running": "runs/{running}",
    "run-dead": "runs/{dead}",
    "workflows": "workflows",
    "workflow": "runs/{workflow}",
    "workflow-failed": "runs/{failed_workflow}",
    "dead-letters": "dead-letters",
    "calendar-week": "calendar",
    "calendar-month": "calendar?view=month",
    "calendar-day": "calendar?view=day",
    "calendar-load": "calendar?tab=load",
    "workers": "workers",
    "cluster": "cluster",
    "tenants": "tenants?tenant=acme",
    "audit": "audit",
    "settings": "settings",
    "settings-webhooks": "settings?tab=webhooks&endpoint={endpoint}",
    "settings-configuration": "settings?tab=configuration",
    "login": "",
    "palette": "jobs",
}


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Requests are not printed."""


@contextmanager
def receiver() -> Iterator[str]:
    """Yields the URL of a server on this machine that accepts webhooks."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hooks/bookshop"
    server.shutdown()


def set_up(bookshop: Bookshop, webhook_url: str) -> Mapping[str, str]:
    """Makes something of everything that the pages show; returns ids by the names that PAGES uses."""
    call = bookshop.call
    endpoint = call("POST", "webhook-endpoints", {"url": webhook_url, "kinds": ["failed", "dead", "recovered"]})
    ids = dict(bookshop.set_up())
    jobs = {job["name"]: job["job_id"] for job in call("GET", "jobs?limit=200")["items"]}
    for change in ({"priority": 3}, {"timeout": "5m"}, {"late_after": "2m"}):
        call("PATCH", f"jobs/{jobs['refresh prices']}", change)
    once = [call("POST", "jobs/execute", {"task": "mail.receipts"}) for _ in range(3)]
    flow = call("POST", f"jobs/{jobs['weekly catalog']}/run", {})["run_id"]
    bookshop.ended(flow)
    bookshop.ended(once[-1]["run_id"])
    operation = call("POST", "bulk", {"action": "jobs.pause", "ids": [jobs["pay publishers"]], "reason": "year end"})
    call("POST", "bulk", {"action": "jobs.resume", "ids": [jobs["pay publishers"]]})
    for name, quota in (("acme", 500), ("northwind", 200), ("initech", 50)):
        call("POST", "tenants", {"name": name, "quotas": {"jobs": quota}})
    for name, role in (("deployment", "operator"), ("dashboard", "viewer")):
        call("POST", "api-keys", {"name": name, "role": role})
    return {
        **ids,
        "report": jobs["nightly report"],
        "priced": jobs["refresh prices"],
        "search": jobs["rebuild search"],
        "failed_workflow": flow,
        "operation": operation["operation_id"],
        "endpoint": endpoint["endpoint_id"],
    }


def take(browser: Browser, bookshop: Bookshop, ids: Mapping[str, str], folder: Path, names: Sequence[str]) -> None:
    for screen, (width, height) in SCREENS.items():
        for theme in THEMES:
            context = browser.new_context(viewport={"width": width, "height": height}, timezone_id="Europe/Amsterdam")
            context.add_init_script(f"localStorage['bellringer.theme'] = '{theme}'")
            page = context.new_page()
            for name in names:
                if name == "login":
                    _use_key(page, bookshop, EXPIRED_KEY)
                running = {"running": _start_long_run(bookshop, ids)} if name == "run-running" else {}
                open_page(page, f"{bookshop.url}/console/{PAGES[name].format_map({**ids, **running})}")
                if name == "palette":
                    _open_palette(page)
                page.screenshot(path=folder / f"{name}-{screen}-{theme}.png", full_page=name != "palette")
                if name == "login":
                    _use_key(page, bookshop, None)
            context.close()


def _start_long_run(bookshop: Bookshop, ids: Mapping[str, str]) -> str:
    """Starts a run of about 20 seconds; waits until a worker executes it and has reported progress."""
    run_id = bookshop.call("POST", f"jobs/{ids['search']}/run", {"kwargs": {"titles": 16_720}})["run_id"]
    wait_for(lambda: bookshop.call("GET", f"runs/{run_id}").get("progress"), "the run reports its progress")
    return str(run_id)


def _use_key(page: Page, bookshop: Bookshop, key: str | None) -> None:
    """Sets the key of the tab: requests from this machine need none, but a wrong one is rejected."""
    page.goto(f"{bookshop.url}/healthz")
    page.evaluate("key => key ? sessionStorage.setItem('bellringer.key', key) : sessionStorage.clear()", key)


def _open_palette(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type("pri")
    expect(page.locator(".palette input")).to_have_value("pri")
    page.wait_for_timeout(500)


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        serve(in_memory=True) as server,
        server.plain_database() as dsn,
        tempfile.TemporaryDirectory() as home,
        open_bookshop(Path(home), dsn) as bookshop,
        receiver() as webhook_url,
        sync_playwright() as playwright,
    ):
        ids = set_up(bookshop, webhook_url)
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        take(browser, bookshop, ids, folder, names or tuple(PAGES))
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
