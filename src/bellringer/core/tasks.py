"""Tasks: functions that runs execute. Declaration, registry, and special return values of handlers."""

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

from bellringer.core.call_signatures import Signature, read_signature
from bellringer.core.jobs import DEFAULT_PRIORITY, PRIORITIES, check_name, pool_for
from bellringer.core.policies import Delivery
from bellringer.core.redaction import check_paths
from bellringer.core.retry_policy import Retry
from bellringer.durations import parse_duration
from bellringer.errors import Conflict, InvalidInput

Isolation = Literal["auto", "process"]
Duration = str | int | float | timedelta

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True, slots=True, init=False)
class Snooze:
    """Returned by a handler to run again after a delay. Does not count as a failure."""

    delay: timedelta

    def __init__(self, delay: Duration) -> None:
        object.__setattr__(self, "delay", parse_duration(delay, what="snooze"))


@dataclass(frozen=True, slots=True)
class Discard:
    """Returned by a handler to end the run as cancelled, with a reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """Returned by the built-in task of a workflow run to start the nodes."""


class Failed(Exception):
    """Raised by a built-in task when an attempt fails.

    `kind` is the error type, `after` the minimum wait before the next attempt, `final` the reason why there is no next
    attempt. `detail` is stored with the error.
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
    """A registered function and the default options of its jobs."""

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
    expires_in: timedelta | None = None
    keep_result: bool = False
    isolation: Isolation = "auto"
    tags: tuple[str, ...] = ()
    capture_output: bool = True
    redact: tuple[str, ...] = ()
    wants_context: bool = False
    is_async: bool = False
    built_in: bool = False  # part of this package: never blocks and may use the worker's connections
    doc: str = ""

    @property
    def effective_pool(self) -> str:
        """The declared pool, or the default pool for the expected duration."""
        return self.pool or pool_for(self.name, self.expected_duration)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, as one object."""
        return self.signature.schema

    @property
    def defaults(self) -> dict[str, Any]:
        """The declared default options in the form of the API; options without a declaration are omitted."""
        chosen = {
            "pool": self.pool,
            "expected_duration": self.expected_duration.total_seconds() if self.expected_duration else None,
            "priority": self.priority if self.priority != DEFAULT_PRIORITY else None,
            "timeout": self.timeout.total_seconds() if self.timeout else None,
            "heartbeat": self.heartbeat.total_seconds() if self.heartbeat else None,
            "retry": self.retry.to_document() if self.retry != Retry() else None,
            "delivery": self.delivery.value if self.delivery is not Delivery.AT_LEAST_ONCE else None,
            "expires_in": self.expires_in.total_seconds() if self.expires_in else None,
            "keep_result": self.keep_result or None,
            "redact": list(self.redact) or None,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Check arguments against the signature. Returns them in stored form, as plain JSON."""
        return self.signature.bind(args, kwargs)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Check arguments as `bind` does. Returns them as JSON: {"args":[…],"kwargs":{…}}."""
        return self.signature.encode(args, kwargs)

    def convert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert stored arguments to the annotated types."""
        return self.signature.convert(args, kwargs)


class Registry:
    """The tasks of an app, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def add(self, task: Task) -> Task:
        known = self._tasks.get(task.name)
        if known is not None and known.function is not task.function:
            places = f"{_source_location(known.function)} and {_source_location(task.function)}"
            raise Conflict(
                f"there are two tasks named {task.name!r}: {places}",
                hint="give one of them another name=",
            )
        self._tasks[task.name] = task
        return task

    def get(self, name: str) -> Task | None:
        return self._tasks.get(name)

    def names(self) -> list[str]:
        return sorted(self._tasks)

    def closest(self, name: str) -> list[str]:
        """Return up to three known names similar to `name`, best match first."""
        last = name.rpartition(".")[2]
        same_end = [known for known in self.names() if known != name and known.rpartition(".")[2] == last]
        alike = difflib.get_close_matches(name, self.names(), 3)
        return list(dict.fromkeys([*same_end, *alike]))[:3]


def make_task(
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
    expires_in: Duration | None = None,
    keep_result: bool = False,
    isolation: Isolation = "auto",
    tags: Sequence[str] = (),
    capture_output: bool = True,
    redact: Sequence[str] = (),
) -> Task:
    """Create a task from a function. Raises InvalidInput at import time if an option is wrong."""
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
        delivery=Delivery(_read_choice(delivery, [str(d) for d in Delivery], "delivery")),
        expires_in=_read_duration(expires_in, "expires_in"),
        keep_result=_read_keep_result(keep_result, signature),
        isolation=cast("Isolation", _read_choice(isolation, get_args(Isolation), "isolation")),
        tags=_read_tags(tags),
        capture_output=_read_capture_output(capture_output),
        redact=check_paths(redact),
        wants_context=signature.wants_context,
        is_async=_is_async(function),
        doc=_read_doc(function),
    )


def _check_function(function: Any) -> None:
    if not callable(function) or inspect.isclass(function):
        raise _invalid_option("function", f"must be a function, not {_short_repr(function)}", code="type")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _invalid_option(
            "function", f"{_short_repr(function)} is a generator", hint="a task returns its result once", code="type"
        )


def _read_name(function: Callable[..., Any], name: str | None) -> str:
    if name is not None:
        return _check_task_name(name)
    own = getattr(function, "__qualname__", "")
    if not own or "<lambda>" in own:
        raise _invalid_option(
            "name", "is required for a function without a name", hint='pass name="…"', code="name_charset"
        )
    return _check_task_name(f"{_module(function)}.{own.replace('<locals>.', '')}")


def _module(function: Callable[..., Any]) -> str:
    """Return the function's module; for a script, the name under which a worker imports it."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else "__main__"


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - iscoroutinefunction needs the method itself
    )


def _read_doc(function: Callable[..., Any]) -> str:
    # A partial would return the docstring of its class.
    return "" if isinstance(function, partial) else inspect.cleandoc(getattr(function, "__doc__", "") or "")


def _read_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or priority not in PRIORITIES:
        raise _invalid_option(
            "priority",
            f"must be a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}, not {_short_repr(priority)}",
            hint="higher priorities run first",
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
        raise _invalid_option(option, "must be longer than 0", hint="omit it for no limit", code="limit")
    return length


def _read_heartbeat(value: Duration | None, signature: Signature) -> timedelta | None:
    if value is not None and not signature.wants_context:
        raise _invalid_option(
            "heartbeat",
            "requires a handler that takes a context",
            hint="declare `ctx: Context` as the first argument and call ctx.heartbeat()",
            code="heartbeat_without_context",
        )
    return _read_duration(value, "heartbeat")


def _read_keep_result(value: bool, signature: Signature) -> bool:
    if not isinstance(value, bool):
        raise _invalid_option("keep_result", f"must be True or False, not {_short_repr(value)}", code="type")
    if value and not signature.wants_context:
        raise _invalid_option(
            "keep_result",
            "requires a handler that takes a context",
            hint="declare `ctx: Context` as the first argument and read ctx.last_result",
            code="keep_result_without_context",
        )
    return value


def _read_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise _invalid_option("tags", f"must be a list of words, not {_short_repr(tags)}", code="type")
    return tuple(check_name(tag, what="tag", pointer="/tags") for tag in tags)


def _read_capture_output(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _invalid_option("capture_output", f"must be True or False, not {_short_repr(value)}", code="type")
    return value


def _check_task_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid_option(
            "name",
            f"cannot be {_short_repr(name)}",
            hint="start with a letter, then letters, digits, '_', '.' and '-', at most 200 characters",
            code="name_charset",
        )
    return name


def _read_choice(value: Any, allowed: Collection[str], option: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        close = difflib.get_close_matches(str(value), allowed, 1)
        hint = f"did you mean {close[0]!r}?" if close else ""
        raise _invalid_option(
            option, f"must be one of {', '.join(allowed)}, not {_short_repr(value)}", hint=hint, code="choice"
        )
    return value


def _invalid_option(option: str, problem: str, *, code: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"{option} {problem}", hint=hint, pointer=f"/{option}", code=code)


def _short_repr(value: Any) -> str:
    return repr(value)[:200]


def _source_location(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
