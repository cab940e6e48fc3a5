"""A hook of MkDocs: makes CHANGELOG.md a page of the site. In the repository, pages link to the file itself."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

CHANGELOG: Final = Path(__file__).parents[1] / "CHANGELOG.md"
PAGE: Final = "changelog.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page; its links lead to other pages."""
    files.append(File.generated(config, PAGE, content=CHANGELOG.read_text().replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Makes links to the file links to the page."""
    return markdown.replace("](../CHANGELOG.md", f"]({PAGE}")
