"""`python -m tools.dashboards` writes the dashboards; `--check` only compares them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.dashboards.database import DATABASE
from tools.dashboards.grafana import Dashboard
from tools.dashboards.overview import OVERVIEW
from tools.dashboards.scheduler import SCHEDULER
from tools.dashboards.tenants import TENANTS
from tools.dashboards.workers import WORKERS

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS: Final[Sequence[Dashboard]] = (OVERVIEW, SCHEDULER, WORKERS, TENANTS, DATABASE)


def render_files() -> dict[Path, str]:
    """Returns the text of each dashboard by its path."""
    return {
        FOLDER / f"{dashboard.uid.removeprefix('bellringer-')}.json": json.dumps(
            dashboard.render(), indent=2, ensure_ascii=False
        )
        + "\n"
        for dashboard in DASHBOARDS
    }


def main(arguments: Sequence[str]) -> int:
    files = render_files()
    if "--check" in arguments:
        stale = [path.name for path, text in files.items() if not path.exists() or path.read_text() != text]
        for name in stale:
            print(f"{name} differs: run `python -m tools.dashboards`")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text)
        print(path.relative_to(FOLDER.parents[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
