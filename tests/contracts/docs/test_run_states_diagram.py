"""The picture of a run's states in the documents is the table in the code."""

from __future__ import annotations

import re
from pathlib import Path

from bellringer.core.runs import TRANSITIONS

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_the_documented_picture_shows_every_transition_and_no_other() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+): (.+)$", ARCHITECTURE.read_text(), re.MULTILINE)
    coded = [(source.value, target.value, event.value) for (source, event), target in TRANSITIONS.items()]
    assert sorted(drawn) == sorted(coded)
