"""The built documentation is complete, has no dead links, and loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bellringer.console import docs_site
from bellringer.console.docs_site import DocsSite
from bellringer.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr  # --strict: dead links and pages outside the navigation
    return folder


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(https?://[^"]+)"')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [(page.name, found) for page in pages for found in loads.findall(page.read_text())] == []


def test_the_search_index_has_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    names = {page.replace("README.md", "index.md").replace(".md", ".html") for page in pages} - {"index.html"}
    assert names - found == set()


def test_the_changelog_is_a_page_to_which_others_link(site: Path) -> None:
    assert "<h2" in (page := (site / "changelog.html").read_text())
    assert 'href="logs.html"' in page
    assert 'href="changelog.html"' in (site / "upgrades.html").read_text().partition("<article")[2]


def test_the_site_is_served_with_its_own_policy(site: Path) -> None:
    client = TestClient(DocsSite(site), base_url="http://127.0.0.1")
    assert client.get("/guide", follow_redirects=False).headers["location"] == "/guide/"
    page = client.get("/guide/")
    assert page.status_code == 200
    assert "Bellringer" in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert client.get("/guide/reference/settings.html").status_code == 200
    for outside in ("/guide/../pyproject.toml", "/guide/%2e%2e/%2e%2e/etc/passwd", "/guide/missing.html"):
        assert client.get(outside).status_code == 404


def test_the_packaged_guide_is_served(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "PACKAGED_FOLDER", site)
    client = TestClient(DocsSite("packaged"), base_url="http://127.0.0.1")
    assert client.get("/guide/reference/cron.html").status_code == 200


def test_an_installation_without_a_guide_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "PACKAGED_FOLDER", tmp_path / "none")
    with pytest.raises(ConfigError, match="this installation has no guide"):
        DocsSite("packaged")


def test_the_site_has_no_files_that_it_does_not_use(site: Path) -> None:
    assert [path.name for path in site.rglob("*") if path.suffix == ".map" or path.name == "lunr"] == []
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 12_000_000


def test_a_folder_without_a_site_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no index\.html") as refused:
        DocsSite(tmp_path)
    assert "make docs" in refused.value.hint
