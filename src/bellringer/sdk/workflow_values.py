"""Placeholders for values that are known only when a workflow runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from bellringer.core.payload import to_plain
from bellringer.errors import InvalidInput
from bellringer.workflow import Ref, ValueSource

_HINT: Final = "use .is_() for a branch and wf.map for a loop, or pass the value to a task"


class Value:
    """A placeholder for a value. It can be passed to nodes or indexed with `[…]`; reading it raises InvalidInput."""

    def __init__(self, ref: Ref, owner: object = None) -> None:
        self.ref = ref
        self.owner = owner  # the workflow that it belongs to, or None

    def __getitem__(self, step: str | int) -> Value:
        """A placeholder for a part of the value: `files["paths"][0]`."""
        if isinstance(step, bool) or not isinstance(step, str | int):
            hint = "to run a task for each element, use wf.map"
            raise InvalidInput(f"{self!r} has no part {step!r}", hint=hint, code="type")
        return Value(replace(self.ref, path=(*self.ref.path, step)), self.owner)

    def is_(self, _value: Any) -> Branch:
        hint = "compare the value in a task, and branch on its result"
        raise InvalidInput(f"only the whole result of a node can be compared, not {self!r}", hint=hint, code="type")

    def _fail(self, *_: object) -> NoReturn:
        raise InvalidInput(f"{self!r} has no value yet", hint=_HINT, code="no_value")

    # All operations that need the value: `if`, loops, comparisons, formatting.
    __bool__ = __iter__ = __len__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = _fail
    __str__ = __format__ = __int__ = __float__ = __index__ = _fail

    def __eq__(self, other: object) -> bool:
        self._fail()

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        path = "".join(f"[{step!r}]" for step in self.ref.path)
        return f"<{self.ref.source} {self.ref.name}{path}>".replace(" >", ">")


class WorkflowNode(Value):
    """A node of a workflow; as an argument of another node, it stands for its result."""

    def __init__(self, name: str, owner: object) -> None:
        super().__init__(Ref(ValueSource.NODE, name), owner)
        self.name = name

    def is_(self, value: Any) -> Branch:
        """A condition for `after=`: the next node runs only if the result of this node equals the value."""
        return Branch(self, to_plain(value, what="the value of a branch"))


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A node and the result that it must have."""

    node: WorkflowNode
    value: Any


def _run_value(name: str) -> Any:
    # Typed as Any: it is used as the default of params with any type.
    return Value(Ref(ValueSource.RUN, name))


RUN_DATE: Final = _run_value("date")
RUN_AT: Final = _run_value("scheduled_for")
RUN_ID: Final = _run_value("id")
