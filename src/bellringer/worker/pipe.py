"""What a worker and its child processes say to each other: JSON, one message a line."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bellringer.runs import Ending
from bellringer.worker.work import Work

ROOM: Final = 1 << 20  # bytes of a line beyond the result: the error with its traceback, a log line's fields


class Run(msgspec.Struct, tag="run"):
    """To the child: execute this. It tells of progress and life every `tick` seconds."""

    work: Work
    lateness: float
    limit: int
    tick: float


class Cancel(msgspec.Struct, tag="cancel"):
    """To the child: the present run is asked to cancel; a signal follows."""

    reason: str


class Ready(msgspec.Struct, tag="ready"):
    """From the child: the app is imported."""


class Broken(msgspec.Struct, tag="broken"):
    """From the child: the app cannot be imported."""

    error: dict[str, Any]


class Began(msgspec.Struct, tag="began"):
    """From the child: the handler is about to be called. A child that dies before it has harmed no run."""


class Alive(msgspec.Struct, tag="alive"):
    """From the child: the handler gave a sign of life, and perhaps reported progress."""

    progress: dict[str, Any] | None = None


class Line(msgspec.Struct, tag="line"):
    """From the child: the handler logged."""

    level: str
    message: str
    fields: dict[str, Any] | None = None


class End(msgspec.Struct, tag="end"):
    """From the child: this is how it ended."""

    ending: Ending


ToChild = Run | Cancel
FromChild = Ready | Broken | Began | Alive | Line | End

_encode: Final = msgspec.json.Encoder().encode
read_in_child: Final = msgspec.json.Decoder(ToChild).decode
read_in_parent: Final = msgspec.json.Decoder(FromChild).decode


def line(message: ToChild | FromChild) -> bytes:
    return _encode(message) + b"\n"
