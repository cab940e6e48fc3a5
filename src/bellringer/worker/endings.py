"""How an attempt's end is put into words: what a handler returned, or how it failed, fit to be stored."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from bellringer.errors import InvalidInput
from bellringer.payload import scrub, to_plain
from bellringer.runs import Ending, Outcome
from bellringer.tasks import Discard, Failed, Opened, Snooze

MESSAGE_LIMIT: Final = 4 * 1024
TRACEBACK_LIMIT: Final = 16 * 1024
LINEAGE_LIMIT: Final = 64
_HERE: Final = os.path.dirname(__file__)
_CUT: Final = "\n… {} bytes left out …\n"


def returned(value: Any, *, limit: int, ran: float) -> Ending:
    """The end of a handler that returned."""
    if value is None:
        return Ending(outcome=Outcome.OK, ran=ran)
    if isinstance(value, Snooze):
        return Ending(outcome=Outcome.OK, snooze=value.delay, ran=ran)
    if isinstance(value, Opened):
        return Ending(outcome=Outcome.OK, opened=True, ran=ran)
    if isinstance(value, Discard):
        return Ending(outcome=Outcome.OK, discard=clip(told(lambda: str(value.reason)), MESSAGE_LIMIT), ran=ran)
    try:
        return Ending(outcome=Outcome.OK, result=to_plain(value, limit=limit, what="the result"), ran=ran)
    except InvalidInput as error:
        message = str(error)
    except BaseException as error:  # noqa: BLE001 - a model of someone else's that cannot write itself
        message = f"the result cannot be written as JSON: {_text(error)}"
    if inspect.iscoroutine(value):
        value.close()
        message = "the handler returned a coroutine that nobody awaited; declare it with `async def`"
    return failed("ResultNotStorable", message, ran=ran)


def raised(error: BaseException, *, ran: float = 0.0) -> Ending:
    """The end of a handler that raised; whatever it was, it is this attempt's failure and nobody else's."""
    if isinstance(error, Failed):
        told_of = {**trouble(error.kind, _text(error)), **error.detail}
        return Ending(outcome=Outcome.FAILED, error=told_of, ran=ran, after=error.after, final=error.final)
    return Ending(outcome=Outcome.FAILED, error=describe(error), ran=ran)


def failed(kind: str, message: str, *, ran: float = 0.0) -> Ending:
    """A failure that no exception stands for."""
    return Ending(outcome=Outcome.FAILED, error=trouble(kind, message), ran=ran)


def cancelled(reason: str, *, ran: float = 0.0) -> Ending:
    return Ending(outcome=Outcome.CANCELLED, error=trouble("Cancelled", reason), ran=ran)


def timed_out(message: str, *, ran: float = 0.0) -> Ending:
    return Ending(outcome=Outcome.TIMED_OUT, error=trouble("TimedOut", message, "TimeoutError"), ran=ran)


def at(ending: Ending, place: str) -> Ending:
    """The same ending, with the place where the handler was when it was stopped."""
    return msgspec.structs.replace(ending, error={**(ending.error or {}), "traceback": clip(place, TRACEBACK_LIMIT)})


def trouble(kind: str, message: str, *also: str) -> dict[str, Any]:
    """An error as it is stored, where there is no exception."""
    return {
        "type": kind,
        "message": clip(message, MESSAGE_LIMIT),
        "traceback": "",
        "lineage": [kind, *also],
    }


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as it is stored; `lineage` names its classes, bare and qualified, for `never_on`."""
    try:
        return {
            "type": scrub(_qualified(type(error))),
            "message": clip(_text(error), MESSAGE_LIMIT),
            "traceback": clip(where(error), TRACEBACK_LIMIT),
            "lineage": [scrub(name) for name in _lineage(error)[:LINEAGE_LIMIT]],
        }
    except Exception:  # noqa: BLE001 - even a class's name may be code that raises; an end there must be
        return trouble("Exception", "the handler raised what cannot be described")


def where(error: BaseException) -> str:
    """The traceback from the handler's own first line on."""
    own = error.__traceback__
    while own is not None and is_ours(own.tb_frame.f_code.co_filename):
        own = own.tb_next
    return told(lambda: "".join(traceback.format_exception(type(error), error, own or error.__traceback__)))


def is_ours(filename: str) -> bool:
    """Whether a line belongs to the worker itself, which is of no interest to who wrote the handler."""
    return filename.startswith(_HERE)


def clip(text: str, limit: int) -> str:
    """Text made fit for jsonb and for a limit in bytes; of a long one, the head and the tail remain."""
    text = scrub(text)
    data = text.encode()
    if len(data) <= limit:
        return text
    marker = _CUT.format(len(data) - limit)
    room = limit - len(_CUT.encode()) - 20  # the number in the marker may have that many digits
    head, tail = data[: room // 4], data[-(room - room // 4) :]
    return head.decode(errors="ignore") + marker + tail.decode(errors="ignore")


def _text(error: BaseException) -> str:
    return told(lambda: str(error))


def told(tell: Callable[[], str]) -> str:
    """What an object says of itself, which is code of someone else's and may raise."""
    try:
        return tell()
    except Exception as failure:  # noqa: BLE001 - anything at all
        return f"(it cannot be shown: {type(failure).__name__})"


def _lineage(error: BaseException) -> list[str]:
    """The classes that this error is; of a group, also those that every member is."""
    names = _names(type(error))
    if isinstance(error, BaseExceptionGroup):
        shared: Sequence[str] | None = None
        for leaf in _leaves(error):
            own = _lineage(leaf)
            shared = own if shared is None else [name for name in shared if name in own]
        names += [name for name in shared or () if name not in names]
    return names


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The members of a group, with groups inside of it opened; a loop, as nesting may be deep."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    return leaves


def _names(kind: type[BaseException]) -> list[str]:
    names: dict[str, None] = {}
    for cls in kind.__mro__:
        if cls is object:
            continue
        names[cls.__name__] = None
        names[_qualified(cls)] = None
        names[f"{cls.__module__}.{cls.__qualname__}"] = None
        if cls is Exception:
            break
    return list(names)


def _qualified(kind: type) -> str:
    """A class by its full name; Python's own and Bellringer's go by the name that people write."""
    module = str(kind.__module__)
    if module.partition(".")[0] in ("builtins", "bellringer"):
        return kind.__qualname__
    return f"{module}.{kind.__qualname__}"
