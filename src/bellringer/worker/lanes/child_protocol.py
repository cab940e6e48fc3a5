"""The protocol between a worker and its child processes: JSON, one message per line.

Every message carries a token that is unique to its attempt, and messages from a child carry the id of the process that
wrote them. A message of a forked copy, or one that arrives late, is therefore never taken for another attempt's result.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bellringer.core.runs import Ending
from bellringer.worker.attempt import Work

MAX_MESSAGE_OVERHEAD_BYTES: Final = 1 << 20  # in addition to the result: traceback, fields of a log line


class RunMessage(msgspec.Struct, tag="run"):
    """To the child: execute this attempt. The child reports progress and heartbeats every `tick` seconds."""

    token: str
    work: Work
    lateness: float
    limit: int
    tick: float
    captures: bool = False  # descriptors that replace standard output and standard error follow on the second socket


class CancelMessage(msgspec.Struct, tag="cancel"):
    """To the child: cancel the attempt with this token. SIGTERM follows."""

    token: str
    reason: str


class ReadyMessage(msgspec.Struct, tag="ready"):
    """From the child: the app is imported."""


class ImportFailedMessage(msgspec.Struct, tag="broken"):
    """From the child: the app cannot be imported."""

    error: dict[str, Any]


class BeganMessage(msgspec.Struct, tag="began"):
    """From the child: the handler is about to be called. If the child dies earlier, the attempt has not started."""


class AliveMessage(msgspec.Struct, tag="alive"):
    """From the child: a heartbeat of the handler, optionally with progress."""

    progress: dict[str, Any] | None = None


class LogMessage(msgspec.Struct, tag="line"):
    """From the child: a log line of the handler, or a line of its output with its source."""

    level: str
    message: str
    fields: dict[str, Any] | None = None
    source: str | None = None
    echo: bool = True
    at: float = 0.0  # monotonic time
    unread: tuple[int, int] = (0, 0)  # bytes that programs had written to the two pipes, and the worker had not read


class EndMessage(msgspec.Struct, tag="end"):
    """From the child: the attempt has ended."""

    ending: Ending


ToChild = RunMessage | CancelMessage
FromChild = ReadyMessage | ImportFailedMessage | BeganMessage | AliveMessage | LogMessage | EndMessage


class ChildMessage(msgspec.Struct):
    """The envelope of messages from the child. The token is "" before the first attempt."""

    token: str
    pid: int
    message: FromChild


_encode: Final = msgspec.json.Encoder().encode
decode_in_child: Final = msgspec.json.Decoder(ToChild).decode
decode_in_parent: Final = msgspec.json.Decoder(ChildMessage).decode


def encode_line(message: ToChild | ChildMessage) -> bytes:
    return _encode(message) + b"\n"
