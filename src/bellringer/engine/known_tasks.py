"""Checks that a worker knows the task of a new job or run, so that a typo is reported before its runs wait forever."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from time import monotonic
from typing import Final, Literal

from bellringer.core.jobs import BUILT_IN_TASKS
from bellringer.errors import InvalidInput
from bellringer.store import tasks
from bellringer.store.connection_pool import Store

FRESH_SECONDS: Final = 10.0  # how long a known task counts as known
RETRY_SECONDS: Final = 1.0  # how long an unknown task counts as unknown

_NO_OPTIONS: Final = ", and the retry, timeout, delivery and pool of its code do not apply to them"
_APPLY_OPTIONS: Final = "then send again, repeat a PUT, or set its options with `bellringer jobs update`"

UnknownTasks = Literal["accept", "warn", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWarning:
    """A warning about a task that was accepted."""

    code: str
    detail: str
    hint: str


class KnownTasks:
    """The tasks of live workers, read at most once a second; `policy` decides about unknown tasks.

    With `reads_options`, the caller takes omitted options from the description of the task, as the API does, rather
    than from the code itself, as the SDK does.
    """

    def __init__(self, store: Store, policy: UnknownTasks = "warn", *, reads_options: bool = False) -> None:
        self._store = store
        self._policy = policy
        self._reads_options = reads_options
        self._read_at = float("-inf")
        self._live: dict[str, set[str]] = {}

    async def check(self, task: str, pool: str) -> TaskWarning | None:
        """Returns a warning if no live worker of the pool knows the task; raises InvalidInput if unknown tasks are
        refused.

        A task is refused only if no worker has ever described it: during a deployment, or while all workers are
        down, known tasks are still accepted. Without any live worker there is no warning.
        """
        if self._policy == "accept" or task in BUILT_IN_TASKS:
            return None
        if pool not in await self._pools(task, FRESH_SECONDS):
            pools = await self._pools(task, RETRY_SECONDS)
            if self._policy == "refuse" and not pools and not await tasks.is_described(self._store, task):
                message = f"no worker has ever known the task {task!r}"
                raise InvalidInput(message, hint=self._hint(task), pointer="/task", code="task_unknown")
            if self._live and pool not in pools:
                lacks_options = self._reads_options and not pools and not await tasks.is_described(self._store, task)
                return self._warning(task, pool, pools, lacks_options=lacks_options)
        return None

    async def _pools(self, task: str, fresh: float) -> set[str]:
        """Returns the pools whose workers know a task, from data that is at most `fresh` seconds old."""
        if monotonic() - self._read_at >= fresh:
            self._live = await tasks.live_tasks(self._store)
            self._read_at = monotonic()
        return self._live.get(task, set())

    def _warning(self, task: str, pool: str, pools: set[str], *, lacks_options: bool) -> TaskWarning:
        detail = f"no live worker of pool {pool} knows the task {task}; its runs wait until one does"
        hint = f"workers of {', '.join(sorted(pools))} know it" if pools else self._hint(task)
        if lacks_options:
            detail += _NO_OPTIONS
            hint = f"{hint.replace('?', '? If not, start a worker that has it')}, {_APPLY_OPTIONS}"
        return TaskWarning(code="task_unknown", detail=detail, hint=hint)

    def _hint(self, task: str) -> str:
        near = get_close_matches(task, self._live, n=1)
        return f"did you mean {near[0]}?" if near else "start a worker that has it"
