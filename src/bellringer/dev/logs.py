"""What children say while somebody watches all of them: each line with the name of who said it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bellringer.dev.lines import Paint, say

MOST: Final = 65_536  # bytes of one child told at a look: one that shouts must not hide the others
LIMIT: Final = 8_000_000  # bytes after which a file begins anew


class Log:
    """The file that a child writes to, told line by line. The file outlives us both: a pipe would break with us."""

    def __init__(self, name: str, path: Path, *, width: int, paint: Paint) -> None:
        self.path = path
        self._sign = paint(f"{name:<{width}} │", "dim")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._place = 0

    def tell(self, *, rest: bool = False) -> None:
        """Say what has come since; with `rest` also a last line that has no end."""
        said = os.pread(self._file, MOST, self._place)
        whole = said if rest or len(said) == MOST else said[: said.rfind(b"\n") + 1]
        for line in whole.decode(errors="replace").splitlines():
            say(f"  {self._sign} {line.rstrip()}".rstrip())
        self._place += len(whole)
        if self._place > LIMIT and self._place == os.fstat(self._file).st_size:
            os.ftruncate(self._file, 0)  # who writes appends, so it goes on from the new end
            self._place = 0

    def close(self) -> None:
        self.tell(rest=True)
        os.close(self._file)
