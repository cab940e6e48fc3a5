"""Progress of long commands on stderr: a bar on a terminal, plain lines every few seconds otherwise."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.output import format_seconds, sanitize

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_SECONDS: Final = 5.0  # between two plain lines; a command that is faster prints none


class Progress(ABC):
    """Counts what a command has done. `total` is None while the amount is not known."""

    def __init__(self, what: str, unit: str, total: float | None) -> None:
        self._what = what
        self._unit = unit
        self._total = total
        self._done = self._shown = 0.0  # `shown` counts items; `done` is measured in the unit of the total
        self._began = time.monotonic()

    def advance(self, items: float = 1, *, size: float | None = None) -> None:
        """Adds what was done. `size` is its part of the total, if the total is not a number of items."""
        self.update(self._done + (items if size is None else size), shown=self._shown + items)

    def update(
        self, done: float, *, total: float | None = None, what: str | None = None, shown: float | None = None
    ) -> None:
        """Sets how much is done so far, and the total or the text if they have changed."""
        self._done, self._shown = done, done if shown is None else shown
        self._total = self._total if total is None else total
        self._what = self._what if what is None else what
        self._show()

    @abstractmethod
    def _show(self) -> None: ...

    def _seconds_left(self) -> float | None:
        spent = time.monotonic() - self._began
        if not self._total or not self._done or self._done >= self._total:
            return None
        return spent / self._done * (self._total - self._done)

    def _rate(self) -> float:
        return self._shown / max(time.monotonic() - self._began, 0.001)

    def describe(self) -> str:
        """ "exporting: 12,000 of 50,000 runs (24%), 2,400/s, 16 s left"."""
        share = f" ({min(self._done / self._total, 1):.0%})" if self._total else ""
        of_items = f" of {self._total:,.0f}" if self._total and self._shown == self._done else ""
        parts = [f"{self._shown:,.0f}{of_items} {self._unit}{share}"]
        if self._shown:
            rate = self._rate()
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate * 60:,.0f} a minute")
        if (left := self._seconds_left()) is not None:
            parts.append(f"{format_seconds(round(left))} left")
        return sanitize(f"{self._what}: {', '.join(parts)}")


class _Lines(Progress):
    """Prints a line every LINE_SECONDS, for logs and pipes."""

    def __init__(self, what: str, unit: str, total: float | None) -> None:
        super().__init__(what, unit, total)
        self._printed = self._began

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._printed >= LINE_SECONDS:
            self._printed = now
            click.echo(f"  {self.describe()}", err=True)


class _Bar(Progress):
    """Updates a bar, which disappears at the end."""

    def __init__(self, bar: RichProgress, what: str, unit: str, total: float | None) -> None:
        super().__init__(what, unit, total)
        self._bar = bar
        self._row = bar.add_task(self.describe(), total=total)

    def _show(self) -> None:
        self._bar.update(self._row, completed=self._done, total=self._total, description=self.describe())


@contextmanager
def show_progress(what: str, unit: str, total: float | None = None) -> Iterator[Progress]:
    """Shows the progress of a block: `what` is done ("exporting") to so many of `unit` ("runs")."""
    if not sys.stderr.isatty():
        yield _Lines(what, unit, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, what, unit, total)
