"""Eight prepared installations: what the overview says about each, for a reader who looks at it for five seconds.

The pictures are saved to `.artifacts/console/five-seconds/`. Only the words of the console tell the state.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final

import asyncpg
import pytest
from playwright.sync_api import Page, expect
from tests.support.silent_proxy import SilentProxy

from bellringer import App, every
from bellringer.testing.postgres import TestServer

from .conftest import ARTEFACTS, BELLRINGER, PATIENCE, Open, Shop, _free_port, until

DELAY_SECONDS: Final = 0.15  # of each response of the slow database
PICTURES: Final = ARTEFACTS / "five-seconds"
# Names that do not tell the state: the console shows them next to its verdict.
TENANTS: Final[Mapping[str, str]] = {
    "healthy": "acme",
    "failing-job": "globex",
    "unknown-task": "initech",
    "no-workers": "umbrella",
    "slow-database": "hooli",
    "orphan": "stark",
    "paused-tenant": "wonka",
    "lagging-pool": "wayne",
}
# The tone and the sentence of the verdict.
VERDICTS: Final[Mapping[str, tuple[str, str]]] = {
    "healthy": ("good", r"All is well: 1 job, and nothing is late or failing\."),
    "failing-job": (
        "bad",
        r"Job “nightly” is failing: RuntimeError: the truck does not start; 1 more problem needs attention\.",
    ),
    "unknown-task": (
        "bad",
        r"No live worker in pool “short” knows the task “shop\.pcak”: 1 run is waiting\. Did you mean “shop\.pack”\?",
    ),
    "no-workers": ("bad", r"No task worker is connected: 1 run is waiting in pool “short”\."),
    "slow-database": ("warn", r"The database is slow: [\d,]+ ms per round trip; up to 100 ms is normal\."),
    "orphan": (
        "warn",
        r"Job “sync” still fires, but the code of the app “billing” no longer declares it\.",
    ),
    "paused-tenant": ("bad", r"The tenant “wonka” is suspended: none of its jobs run\."),
    # Last, because it occupies the pool that the others use.
    "lagging-pool": (
        "warn",
        r"Pool “short” is behind: 3 runs are waiting, the first for [^.;]+(\.|; 1 more problem needs attention\.)",
    ),
}


@dataclass(frozen=True)
class Installation:
    console: str
    tenant: str


def on_thread(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Runs async code on a thread of its own: Playwright runs an event loop on this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


def execute(dsn: str, statement: str, *values: Any) -> None:
    async def work() -> None:
        connection = await asyncpg.connect(dsn, server_settings={"search_path": "bellringer"})
        await connection.execute(statement, *values)
        await connection.close()

    on_thread(work)


@contextmanager
def server(dsn: str, folder: Path, *options: str) -> Iterator[str]:
    """A server without a worker of its own; yields its URL."""
    port = _free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
    with (folder / f"server-{port}.log").open("wb") as said:
        process = subprocess.Popen(
            [BELLRINGER, "server", "--insecure", "--port", str(port), *options],
            cwd=folder,
            env={**kept, "BELLRINGER_DSN": dsn},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: process.poll() is not None or _answers(url), "the server is ready")
        assert process.poll() is None, (folder / f"server-{port}.log").read_text()
        yield url
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(PATIENCE)


def _answers(url: str) -> bool:
    try:
        ask(url, "GET", "overview")
    except (OSError, AssertionError):  # an error while the server starts
        return False
    return True


def ask(url: str, method: str, path: str, body: Any = None, tenant: str | None = None) -> Any:
    at = Shop.__new__(Shop)
    at.url = url
    return at.ask(method, path, body, **({} if tenant is None else {"X-Tenant": tenant}))


@contextmanager
def slow_proxy(dsn: str) -> Iterator[SilentProxy]:
    """A proxy to a database, run by a thread; it is slow as soon as `delay_seconds` is set."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), loop).result(PATIENCE)

    proxy = SilentProxy(dsn)
    run(proxy.__aenter__())
    try:
        yield proxy
    finally:
        run(proxy.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


@pytest.fixture(scope="module")
def unserved(bellringer_server: TestServer) -> Iterator[str]:
    """A database without a server."""
    with bellringer_server.plain_database() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def own(bellringer_server: TestServer, unserved: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A `bellringer dev` of this file, whose pools and workers no other test uses. Both databases are made before the
    browser opens.
    """
    with bellringer_server.plain_database() as dsn:
        shop = Shop(tmp_path_factory.mktemp("five-seconds"), dsn)
        try:
            shop.wait()
            yield shop
        finally:
            shop.mend()
            shop.stop()


def _declare(dsn: str, tenant: str, version: str, *names: str) -> None:
    app = App(dsn, tenant=tenant, name="billing", version=version)
    for name in names:
        app.schedule(every("1h"))(app.task(name=name)(lambda: None))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(app.declare).result()
        thread.submit(app.close).result()


def _job(shop: Shop, tenant: str, task: str = "shop.pack", **kwargs: int) -> None:
    schedule = {"cron": "0 3 * * *"}
    job = {"name": "nightly", "task": task, "kwargs": kwargs, "schedule": schedule, "overlap": "allow"}
    shop.ask("POST", "jobs", job, **{"X-Tenant": tenant})


def _run(shop: Shop, tenant: str) -> str:
    run: str = shop.ask("POST", "jobs/nightly/run", {}, **{"X-Tenant": tenant})["run_id"]
    return run


def _healthy(shop: Shop, tenant: str) -> None:
    _job(shop, tenant, order=1)
    run = _run(shop, tenant)
    until(lambda: shop.ask("GET", f"runs/{run}", **{"X-Tenant": tenant})["state"] == "succeeded", "the run succeeds")


def _failing(shop: Shop, tenant: str) -> None:
    _job(shop, tenant, "shop.ship", order=1)
    shop.break_down("the truck does not start")
    _run(shop, tenant)


def _unknown_task(shop: Shop, tenant: str) -> None:
    _job(shop, tenant, "shop.pcak", order=1)
    _run(shop, tenant)
    execute(shop.dsn, "update queue set available_at = available_at - interval '20 minutes'")


def _orphan(shop: Shop, tenant: str) -> None:
    _declare(shop.dsn, tenant, "1", "report", "sync")
    _declare(shop.dsn, tenant, "2", "report")


def _paused(shop: Shop, tenant: str) -> None:
    _job(shop, tenant, order=1)
    shop.ask("PATCH", f"tenants/{tenant}", {"suspended": True})


def _lagging(shop: Shop, tenant: str) -> None:
    _job(shop, tenant, "shop.wait")
    shop.ask("PUT", "pools/short", {"concurrency": 1})
    for _ in range(4):
        _run(shop, tenant)
    until(lambda: shop.ask("GET", "runs?state=running", **{"X-Tenant": tenant})["items"], "a run occupies the pool")
    execute(shop.dsn, "update queue set available_at = available_at - interval '5 minutes' where worker_id is null")


PREPARE: Final[Mapping[str, Callable[[Shop, str], None]]] = {
    "healthy": _healthy,
    "failing-job": _failing,
    "unknown-task": _unknown_task,
    "slow-database": _healthy,
    "orphan": _orphan,
    "paused-tenant": _paused,
    "lagging-pool": _lagging,
}


@pytest.fixture
def installation(request: pytest.FixtureRequest, own: Shop, unserved: str, tmp_path: Path) -> Iterator[Installation]:
    state: str = request.param
    tenant = TENANTS[state]
    if state == "no-workers":
        with server(unserved, tmp_path) as url:
            ask(url, "POST", "tenants", {"name": tenant})
            job = {"name": "nightly", "task": "shop.pack", "schedule": {"cron": "0 3 * * *"}}
            ask(url, "POST", "jobs", job, tenant)
            ask(url, "POST", "jobs/nightly/run", {}, tenant)
            yield Installation(f"{url}/console/", tenant)
        return
    own.ask("POST", "tenants", {"name": tenant})
    PREPARE[state](own, tenant)
    if state == "slow-database":
        with slow_proxy(own.dsn) as proxy, server(proxy.address, tmp_path, "--no-scheduler") as url:
            proxy.delay_seconds = DELAY_SECONDS
            yield Installation(f"{url}/console/", tenant)
            proxy.delay_seconds = 0.0  # so that the server ends soon
        return
    yield Installation(own.console, tenant)
    own.mend()
    if state == "lagging-pool":
        for run in own.ask("GET", "runs?limit=20", **{"X-Tenant": tenant})["items"]:
            own.ask("POST", f"runs/{run['run_id']}/cancel", {}, **{"X-Tenant": tenant})
        own.ask("PUT", "pools/short", {})


@pytest.mark.parametrize("installation", VERDICTS, indirect=True)
def test_the_overview_says_what_is_wrong(
    installation: Installation, look: Open, request: pytest.FixtureRequest
) -> None:
    state = request.node.callspec.params["installation"]
    tone, sentence = VERDICTS[state]
    base = installation.console.removesuffix("/console/")

    def verdict() -> Any:
        return ask(base, "GET", "overview", tenant=installation.tenant)["verdict"]

    until(lambda: re.fullmatch(sentence, verdict()["text"]), f"the verdict of {state}, not {verdict()['text']!r}")
    found = verdict()
    assert found["tone"] == tone
    worst, *others = [problem["text"] for problem in found["problems"]] or [found["text"]]
    assert found["text"].startswith(worst.rstrip("."))
    eye = look(installation.console, tenant=installation.tenant)
    page = eye.go()
    shown = page.locator(".verdict")
    if state in {"slow-database", "lagging-pool"}:  # the numbers change while the page loads
        expect(shown.locator(".said")).to_have_text(re.compile(sentence.partition(r"\.")[0].partition("(")[0]))
    else:
        expect(shown.locator(".said")).to_have_text(worst)
        for text in others:
            expect(page.locator(".attention li, .problems li").filter(has_text=text.rstrip("."))).to_have_count(1)
    expect(shown).to_have_class(re.compile(f"tone-{tone}"))
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.emulate_media(reduced_motion="reduce")  # the menu of phones slides out of the picture
    for width, height in ((390, 844), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        if tone != "good":
            assert_no_overlap(page, f".attention li:nth-child({1 + len(others)})")
        page.screenshot(path=PICTURES / f"{state}{'' if width > 390 else '-phone'}.png")


def assert_no_overlap(page: Page, item: str) -> None:
    """Asserts that what needs attention comes before the charts, and that no label is printed over its text."""
    heading = page.get_by_role("heading", name="Needs attention").bounding_box()
    activity = page.get_by_role("heading", name="Activity").bounding_box()
    assert heading is not None
    assert activity is not None
    assert heading["y"] < activity["y"]
    boxes = page.locator(item).evaluate("""(one) => [...one.children].map((child) => {
        const range = document.createRange();
        range.selectNodeContents(child);
        const {left, right, top, bottom} = range.getBoundingClientRect();
        return [left, right, top, bottom];
    })""")
    label, text = boxes[:2]
    assert label[1] <= text[0] or label[3] <= text[2]
