"""A job's own choices: how often to try, what to do with the missed and the overlapping."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput

MOST_ATTEMPTS: Final = 1000
LONGEST_DELAY: Final = timedelta(days=30)
MOST_CATCHUP: Final = 100_000
LONGEST_WINDOW: Final = timedelta(days=3653)
FASTEST_RATE: Final = 60_000
LONGEST_KEY: Final = 200
MOST_AT_ONCE: Final = 10_000


class Misfire(StrEnum):
    """What becomes of occurrences that nobody ticked in time."""

    FIRE_ONCE = "fire_once"  # the latest of them runs, late
    SKIP = "skip"
    FIRE_ALL = "fire_all"  # all of them run, behind live work, within the bounds of Catchup


class Overlap(StrEnum):
    """What becomes of an occurrence whose predecessor is unfinished when its time comes."""

    SKIP = "skip"
    ALLOW = "allow"
    QUEUE = "queue"  # it waits for its turn
    COLLAPSE = "collapse"  # one waits, and stands for all that come meanwhile
    REPLACE = "replace"  # the predecessor is cancelled


class Missed(StrEnum):
    """What becomes, when a job is resumed, of what it missed while it was paused."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class Delivery(StrEnum):
    """Whether an attempt that was lost in a crash may be tried again."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True)
class Catchup:
    """How much of what it missed a job with `fire_all` runs: the latest `most`, none older than `window`.

    `rate` bounds how many a minute are started.
    """

    most: int = 100
    window: timedelta = timedelta(days=7)
    rate: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or not 1 <= self.most <= MOST_CATCHUP:
            message = f"max_catchup must be a whole number from 1 to {MOST_CATCHUP}, not {self.most!r}"
            raise InvalidInput(message, pointer="/max_catchup", code="limit")
        if not timedelta(0) < self.window <= LONGEST_WINDOW:
            message = f"catchup_window must be up to {format_duration(LONGEST_WINDOW)}"
            raise InvalidInput(message, pointer="/catchup_window", code="limit")
        if self.rate is not None and not 0 < self.rate <= FASTEST_RATE:
            message = f"catchup_rate must be a number of runs a minute, up to {FASTEST_RATE}"
            raise InvalidInput(message, pointer="/catchup_rate", code="limit")

    def to_document(self) -> dict[str, Any]:
        """What is stored; lengths in seconds, because the database reads them."""
        return {"most": self.most, "window": self.window.total_seconds(), "rate": self.rate}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Catchup:
        """Read what `to_document` wrote."""
        if not document:
            return cls()
        return cls(document["most"], timedelta(seconds=document["window"]), document["rate"])


@dataclass(frozen=True, slots=True)
class Limit:
    """A key that runs of several jobs may share; at most so many of them are under way at once."""

    key: str
    most: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not 0 < len(self.key) <= LONGEST_KEY or not self.key.isprintable():
            message = f"concurrency_key must have 1 to {LONGEST_KEY} visible characters"
            raise InvalidInput(message, pointer="/concurrency_key", code="limit")
        check_limit(self.most, "concurrency_limit")


def jitter_by(seed: str, jitter: timedelta | None) -> timedelta:
    """By how much a job's runs start after their time: the same for the job always, spread evenly over jobs."""
    if jitter is None:
        return timedelta(0)
    chance = int.from_bytes(hashlib.sha256(f"jitter {seed}".encode()).digest()[:8]) / 2**64
    return timedelta(milliseconds=int(jitter / timedelta(milliseconds=1) * chance))


def check_limit(number: object, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_AT_ONCE:
        message = f"{what} must be a whole number from 1 to {MOST_AT_ONCE}, not {number!r}"
        raise InvalidInput(message, pointer=f"/{what}", code="limit")
    return number


_BASE: Final = timedelta(seconds=5)
_CAP: Final = timedelta(minutes=15)
_RETRY: Final = frozenset({"attempts", "base", "cap", "delays", "never_on"})


@dataclass(frozen=True, slots=True)
class Retry:
    """How many attempts a run gets, and how long it waits between them.

    `Retry(5, base="10s", cap="15m")` waits a random time up to 10 s, 20 s, 40 s … (full jitter), never beyond
    the cap; `Retry(delays=["1s", "1m", "1h"])` waits just those. `never_on` names exceptions that end the run
    at once; a class stands for its subclasses too.
    """

    attempts: int = 3
    base: timedelta = _BASE
    cap: timedelta = _CAP
    delays: tuple[timedelta, ...] = ()
    never_on: tuple[str, ...] = ()

    def __init__(
        self,
        attempts: int | None = None,
        *,
        base: str | float | timedelta = _BASE,
        cap: str | float | timedelta = _CAP,
        delays: Sequence[str | float | timedelta] = (),
        never_on: Sequence[type[BaseException] | str] = (),
    ) -> None:
        waits = tuple(parse_duration(d, what="retry.delays") for d in delays)
        tries = attempts if attempts is not None else (len(waits) + 1 if waits else 3)
        if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= MOST_ATTEMPTS:
            raise InvalidInput(
                f"retry.attempts must be a whole number from 1 to {MOST_ATTEMPTS}, not {tries!r}",
                pointer="/retry/attempts",
                code="limit",
            )
        names = tuple(e if isinstance(e, str) else e.__name__ for e in never_on)
        set_field = object.__setattr__  # frozen: the constructor is the only writer
        set_field(self, "attempts", tries)
        set_field(self, "base", _bounded(base, "retry.base"))
        set_field(self, "cap", _bounded(cap, "retry.cap"))
        set_field(self, "delays", tuple(_bounded(w, "retry.delays") for w in waits))
        set_field(self, "never_on", names)

    def wait(self, failures: int, chance: float | None = None) -> timedelta:
        """How long to wait after this many failures; `chance` in [0, 1) fixes the jitter."""
        if self.delays:
            return self.delays[min(failures, len(self.delays)) - 1]
        doubled = self.base.total_seconds() * 2.0 ** min(failures - 1, 500)
        ceiling = min(self.cap.total_seconds(), doubled)
        return timedelta(seconds=ceiling * (random.random() if chance is None else chance))  # noqa: S311 - no secret

    def to_document(self) -> dict[str, Any]:
        """What is stored: only what differs from the default."""
        document: dict[str, Any] = {"attempts": self.attempts}
        if self.base != _BASE:
            document["base"] = format_duration(self.base)
        if self.cap != _CAP:
            document["cap"] = format_duration(self.cap)
        if self.delays:
            document["delays"] = [format_duration(d) for d in self.delays]
        if self.never_on:
            document["never_on"] = list(self.never_on)
        return document

    @classmethod
    def parse(cls, document: object) -> Retry:
        """Read what `to_document` wrote, or what a person sent; a bare number is the count of attempts."""
        if isinstance(document, int) and not isinstance(document, bool):
            return cls(document)
        if not isinstance(document, dict):
            raise InvalidInput("retry must be a number of attempts or an object", pointer="/retry", code="type")
        if unknown := sorted(document.keys() - _RETRY):
            raise InvalidInput(
                f"retry has no field {unknown[0]!r}",
                hint=f"its fields are {', '.join(sorted(_RETRY))}",
                pointer=f"/retry/{unknown[0]}",
                code="unknown_field",
            )
        if not isinstance(document.get("delays", []), list | tuple):
            raise InvalidInput("retry.delays must be a list of durations", pointer="/retry/delays", code="type")
        names = document.get("never_on", ())
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise InvalidInput(
                "retry.never_on must be a list of exception names", pointer="/retry/never_on", code="type"
            )
        return cls(**document)


def _bounded(value: str | float | timedelta, what: str) -> timedelta:
    wait = parse_duration(value, what=what)
    if wait > LONGEST_DELAY:
        raise InvalidInput(
            f"{what} is {format_duration(wait)}, more than {format_duration(LONGEST_DELAY)}",
            pointer="/" + what.replace(".", "/"),
            code="limit",
        )
    return wait
