"""The diagrams are what the code draws, and the states of a run are those of the table in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tools.diagrams.__main__ import DIAGRAMS, FOLDER, outdated
from tools.diagrams.run_states import draw_run_states

from bellringer.core.runs import TRANSITIONS

DOCS = FOLDER.parent
SVG = "{http://www.w3.org/2000/svg}"


def test_all_diagrams_are_current() -> None:
    assert outdated() == [], "run `python -m tools.diagrams`"


def test_the_diagram_of_states_shows_every_transition_and_no_other() -> None:
    titles = [title.text or "" for title in ET.fromstring(draw_run_states().render()).iter(f"{SVG}title")]
    drawn = [
        (source, target, event)
        for source, target, events in (re.fullmatch(r"(\w+) → (\w+): (.+)", text).groups() for text in titles[1:])  # type: ignore[union-attr]
        for event in events.split(", ")
    ]
    coded = [(source.value, target.value, event.value) for (source, event), target in TRANSITIONS.items()]
    assert sorted(drawn) == sorted(coded)


@pytest.mark.parametrize("name", sorted(DIAGRAMS))
def test_a_diagram_has_both_themes_and_a_description_and_its_shapes_fit(name: str) -> None:
    text = (FOLDER / name).read_text()
    root = ET.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    assert len(root.findtext(f"{SVG}desc") or "") > 50
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for x, y in positions(root):
        assert 0 <= x <= width, f"{x} is outside of {name}"
        assert 0 <= y <= height, f"{y} is outside of {name}"


def positions(root: ET.Element) -> Iterator[tuple[float, float]]:
    for shape in root.iter():
        if shape.tag in {f"{SVG}rect", f"{SVG}text"} and "x" in shape.attrib:
            x, y = float(shape.attrib["x"]), float(shape.attrib["y"])
            yield x, y
            yield x + float(shape.attrib.get("width", 0)), y + float(shape.attrib.get("height", 0))
        elif shape.tag == f"{SVG}path" and "class" in shape.attrib and "-head" not in shape.attrib["class"]:
            numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", shape.attrib["d"])]
            if shape.attrib["class"] != "head":
                yield from zip(numbers[::2], numbers[1::2], strict=True)


@pytest.mark.parametrize("name", sorted(DIAGRAMS))
def test_every_diagram_is_shown_by_a_page(name: str) -> None:
    pages = [page for page in Path(DOCS).rglob("*.md") if f"images/{name})" in page.read_text()]
    assert pages != []
