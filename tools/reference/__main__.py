"""`python -m tools.reference` writes the pages; with `--check` it only reports those that are out of date."""

from __future__ import annotations

import sys

from tools.reference.pages import FOLDER, PAGES, outdated


def main(arguments: list[str]) -> int:
    """Returns 1 with `--check` if a page is out of date."""
    stale = outdated()
    if "--check" in arguments:
        for name in stale:
            print(f"docs/reference/{name} is out of date: run `python -m tools.reference`")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(PAGES[name]())
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
