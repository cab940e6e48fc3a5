"""Builds the stored ending of an attempt from a handler's return value, exception or stop reason."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from bellringer.core.payload import scrub, to_plain
from bellringer.core.runs import Ending, Outcome
from bellringer.core.tasks import Discard, Failed, Opened, Snooze
from bellringer.errors import InvalidInput

MAX_ERROR_MESSAGE_BYTES: Final = 4 * 1024
MAX_TRACEBACK_BYTES: Final = 16 * 1024
MAX_LINEAGE_NAMES: Final = 64
_WORKER_FOLDER: Final = os.path.dirname(__file__)
_OMISSION: Final = "\n… {} bytes left out …\n"


def ending_of_value(value: Any, *, limit: int, ran: float) -> Ending:
    """Return the ending for a handler's return value."""
    if value is None:
        return Ending(outcome=Outcome.OK, ran=ran)
    if isinstance(value, Snooze):
        return Ending(outcome=Outcome.OK, snooze=value.delay, ran=ran)
    if isinstance(value, Opened):
        return Ending(outcome=Outcome.OK, opened=True, ran=ran)
    if isinstance(value, Discard):
        return Ending(
            outcome=Outcome.OK, discard=clip(safe_text(lambda: str(value.reason)), MAX_ERROR_MESSAGE_BYTES), ran=ran
        )
    try:
        return Ending(outcome=Outcome.OK, result=to_plain(value, limit=limit, what="the result"), ran=ran)
    except InvalidInput as error:
        message = str(error)
    except BaseException as error:  # noqa: BLE001 - serializing a user-defined model can raise anything
        message = f"the result cannot be written as JSON: {_message_of(error)}"
    if inspect.iscoroutine(value):
        value.close()
        message = "the handler returned a coroutine without awaiting it; declare it with `async def`"
    return failed_ending("ResultNotStorable", message, ran=ran)


def ending_of_error(error: BaseException, *, ran: float = 0.0) -> Ending:
    """Return the ending for an exception of a handler, including SystemExit and KeyboardInterrupt."""
    if isinstance(error, Failed):
        document = {**error_document(error.kind, _message_of(error)), **error.detail}
        return Ending(outcome=Outcome.FAILED, error=document, ran=ran, after=error.after, final=error.final)
    return Ending(outcome=Outcome.FAILED, error=describe_error(error), ran=ran)


def failed_ending(kind: str, message: str, *, ran: float = 0.0) -> Ending:
    """Return the ending for a failure without an exception."""
    return Ending(outcome=Outcome.FAILED, error=error_document(kind, message), ran=ran)


def lost_ending(kind: str, message: str, *, ran: float) -> Ending:
    """Return the ending for an abandoned attempt. The run is retried unless its delivery is at_most_once."""
    return Ending(outcome=Outcome.LOST, error=error_document(kind, message), ran=ran)


def cancelled_ending(reason: str, *, ran: float = 0.0) -> Ending:
    return Ending(outcome=Outcome.CANCELLED, error=error_document("Cancelled", reason), ran=ran)


def timed_out_ending(message: str, *, ran: float = 0.0) -> Ending:
    return Ending(outcome=Outcome.TIMED_OUT, error=error_document("TimedOut", message, "TimeoutError"), ran=ran)


def not_started_ending() -> Ending:
    """Return the ending for an attempt whose handler was not called because the worker no longer held it."""
    error = error_document("NotStarted", "the worker's lease expired before the handler was called")
    return Ending(outcome=Outcome.LOST, error=error, started=False)


def expired_ending() -> Ending:
    """Return the ending for an attempt whose handler was not called because the deadline of the run had passed."""
    error = error_document("Expired", "the deadline of the run passed before its handler was called")
    return Ending(outcome=Outcome.CANCELLED, error=error, started=False, expired=True)


def with_traceback(ending: Ending, place: str) -> Ending:
    """Return the ending with a traceback of the handler at the time it was stopped."""
    return msgspec.structs.replace(
        ending, error={**(ending.error or {}), "traceback": clip(place, MAX_TRACEBACK_BYTES)}
    )


def error_document(kind: str, message: str, *also: str) -> dict[str, Any]:
    """Return the stored form of an error without an exception."""
    return {
        "type": kind,
        "message": clip(message, MAX_ERROR_MESSAGE_BYTES),
        "traceback": "",
        "lineage": [kind, *also],
    }


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the stored form of an exception. `lineage` lists its short and qualified class names, for `never_on`."""
    try:
        return {
            "type": scrub(_qualified_name(type(error))),
            "message": clip(_message_of(error), MAX_ERROR_MESSAGE_BYTES),
            "traceback": clip(format_traceback(error), MAX_TRACEBACK_BYTES),
            "lineage": [scrub(name) for name in _lineage(error)[:MAX_LINEAGE_NAMES]],
        }
    except Exception:  # noqa: BLE001 - a metaclass can make even the class name raise
        return error_document("Exception", "the handler raised an exception that cannot be described")


def format_traceback(error: BaseException) -> str:
    """Return the traceback without the leading frames of the worker."""
    own = error.__traceback__
    while own is not None and is_worker_code(own.tb_frame.f_code.co_filename):
        own = own.tb_next
    return safe_text(lambda: "".join(traceback.format_exception(type(error), error, own or error.__traceback__)))


def is_worker_code(filename: str) -> bool:
    """Whether a file belongs to the worker, so that its frames can be left out of tracebacks."""
    return filename.startswith(_WORKER_FOLDER)


def clip(text: str, limit: int) -> str:
    """Make text storable as jsonb and cut it to a limit in bytes. Long text keeps its beginning and its end."""
    text = scrub(text)
    data = text.encode()
    if len(data) <= limit:
        return text
    marker = _OMISSION.format(len(data) - limit)
    room = limit - len(_OMISSION.encode()) - 20  # the number in the marker may have that many digits
    head, tail = data[: room // 4], data[-(room - room // 4) :]
    return head.decode(errors="ignore") + marker + tail.decode(errors="ignore")


def _message_of(error: BaseException) -> str:
    return safe_text(lambda: str(error))


def safe_text(read: Callable[[], str]) -> str:
    """Return the text of a user-defined object; its `__str__` or `__repr__` can raise."""
    try:
        return read()
    except Exception as failure:  # noqa: BLE001 - user code
        return f"(cannot be shown: {type(failure).__name__})"


def _lineage(error: BaseException) -> list[str]:
    """Return the class names of an error. For a group, includes the classes shared by all of its members."""
    names = _class_names(type(error))
    if isinstance(error, BaseExceptionGroup):
        shared: Sequence[str] | None = None
        for leaf in _group_leaves(error):
            own = _lineage(leaf)
            shared = own if shared is None else [name for name in shared if name in own]
        names += [name for name in shared or () if name not in names]
    return names


def _group_leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the members of a group and of its nested groups. Iterative, because nesting can be deep."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    return leaves


def _class_names(kind: type[BaseException]) -> list[str]:
    names: dict[str, None] = {}
    for cls in kind.__mro__:
        if cls is object:
            continue
        names[cls.__name__] = None
        names[_qualified_name(cls)] = None
        names[f"{cls.__module__}.{cls.__qualname__}"] = None
        if cls is Exception:
            break
    return list(names)


def _qualified_name(kind: type) -> str:
    """Return a class name with its module; without it for built-in classes and classes of this package."""
    module = str(kind.__module__)
    if module.partition(".")[0] in ("builtins", "bellringer"):
        return kind.__qualname__
    return f"{module}.{kind.__qualname__}"
