"""Retry policy: how many attempts a run gets, and the delay before each retry."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput

MAX_ATTEMPTS: Final = 1000
MAX_RETRY_DELAY: Final = timedelta(days=30)
_DEFAULT_BASE: Final = timedelta(seconds=5)
_DEFAULT_CAP: Final = timedelta(minutes=15)
_DEFAULT_DELAYS_JITTER: Final = 0.1
MAX_RETRY_ELAPSED: Final = timedelta(days=366)
_EXCEPTION_LISTS: Final = ("never_on", "only_on")
_RETRY_FIELDS: Final = frozenset({"attempts", "base", "cap", "delays", "jitter", "max_elapsed", *_EXCEPTION_LISTS})


@dataclass(frozen=True, slots=True)
class Retry:
    """How many attempts a run gets, and how long it waits between them.

    `Retry(5, base="10s", cap="15m")` waits a random time up to 10 s, 20 s, 40 s … (full jitter), never more than
    the cap. `Retry(delays=["1s", "1m", "1h"])` waits exactly these delays plus up to a tenth, so that runs that failed
    at the same time are not all retried at the same time.

    `jitter` is the random part of a wait, from 0 to 1. With `delays`, jitter makes each delay up to `jitter` times
    longer (default 0.1; 0 waits exactly the delay). With `base`, jitter makes each wait up to `jitter` times
    shorter (default 1, which is full jitter; 0 waits exactly 10 s, 20 s, 40 s …).

    `never_on` lists exceptions that end the run at once; `only_on` lists the only exceptions that are retried, and all
    others end the run at once. Subclasses are included in both; an exception that matches both lists is not retried.
    `only_on` is about failures of the handler: lost workers and timeouts are retried as ever.

    `max_elapsed` is the time in which all attempts begin: there is no retry later than this after the start of the
    first attempt.
    """

    attempts: int = 3
    base: timedelta = _DEFAULT_BASE
    cap: timedelta = _DEFAULT_CAP
    delays: tuple[timedelta, ...] = ()
    never_on: tuple[str, ...] = ()
    jitter: float = 1.0
    only_on: tuple[str, ...] = ()
    max_elapsed: timedelta | None = None

    def __init__(
        self,
        attempts: int | None = None,
        *,
        base: str | float | timedelta = _DEFAULT_BASE,
        cap: str | float | timedelta = _DEFAULT_CAP,
        delays: Sequence[str | float | timedelta] = (),
        never_on: Sequence[type[BaseException] | str] = (),
        jitter: float | None = None,
        only_on: Sequence[type[BaseException] | str] = (),
        max_elapsed: str | float | timedelta | None = None,
    ) -> None:
        waits = tuple(parse_duration(d, what="retry.delays") for d in delays)
        tries = attempts if attempts is not None else (len(waits) + 1 if waits else 3)
        if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= MAX_ATTEMPTS:
            raise InvalidInput(
                f"retry.attempts must be a whole number from 1 to {MAX_ATTEMPTS}, not {tries!r}",
                pointer="/retry/attempts",
                code="limit",
            )
        _refuse_contradiction(never_on, only_on)
        set_field = object.__setattr__  # frozen: the constructor is the only writer
        set_field(self, "attempts", tries)
        set_field(self, "base", _read_wait(base, "retry.base"))
        set_field(self, "cap", _read_wait(cap, "retry.cap"))
        set_field(self, "delays", tuple(_read_wait(w, "retry.delays") for w in waits))
        set_field(self, "never_on", _names_of(never_on))
        set_field(self, "only_on", _names_of(only_on))
        set_field(self, "max_elapsed", None if max_elapsed is None else _read_elapsed(max_elapsed))
        set_field(self, "jitter", self._usual_jitter() if jitter is None else _read_fraction(jitter, "retry.jitter"))

    def wait(self, failures: int, chance: float | None = None) -> timedelta:
        """Return the wait after this many failures. `chance` in [0, 1) replaces the random number of the jitter."""
        chance = random.random() if chance is None else chance  # noqa: S311 - not used for security
        if self.delays:
            return self.delays[min(failures, len(self.delays)) - 1] * (1 + self.jitter * chance)
        doubled = self.base.total_seconds() * 2.0 ** min(failures - 1, 500)
        ceiling = min(self.cap.total_seconds(), doubled)
        return timedelta(seconds=ceiling * (1 - self.jitter + self.jitter * chance))

    def _usual_jitter(self) -> float:
        return _DEFAULT_DELAYS_JITTER if self.delays else 1.0

    def to_document(self) -> dict[str, Any]:
        """Return the stored form: only values that differ from the defaults."""
        document: dict[str, Any] = {"attempts": self.attempts}
        if self.base != _DEFAULT_BASE:
            document["base"] = format_duration(self.base)
        if self.cap != _DEFAULT_CAP:
            document["cap"] = format_duration(self.cap)
        if self.delays:
            document["delays"] = [format_duration(d) for d in self.delays]
        if self.never_on:
            document["never_on"] = list(self.never_on)
        if self.only_on:
            document["only_on"] = list(self.only_on)
        if self.jitter != self._usual_jitter():
            document["jitter"] = self.jitter
        if self.max_elapsed is not None:
            document["max_elapsed"] = format_duration(self.max_elapsed)
        return document

    @classmethod
    def parse(cls, document: object) -> Retry:
        """Read the stored form or a user's input. A plain number is the number of attempts."""
        if isinstance(document, int) and not isinstance(document, bool):
            return cls(document)
        if not isinstance(document, dict):
            raise InvalidInput("retry must be a number of attempts or an object", pointer="/retry", code="type")
        if unknown := sorted(document.keys() - _RETRY_FIELDS):
            raise InvalidInput(
                f"retry has no field {unknown[0]!r}",
                hint=f"its fields are {', '.join(sorted(_RETRY_FIELDS))}",
                pointer=f"/retry/{unknown[0]}",
                code="unknown_field",
            )
        if not isinstance(document.get("delays", []), list | tuple):
            raise InvalidInput("retry.delays must be a list of durations", pointer="/retry/delays", code="type")
        for field in _EXCEPTION_LISTS:
            names = document.get(field, ())
            if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
                message = f"retry.{field} must be a list of exception names"
                raise InvalidInput(message, pointer=f"/retry/{field}", code="type")
        return cls(**document)


def _names_of(exceptions: Sequence[type[BaseException] | str]) -> tuple[str, ...]:
    return tuple(e if isinstance(e, str) else e.__name__ for e in exceptions)


def _refuse_contradiction(
    never_on: Sequence[type[BaseException] | str], only_on: Sequence[type[BaseException] | str]
) -> None:
    """Raises InvalidInput if an exception, or the base class of one, is to be retried and not to be retried."""
    refused = {_names_of([e])[0]: e for e in never_on}
    for wanted in only_on:
        lineage = [wanted] if isinstance(wanted, str) else [c.__name__ for c in wanted.__mro__]
        if name := next((name for name in lineage if name in refused), None):
            shown = _names_of([wanted])[0]
            raise InvalidInput(
                f"retry.only_on has {shown}, which retry.never_on excludes by {name}",
                hint="an exception of both lists is not retried; remove it from one of them",
                pointer="/retry/only_on",
                code="conflicting_fields",
            )


def _read_elapsed(value: str | float | timedelta) -> timedelta:
    elapsed = parse_duration(value, what="retry.max_elapsed")
    if not timedelta(0) < elapsed <= MAX_RETRY_ELAPSED:
        most = format_duration(MAX_RETRY_ELAPSED)
        message = f"retry.max_elapsed must be more than 0s and at most {most}, not {format_duration(elapsed)}"
        raise InvalidInput(message, pointer="/retry/max_elapsed", code="limit")
    return elapsed


def _read_fraction(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        message, pointer = f"{what} must be a number from 0 to 1, not {value!r}", "/" + what.replace(".", "/")
        raise InvalidInput(message, pointer=pointer, code="limit")
    return float(value)


def _read_wait(value: str | float | timedelta, what: str) -> timedelta:
    wait = parse_duration(value, what=what)
    if wait > MAX_RETRY_DELAY:
        raise InvalidInput(
            f"{what} is {format_duration(wait)}, more than {format_duration(MAX_RETRY_DELAY)}",
            pointer="/" + what.replace(".", "/"),
            code="limit",
        )
    return wait
