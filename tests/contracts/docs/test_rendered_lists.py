"""The built pages show every list of their source.

Python-Markdown ends a list at a block that is indented by less than four spaces: later items then start at 1 again, or
become lines of a paragraph.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown import Markdown  # type: ignore[import-untyped]
from mkdocs.config import load_config

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^ *(?:(?P<number>\d+)\.|[-*+]) ", re.MULTILINE)
BULLET = 0


@pytest.fixture(scope="module")
def markdown() -> Markdown:
    config = load_config(str(ROOT / "mkdocs.yml"))
    return Markdown(extensions=config.markdown_extensions, extension_configs=config.mdx_configs)


class ListItems(HTMLParser):
    """Collects the number of each item as a browser shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self._next_numbers: list[int] = []  # of the open lists

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "ol":
            self._next_numbers.append(int(dict(attrs).get("start") or 1))
        elif tag == "ul":
            self._next_numbers.append(BULLET)
        elif tag == "li":
            number = self._next_numbers[-1]
            self.numbers.append(number)
            self._next_numbers[-1] += number != BULLET

    def handle_endtag(self, tag: str) -> None:
        if tag in {"ol", "ul"}:
            self._next_numbers.pop()


def written_items(text: str) -> list[int]:
    return [int(item["number"] or BULLET) for item in ITEM.finditer(FENCE.sub("", text))]


def shown_items(markdown: Markdown, text: str) -> list[int]:
    items = ListItems()
    items.feed(markdown.reset().convert(text))
    return items.numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_shows_the_items_that_are_written(page: Path, markdown: Markdown) -> None:
    text = page.read_text()
    assert shown_items(markdown, text) == written_items(text), (
        "indent blocks of list items by four spaces, write a blank line before a list, and wrap no line before `1. `"
    )


def test_a_list_that_a_block_interrupts_is_found(markdown: Markdown) -> None:
    for block in ("```sh\n{0}ls\n{0}```", "| a | b |\n{0}|---|---|\n{0}| c | d |", "A paragraph."):
        wide = f"1. One\n\n    {block.format('    ')}\n\n2. Two\n3. Three\n"
        narrow = f"1. One\n\n  {block.format('  ')}\n2. Two\n3. Three\n"
        assert shown_items(markdown, wide) == written_items(wide) == [1, 2, 3]
        assert shown_items(markdown, narrow) != written_items(narrow) == [1, 2, 3]
    assert shown_items(markdown, "These:\n- one\n- two\n") == []
