"""`python -m tools.screenshots [NAME…]` writes the pictures into docs/images."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from bellringer.testing.postgres import serve
from tools.screenshots.pictures import PAGES, find_chromium, open_bookshop, take_pictures

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"


def main(names: list[str]) -> int:
    chromium = find_chromium()
    if chromium is None:
        print("there is no Chromium: `make browser` as root installs it")
        return 1
    with (
        serve(in_memory=True) as server,
        server.plain_database() as dsn,
        tempfile.TemporaryDirectory() as folder,
        open_bookshop(Path(folder), dsn) as bookshop,
    ):
        for path in take_pictures(bookshop, FOLDER, names or tuple(PAGES), chromium=chromium):
            print(f"{path.relative_to(FOLDER.parents[1])}  {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
