"""The built-in tasks of workflows, which every worker knows beside its own."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bellringer.jobs import SIGNAL, WAIT, WORKFLOW
from bellringer.store.names import TaskDescription
from bellringer.tasks import Failed, Opened, Registry, Task, task_from

_NOTHING: Final = object()


async def workflow(**_params: Any) -> Opened:
    """Open a workflow run: its nodes run on their own."""
    return Opened()


async def wait() -> None:
    """The time that a node waits for has come."""


async def signal(name: str, default: Any = _NOTHING) -> Any:
    """A signal has not come in time."""
    if default is _NOTHING:
        message = f"nobody sent the signal {name!r} in time"
        raise Failed("NoSignal", message, final="no signal came in time")
    return default


TASKS: Final = tuple(
    task_from(function, name=name) for function, name in ((workflow, WORKFLOW), (wait, WAIT), (signal, SIGNAL))
)


class WithBuiltIns(Registry):
    """A registry and the built-in tasks beside it."""

    def __init__(self, own: Registry) -> None:
        super().__init__()
        self._own = own
        self._built_in = {task.name: task for task in TASKS}

    def names(self) -> list[str]:
        return [*self._own.names(), *self._built_in]

    def get(self, name: str) -> Task | None:
        return self._own.get(name) or self._built_in.get(name)

    def descriptions(self) -> list[TaskDescription]:
        """What is told of its own to those who make jobs; nobody may name the built-in ones."""
        return [_described(task) for name in self._own.names() if (task := self._own.get(name)) is not None]

    def closest(self, name: str) -> list[str]:
        return self._own.closest(name)


def _described(task: Task) -> TaskDescription:
    schema, defaults = (msgspec.json.encode(part).decode() for part in (task.schema, task.defaults))
    return TaskDescription(name=task.name, schema=schema, doc=task.doc, defaults=defaults)
