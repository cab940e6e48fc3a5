"""What the function of a workflow works with while it declares: values that are known only when the workflow runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from bellringer.errors import InvalidInput
from bellringer.payload import to_plain
from bellringer.workflows import Ref, Source

_HINT: Final = "use .is_() for a branch and wf.map for a loop, or hand it to a task"


class Value:
    """A value that is yet to come. It can be handed on, or gone into with `[…]`; to look at it is a mistake."""

    def __init__(self, ref: Ref, owner: object = None) -> None:
        self.ref = ref
        self.owner = owner  # the workflow that it belongs to; None: any

    def __getitem__(self, step: str | int) -> Value:
        """A part of it, which is known as late: `files["paths"][0]`."""
        if isinstance(step, bool) or not isinstance(step, str | int):
            hint = "to run a task for each element, use wf.map"
            raise InvalidInput(f"{self!r} has no part {step!r}", hint=hint, code="type")
        return Value(replace(self.ref, path=(*self.ref.path, step)), self.owner)

    def is_(self, _value: Any) -> Branch:
        hint = "let a task look at it, and compare what that returns"
        raise InvalidInput(f"only the whole result of a node can be compared, not {self!r}", hint=hint, code="type")

    def _look(self, *_: object) -> NoReturn:
        raise InvalidInput(f"{self!r} has no value yet", hint=_HINT, code="no_value")

    # Whatever would need the value: `if`, loops, comparisons, texts.
    __bool__ = __iter__ = __len__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = _look
    __str__ = __format__ = __int__ = __float__ = __index__ = _look

    def __eq__(self, other: object) -> bool:
        self._look()

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        path = "".join(f"[{step!r}]" for step in self.ref.path)
        return f"<{self.ref.source} {self.ref.name}{path}>".replace(" >", ">")


class Node(Value):
    """A node of a workflow; handed on, it stands for its result."""

    def __init__(self, name: str, owner: object) -> None:
        super().__init__(Ref(Source.NODE, name), owner)
        self.name = name

    def is_(self, value: Any) -> Branch:
        """A branch: what comes after this runs only if the node's result is that value."""
        return Branch(self, to_plain(value, what="the value of a branch"))


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A node to come after, if its result is this."""

    node: Node
    value: Any


def _fact(name: str) -> Any:
    # Of any type, for it stands as the default of params that have types of their own.
    return Value(Ref(Source.RUN, name))


RUN_DATE: Final = _fact("date")
RUN_AT: Final = _fact("scheduled_for")
RUN_ID: Final = _fact("id")
