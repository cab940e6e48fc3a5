"""A `bellringer dev` with an app and a worker, and a Chromium that opens its console."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from bellringer.testing.postgres import TestServer

HERE: Final = Path(__file__).parent
BELLRINGER: Final = Path(sys.executable).with_name("bellringer")
ARTEFACTS: Final = HERE.parents[1] / ".artifacts" / "console"
PATIENCE: Final = 60.0  # seconds: other processes may have the cores
MARKUP: Final = (
    "<img src=x onerror=alert(1)>"  # a name, an argument and an error that would do harm if they were read as HTML
)
T = TypeVar("T")


def until(look: Callable[[], T | None], what: str) -> T:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {PATIENCE:g} s: {what}")


class Shop:
    """A `bellringer dev` in a temporary folder, and its API."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.console = f"{self.url}/console/"
        self._said = folder / "said.log"
        shutil.copy(HERE / "shop.py", folder / "shop.py")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [BELLRINGER, "dev", "shop.py", "--port", str(self.port)],
                cwd=folder,
                env={**kept, "BELLRINGER_DSN": dsn, "BELLRINGER_TRUSTED_PROXIES": "127.0.0.1"},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def wait(self) -> None:
        until(lambda: "ready on" in self._said.read_text() or self._process.poll() is not None, "ready")
        assert self._process.poll() is None, self._said.read_text()

    def stop(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
            self._process.wait(PATIENCE)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def ended(self, run_id: str) -> Any:
        """Wait until a run has ended; returns it."""

        def look() -> Any:
            run = self.ask("GET", f"runs/{run_id}")
            return run if run["state"] in {"succeeded", "dead", "cancelled"} else None

        return until(look, f"{run_id} has ended")

    def break_down(self, why: str) -> None:
        """Make the shipping task fail from now on."""
        (self.folder / "broken").write_text(why)

    def mend(self) -> None:
        (self.folder / "broken").unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def started(bellringer_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One server for all tests of a process; each test uses its own job names."""
    with bellringer_server.plain_database() as dsn:
        shop = Shop(tmp_path_factory.mktemp("console"), dsn)
        try:
            shop.wait()
            yield shop
        finally:
            shop.stop()


@pytest.fixture
def shop(started: Shop) -> Iterator[Shop]:
    """The shared server; simulated failures are reset before and after each test."""
    started.mend()
    yield started
    started.mend()


def _chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        told = "there is no Chromium, so the console was NOT tested; `make browser` as root installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(told)
        pytest.skip(told)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser per test file. Its event loop must be closed before other files start theirs."""
    program = _chromium()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


class Eye:
    """A page, with its errors and its requests to other machines."""

    def __init__(self, context: BrowserContext, home: str) -> None:
        self.home = home
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.refusals: set[int] = set()  # error statuses that the test provokes; the browser logs each of them
        self.page.on("pageerror", lambda error: self.wrong.append(f"page error: {error}"))
        self.page.on("console", self._hear)
        self.page.on("request", self._see)
        self.page.on("dialog", self.refuse)

    def _hear(self, message: ConsoleMessage) -> None:
        refused = re.search(r"status of (\d+)", message.text)
        if message.type == "error" and not (refused and int(refused[1]) in self.refusals):
            self.wrong.append(f"console: {message.text} {message.location.get('url', '')}")

    def refuse(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _see(self, request: Request) -> None:
        self.asked.append(request.url)
        if not request.url.startswith((self.home.split("/console/")[0], "blob:", "data:")):
            self.wrong.append(f"another origin: {request.url}")

    def go(self, path: str = "") -> Page:
        """Open a page of the console and wait until its data is shown."""
        self.page.goto(f"{self.home}{path}")
        self.settled()
        return self.page

    def settled(self) -> None:
        expect(self.page.locator("h1")).not_to_have_count(0)
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0)

    def picture(self, name: str) -> None:
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.png")


expect.set_options(timeout=PATIENCE * 1000)
Open = Callable[..., Eye]


@pytest.fixture
def look(browser: Browser) -> Iterator[Open]:
    """Opens a page: `look(shop.console)`. An error on any opened page fails the test."""
    contexts: list[BrowserContext] = []
    eyes: list[Eye] = []

    def make(home: str, *, tenant: str | None = None) -> Eye:
        context = browser.new_context(viewport={"width": 1280, "height": 860}, permissions=["clipboard-write"])
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script("localStorage['bellringer.theme'] ??= 'light'")
        if tenant is not None:
            context.add_init_script(f"sessionStorage['bellringer.tenant'] = '{tenant}'")
        contexts.append(context)
        eyes.append(Eye(context, home))
        return eyes[-1]

    yield make
    for context in contexts:
        context.close()
    assert [wrong for eye in eyes for wrong in eye.wrong] == []


@pytest.fixture
def eye(look: Open, shop: Shop) -> Eye:
    return look(shop.console)
