"""Starts a bookshop with a past, and takes pictures of its console."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from playwright.sync_api import Page, expect, sync_playwright

from tools.screenshots.history import write_history
from tools.screenshots.png import shrink

APP: Final = Path(__file__).with_name("bookshop.py")
BELLRINGER: Final = Path(sys.executable).with_name("bellringer")
WIDTH, HEIGHT = 1440, 900
WAIT_SECONDS: Final = 90.0
THEMES: Final = ("light", "dark")
# All nodes have the same key, and webhooks may call this machine.
SETTINGS: Final = {
    "BELLRINGER_EGRESS_ALLOW": "127.0.0.0/8",
    "BELLRINGER_SECRET_KEYS": f"pictures:{base64.b64encode(bytes(32)).decode()}",
}
# Name of the picture and path of the page; braces stand for what the bookshop has.
PAGES: Final[Mapping[str, str]] = {
    "overview": "",
    "jobs": "jobs",
    "job": "jobs/{job}",
    "ledger": "jobs/{failing}?tab=ledger",
    "metrics": "jobs/{job}?tab=metrics",
    "runs": "runs",
    "run": "runs/{dead}",
    "workflow": "runs/{workflow}",
    "calendar": "calendar",
    "cluster": "cluster",
    "job-form": "jobs/new",
}
T = TypeVar("T")


class Bookshop:
    """A `bellringer dev` with the app of the pictures."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data, headers, method=method)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error

    def ended(self, run_id: str) -> Any:
        def look() -> Any:
            run = self.call("GET", f"runs/{run_id}")
            return run if run["state"] in {"succeeded", "dead", "cancelled"} else None

        return wait_for(look, f"{run_id} has ended")

    def set_up(self) -> Mapping[str, str]:
        """Makes what the pages show besides the history; returns ids by the names that PAGES uses."""
        jobs = {job["name"]: job["job_id"] for job in self.call("GET", "jobs?limit=200")["items"]}
        self.call(
            "POST", f"jobs/{jobs['refresh prices']}/pause", {"reason": "the price list of the publisher is wrong"}
        )
        self.call("PUT", "calendars/netherlands", {"dates": ["2026-12-25", "2027-01-01"], "weekend": ["SAT", "SUN"]})
        self.ended(self.call("POST", f"jobs/{jobs['hourly sales']}/run", {})["run_id"])
        workflow = self.call("POST", f"jobs/{jobs['sales forecast']}/run", {})["run_id"]
        dead = self.call("POST", f"jobs/{jobs['charge subscriptions']}/run", {})["run_id"]
        self.call("POST", f"jobs/{jobs['nightly report']}/run", {})
        for run in (workflow, dead):
            self.ended(run)
        self.call("POST", f"jobs/{jobs['rebuild search']}/run", {})
        return {
            "job": jobs["sync stock"],
            "failing": jobs["charge subscriptions"],
            "workflow": workflow,
            "dead": dead,
        }


@contextmanager
def open_bookshop(folder: Path, dsn: str) -> Iterator[Bookshop]:
    """Runs the bookshop on a database with a past: two nodes, and a worker that is a process of its own."""
    port, second = str(_free_port()), str(_free_port())
    shutil.copy(APP, folder / APP.name)
    with ExitStack() as stack:
        dev, log = stack.enter_context(_run(folder, dsn, "dev", APP.name, "--port", port))
        wait_for(lambda: "ready on" in log.read_text() or dev.poll() is not None, "ready")
        assert dev.poll() is None, log.read_text()
        stack.enter_context(_run(folder, dsn, "server", "--insecure", "--port", second))
        stack.enter_context(_run(folder, dsn, "worker", APP.name, "--slots", "20"))
        asyncio.run(write_history(dsn))
        yield Bookshop(f"http://127.0.0.1:{port}")


@contextmanager
def _run(folder: Path, dsn: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Runs a command; yields its process and the path of its output."""
    log = folder / f"{arguments[0]}.log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - this program
            [BELLRINGER, *arguments],
            cwd=folder,
            env={**kept, **SETTINGS, "BELLRINGER_DSN": dsn},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process, log
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(WAIT_SECONDS)


def take_pictures(
    bookshop: Bookshop, folder: Path, names: Sequence[str] = tuple(PAGES), *, chromium: str
) -> list[Path]:
    """Writes a picture of each page in both themes; returns their paths."""
    ids = bookshop.set_up()
    written = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for theme in THEMES:
            context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, timezone_id="Europe/Amsterdam")
            context.add_init_script(f"localStorage['bellringer.theme'] = '{theme}'")
            page = context.new_page()
            for name in names:
                open_page(page, f"{bookshop.url}/console/{PAGES[name].format_map(ids)}")
                path = picture_path(folder, name, theme)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(shrink(page.screenshot()))
                written.append(path)
            context.close()
        browser.close()
    return written


def picture_path(folder: Path, name: str, theme: str) -> Path:
    """Returns the path of a picture below docs/images; the overview is used by other pages too."""
    return (folder if name == "overview" else folder / "console") / f"{name}-{theme}.png"


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def wait_for(look: Callable[[], T | None], what: str) -> T:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT_SECONDS:g} s: {what}")


def open_page(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator("h1")).not_to_have_count(0, timeout=WAIT_SECONDS * 1000)
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=WAIT_SECONDS * 1000)
    page.wait_for_timeout(1200)  # charts are drawn in the next frames
    page.mouse.move(0, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_picture(path: Path) -> bool:
    return re.fullmatch(r"[a-z-]+-(light|dark)\.png", path.name) is not None
