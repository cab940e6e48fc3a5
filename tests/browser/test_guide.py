"""The guide works in a browser as `bellringer dev` serves it: its search, its pages on a phone, both themes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

from bellringer.console.docs_site import DocsSite

from .conftest import ARTEFACTS, until

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("index", "architecture", "cohorts", "console", "reference/cron", "reference/rest", "reference/errors")


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guide")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    server = uvicorn.Server(uvicorn.Config(DocsSite(folder), port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the guide is served")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/guide"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def page(browser: Browser, guide: str) -> Iterator[Page]:
    """A page that collects errors and requests to other origins, and fails the test if there are any."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened, wrong = context.new_page(), []
    origin = guide.removesuffix("/guide")
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
    opened.on(
        "request",
        lambda request: None if request.url.startswith((origin, "data:", "blob:")) else wrong.append(request.url),
    )
    yield opened
    context.close()
    assert wrong == []


def test_the_search_finds_a_setting_without_network(page: Page, guide: str) -> None:
    page.goto(f"{guide}/index.html")
    page.locator("[data-md-component=search-query]").fill("max_connections")
    results = page.locator(".md-search-result__link")
    expect(results.first).to_be_visible()
    assert any("settings.html" in (link.get_attribute("href") or "") for link in results.all())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_on_a_phone_and_has_both_themes(name: str, page: Page, guide: str) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"{guide}/{name}.html")
        assert page.evaluate("getComputedStyle(document.body).colorScheme") == scheme
        expect(page.locator("h1").first).to_be_visible()
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=ARTEFACTS / f"guide-{name.replace('/', '-')}-{scheme}.png")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the page scrolls sideways"
    page.screenshot(path=ARTEFACTS / f"guide-{name.replace('/', '-')}-narrow.png")
    broken = (
        "[...document.images].filter((image) => image.complete && image.naturalWidth === 0).map((image) => image.src)"
    )
    assert page.evaluate(broken) == []
