"""`python -m tools.diagrams` writes the diagrams; with `--check` it only reports those that are out of date."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.diagrams.architecture import draw_architecture
from tools.diagrams.cohort import draw_cohort
from tools.diagrams.leases import draw_leases
from tools.diagrams.run_life import draw_run_life
from tools.diagrams.run_states import draw_run_states
from tools.diagrams.svg import Drawing

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
DIAGRAMS: Final[Mapping[str, Callable[[], Drawing]]] = {
    "architecture.svg": draw_architecture,
    "cohort.svg": draw_cohort,
    "leases.svg": draw_leases,
    "run-life.svg": draw_run_life,
    "run-states.svg": draw_run_states,
}


def outdated() -> list[str]:
    """Returns the names of the files that differ from what the code draws now."""
    return [
        name
        for name, draw in DIAGRAMS.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text() != draw().render()
    ]


def main(arguments: Sequence[str]) -> int:
    """Returns 1 with `--check` if a diagram is out of date."""
    stale = outdated()
    if "--check" in arguments:
        for name in stale:
            print(f"docs/images/{name} is out of date: run `python -m tools.diagrams`")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(DIAGRAMS[name]().render())
        print(f"wrote docs/images/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
