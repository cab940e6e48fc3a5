"""What a handler and its worker share while an attempt runs: signs of life, progress, the wish to cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bellringer.errors import Cancelled
from bellringer.worker.work import Work


class Control:
    """One attempt's shared state.

    Written from the handler's thread and read from the loop, or the other way round: each field changes by a
    single assignment, so neither side needs a lock.
    """

    __slots__ = ("_changed", "_monotonic", "heard", "pending", "progress", "reason", "signed_at", "work")

    def __init__(
        self, work: Work, monotonic: Callable[[], float], changed: Callable[[Control], None] | None = None
    ) -> None:
        self.work = work
        self._monotonic = monotonic
        self._changed = changed
        self.signed_at = 0.0
        self.reason: str | None = None  # why to cancel, once that was asked for
        self.heard = False  # the handler was told
        self.progress: dict[str, Any] | None = None
        self.pending = False  # progress was reported that nobody has collected yet

    def sign(self) -> None:
        """A sign of life."""
        self.signed_at = self._monotonic()

    def ask(self, reason: str) -> None:
        """Ask the handler to cancel; the first reason stays."""
        if self.reason is None:
            self.reason = reason

    def check(self) -> None:
        """A safe point: a sign of life that raises Cancelled once that was asked for."""
        self.signed_at = self._monotonic()
        if self.reason is not None:
            self.heard = True
            raise Cancelled(self.reason)

    def report(self, progress: dict[str, Any]) -> None:
        """Note how far the handler has come. The value goes first: who sees `pending` finds the newest."""
        self.progress = progress
        if not self.pending:
            self.pending = True
            if self._changed is not None:
                self._changed(self)

    def collect(self) -> dict[str, Any] | None:
        """Take what was reported since the last time."""
        self.pending = False
        return self.progress
