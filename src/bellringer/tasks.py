"""A task is a function that runs may name: how it is declared, what it takes, and what it may answer."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import PurePath
from typing import Any, Final, Literal, cast, get_args

from bellringer.durations import parse_duration
from bellringer.errors import Conflict, InvalidInput
from bellringer.jobs import DEFAULT_PRIORITY, PRIORITIES, check_name, pool_for
from bellringer.policies import Delivery, Retry
from bellringer.signatures import Signature, read_signature

Isolation = Literal["auto", "process"]
Duration = str | int | float | timedelta

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True, slots=True, init=False)
class Snooze:
    """Returned by a handler: not now, try again after this long. It does not count as a failure."""

    delay: timedelta

    def __init__(self, delay: Duration) -> None:
        object.__setattr__(self, "delay", parse_duration(delay, what="snooze"))


@dataclass(frozen=True, slots=True)
class Discard:
    """Returned by a handler: this run is no longer wanted. It ends as cancelled, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """Returned by the built-in task of a workflow run: its nodes are to begin."""


class Failed(Exception):
    """Raised by a built-in task: this attempt failed, as `kind`; the next one comes no sooner than `after`.

    `final` says why there is no next one, and `detail` is kept with the error.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        after: timedelta | None = None,
        final: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.after = after
        self.final = final
        self.detail = dict(detail or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A registered function, and how its runs are treated unless a job says otherwise."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    pool: str | None = None
    expected_duration: timedelta | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry = field(default_factory=Retry)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    isolation: Isolation = "auto"
    tags: tuple[str, ...] = ()
    wants_context: bool = False
    is_async: bool = False
    doc: str = ""

    @property
    def goes_to(self) -> str:
        """Its pool: the one that was named, or the one for runs of its length."""
        return self.pool or pool_for(self.name, self.expected_duration)

    @property
    def schema(self) -> dict[str, Any]:
        """A JSON Schema of the arguments, as one object."""
        return self.signature.schema

    @property
    def defaults(self) -> dict[str, Any]:
        """How its runs are treated where nobody says otherwise, as the API writes it; only what was chosen here."""
        chosen = {
            "pool": self.pool,
            "expected_duration": self.expected_duration.total_seconds() if self.expected_duration else None,
            "priority": self.priority if self.priority != DEFAULT_PRIORITY else None,
            "timeout": self.timeout.total_seconds() if self.timeout else None,
            "heartbeat": self.heartbeat.total_seconds() if self.heartbeat else None,
            "retry": self.retry.to_document() if self.retry != Retry() else None,
            "delivery": self.delivery.value if self.delivery is not Delivery.AT_LEAST_ONCE else None,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Check arguments against the signature and give them back as they are stored: as plain JSON."""
        return self.signature.bind(args, kwargs)

    def convert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Turn stored arguments into the annotated types."""
        return self.signature.convert(args, kwargs)


class Registry:
    """The tasks that an app knows, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def add(self, task: Task) -> Task:
        known = self._tasks.get(task.name)
        if known is not None and known.function is not task.function:
            raise Conflict(
                f"there are two tasks named {task.name!r}: in {_place(known.function)} and in {_place(task.function)}",
                hint="give one of them another name=",
            )
        self._tasks[task.name] = task
        return task

    def get(self, name: str) -> Task | None:
        return self._tasks.get(name)

    def names(self) -> list[str]:
        return sorted(self._tasks)

    def closest(self, name: str) -> list[str]:
        """Names that someone who wrote `name` may have meant, the likeliest first."""
        last = name.rpartition(".")[2]
        same_end = [known for known in self.names() if known != name and known.rpartition(".")[2] == last]
        alike = difflib.get_close_matches(name, self.names(), 3)
        return list(dict.fromkeys([*same_end, *alike]))[:3]


def task_from(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    pool: str | None = None,
    expected_duration: Duration | None = None,
    priority: int = DEFAULT_PRIORITY,
    timeout: Duration | None = None,
    heartbeat: Duration | None = None,
    retry: Retry | int | None = None,
    delivery: Delivery | str = Delivery.AT_LEAST_ONCE,
    isolation: Isolation = "auto",
    tags: Sequence[str] = (),
) -> Task:
    """Make a task of a function; whatever is wrong with it is said here, when its module is imported."""
    _check_function(function)
    called = _read_name(function, name)
    signature = read_signature(function, called)
    return Task(
        name=called,
        function=function,
        signature=signature,
        pool=None if pool is None else check_name(pool, what="pool", pointer="/pool"),
        expected_duration=_read_duration(expected_duration, "expected_duration"),
        priority=_read_priority(priority),
        timeout=_read_duration(timeout, "timeout"),
        heartbeat=_read_heartbeat(heartbeat, signature),
        retry=retry if isinstance(retry, Retry) else Retry(retry),
        delivery=Delivery(_one_of(delivery, [str(d) for d in Delivery], "delivery")),
        isolation=cast("Isolation", _one_of(isolation, get_args(Isolation), "isolation")),
        tags=_read_tags(tags),
        wants_context=signature.wants_context,
        is_async=_is_async(function),
        doc=_read_doc(function),
    )


def _check_function(function: Any) -> None:
    if not callable(function) or inspect.isclass(function):
        raise _refusal("function", f"must be a function, not {_shown(function)}", code="type")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _refusal("function", f"{_shown(function)} yields", hint="a task returns its result once", code="type")


def _read_name(function: Callable[..., Any], name: str | None) -> str:
    if name is not None:
        return _check_task_name(name)
    own = getattr(function, "__qualname__", "")
    if not own or "<lambda>" in own:
        raise _refusal("name", "is needed for what has none of its own", hint='pass name="…"', code="name_charset")
    return _check_task_name(f"{_module(function)}.{own.replace('<locals>.', '')}")


def _module(function: Callable[..., Any]) -> str:
    """A module run as a script is known by the name that a worker will import it by."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else "__main__"


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asked of an object that has one
    )


def _read_doc(function: Callable[..., Any]) -> str:
    # An instance, or a partial, would show the documentation of its class.
    return "" if isinstance(function, partial) else inspect.cleandoc(getattr(function, "__doc__", "") or "")


def _read_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or priority not in PRIORITIES:
        raise _refusal(
            "priority",
            f"must be a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}, not {_shown(priority)}",
            hint="higher goes first",
            code="limit",
        )
    return priority


def _read_duration(value: Duration | None, option: str) -> timedelta | None:
    if value is None:
        return None
    try:
        length = parse_duration(value, what=option)
    except InvalidInput as error:
        raise InvalidInput(error.message, hint=error.hint, pointer=f"/{option}", code=error.code) from None
    if not length:
        raise _refusal(option, "must be longer than 0", hint="leave it out for none", code="limit")
    return length


def _read_heartbeat(value: Duration | None, signature: Signature) -> timedelta | None:
    if value is not None and not signature.wants_context:
        raise _refusal(
            "heartbeat",
            "needs a handler that can give a sign of life",
            hint="take `ctx: Context` as the first argument and call ctx.heartbeat()",
            code="heartbeat_without_context",
        )
    return _read_duration(value, "heartbeat")


def _read_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise _refusal("tags", f"must be a list of words, not {_shown(tags)}", code="type")
    return tuple(check_name(tag, what="tag", pointer="/tags") for tag in tags)


def _check_task_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refusal(
            "name",
            f"cannot be {_shown(name)}",
            hint="start with a letter, then letters, digits, '_', '.' and '-', 200 signs at most",
            code="name_charset",
        )
    return name


def _one_of(value: Any, allowed: Collection[str], option: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        close = difflib.get_close_matches(str(value), allowed, 1)
        hint = f"did you mean {close[0]!r}?" if close else ""
        raise _refusal(option, f"must be one of {', '.join(allowed)}, not {_shown(value)}", hint=hint, code="choice")
    return value


def _refusal(option: str, problem: str, *, code: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"{option} {problem}", hint=hint, pointer=f"/{option}", code=code)


def _shown(value: Any) -> str:
    return repr(value)[:200]


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
