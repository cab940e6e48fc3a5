"""The documentation page: complete, without script or network, and safe whatever it is asked for."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser

import httpx2
import pytest

from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http.docs_page import curl
from bellringer.api.http.openapi import document

FORBIDDEN = {"script", "style", "iframe", "img", "object", "embed"}
VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """Reads a page strictly: what is opened is closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.faults: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in FORBIDDEN or any(name.startswith("on") or name == "style" for name in given):
            self.faults.append(f"{tag} {given}")
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given[name] or "" for name in ("href", "src", "action") if name in given]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open.pop() != tag:
            self.faults.append(f"</{tag}>")


async def test_it_shows_every_operation_without_script_or_network(api: httpx2.AsyncClient) -> None:
    response = await api.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors 'none'")
    page = Page(response.text)
    assert (page.faults, page.open) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    told = (await api.get("/openapi.json")).json()
    names = {op["operationId"] for at in told["paths"].values() for op in at.values()}
    assert names <= set(page.ids)
    assert all(link.startswith(("/", "#")) for link in page.links)


async def test_its_links_lead_somewhere(api: httpx2.AsyncClient) -> None:
    page = Page((await api.get("/docs")).text)
    anchors = {link.partition("#")[2] for link in page.links if "#" in link}
    assert anchors <= set(page.ids)
    for path in {link.partition("#")[0] for link in page.links} - {""}:
        assert (await api.get(path)).status_code == 200


async def test_its_style_is_served_and_knows_the_dark(api: httpx2.AsyncClient) -> None:
    style = await api.get("/docs/style.css")
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert "prefers-color-scheme: dark" in style.text
    assert not re.search(r"https?:|@import|url\(", style.text)


async def test_a_search_keeps_what_has_all_words(api: httpx2.AsyncClient) -> None:
    page = Page((await api.get("/docs", params={"q": "pause backfill"})).text)
    assert "pause_backfill" in page.ids
    assert "create_job" not in page.ids
    nothing = (await api.get("/docs", params={"q": "zzz"})).text
    assert "No operation matches the search." in nothing


@pytest.mark.parametrize("words", ["<script>alert(1)</script>", '" onfocus="x', "x" * 5000, "'&lt;"])
async def test_a_search_cannot_write_the_page(api: httpx2.AsyncClient, words: str) -> None:
    response = await api.get("/docs", params={"q": words})
    assert response.status_code == 200
    assert Page(response.text).faults == []
    assert words not in response.text


def test_each_operation_has_a_call_for_the_shell() -> None:
    told = document(ROUTES, "1")
    for path, at in told["paths"].items():
        for method, op in at.items():
            words = shlex.split(curl({**op, "method": method.upper(), "path": path}, told).replace("\\\n", ""))
            assert words[0] == "curl"
            assert any(word.startswith("$BELLRINGER_URL/") for word in words)
            if "-d" in words and any("json" in word for word in words):
                assert isinstance(json.loads(words[words.index("-d") + 1]), dict)
