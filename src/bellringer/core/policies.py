"""Policies of a job: delivery, misfires, overlap, catch-up, concurrency limits, and what follows its completion."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from bellringer.durations import format_duration
from bellringer.errors import InvalidInput

MAX_CATCHUP_RUNS: Final = 100_000
MAX_CATCHUP_WINDOW: Final = timedelta(days=3653)
MAX_CATCHUP_RUNS_PER_MINUTE: Final = 60_000
MAX_LIMIT_KEY_LENGTH: Final = 200
MAX_CONCURRENCY: Final = 10_000


class Misfire(StrEnum):
    """What to do with occurrences that were missed because no scheduler ran at their time."""

    FIRE_ONCE = "fire_once"  # run only the latest one, late
    SKIP = "skip"
    FIRE_ALL = "fire_all"  # run all of them at low priority, within the bounds of Catchup


class Overlap(StrEnum):
    """What to do with an occurrence that becomes due while an earlier run of the job is unfinished."""

    SKIP = "skip"
    ALLOW = "allow"
    QUEUE = "queue"  # wait for the earlier run
    COLLAPSE = "collapse"  # one occurrence waits; further ones are merged into it
    REPLACE = "replace"  # cancel the earlier run


class AfterCompletion(StrEnum):
    """What to do with a job that is done: its schedules have no further occurrence, and its runs have ended."""

    KEEP = "keep"  # until the retention of jobs and runs ends
    DELETE = "delete"  # once it has no dead letter


class UpstreamOutcome(StrEnum):
    """Which ends of the upstream job's runs start a job. Cancelled and skipped runs start nothing."""

    SUCCESS = "success"
    FAILURE = "failure"  # the run is dead: all its attempts failed
    ANY = "any"


@dataclass(frozen=True, slots=True)
class After:
    """Starts a job when a run of another job ends: `after("extract", on="failure")`."""

    job: str
    on: UpstreamOutcome = UpstreamOutcome.SUCCESS

    @classmethod
    def parse(cls, document: object) -> After:
        """Read `{"job": "extract", "on": "success"}`, or the name alone."""
        if isinstance(document, str):
            document = {"job": document}
        if not isinstance(document, Mapping) or not isinstance(document.get("job"), str):
            hint = 'write {"job": "extract", "on": "success"}'
            raise InvalidInput("after must name a job", hint=hint, pointer="/after", code="type")
        if unknown := sorted(document.keys() - {"job", "on"}):
            message = f"after has no field {str(unknown[0])[:40]!r}"
            raise InvalidInput(message, hint="use job and on", pointer=f"/after/{unknown[0]}", code="unknown_field")
        try:
            return cls(document["job"], UpstreamOutcome(document.get("on", UpstreamOutcome.SUCCESS)))
        except ValueError:
            message = f"after cannot have on={str(document['on'])[:40]!r}"
            hint = f"use {', '.join(UpstreamOutcome)}"
            raise InvalidInput(message, hint=hint, pointer="/after/on", code="unknown_word") from None

    def to_document(self) -> dict[str, str]:
        return {"job": self.job, "on": self.on.value}

    def describe(self) -> str:
        """Return text such as "after extract has succeeded"."""
        ends = {"success": "has succeeded", "failure": "has failed", "any": "has ended"}
        return f"after {self.job} {ends[self.on]}"


class Missed(StrEnum):
    """What to do, when a job is resumed, with the occurrences missed during the pause."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class Delivery(StrEnum):
    """Whether an attempt that was lost in a crash is retried."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True)
class Catchup:
    """Bounds of `fire_all`: run the latest `most` missed occurrences, none older than `window`, and start at most
    `rate` of them per minute.
    """

    most: int = 100
    window: timedelta = timedelta(days=7)
    rate: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or not 1 <= self.most <= MAX_CATCHUP_RUNS:
            message = f"max_catchup must be a whole number from 1 to {MAX_CATCHUP_RUNS}, not {self.most!r}"
            raise InvalidInput(message, pointer="/max_catchup", code="limit")
        if not timedelta(0) < self.window <= MAX_CATCHUP_WINDOW:
            message = f"catchup_window must be up to {format_duration(MAX_CATCHUP_WINDOW)}"
            raise InvalidInput(message, pointer="/catchup_window", code="limit")
        if self.rate is not None and not 0 < self.rate <= MAX_CATCHUP_RUNS_PER_MINUTE:
            message = f"catchup_rate must be a number of runs per minute, up to {MAX_CATCHUP_RUNS_PER_MINUTE}"
            raise InvalidInput(message, pointer="/catchup_rate", code="limit")

    def to_document(self) -> dict[str, Any]:
        """Return the stored form. Durations are in seconds, because SQL functions read them."""
        return {"most": self.most, "window": self.window.total_seconds(), "rate": self.rate}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Catchup:
        """Read the stored form."""
        if not document:
            return cls()
        return cls(document["most"], timedelta(seconds=document["window"]), document["rate"])


@dataclass(frozen=True, slots=True)
class Limit:
    """A concurrency limit: at most `most` runs with this key run at the same time, across jobs."""

    key: str
    most: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not 0 < len(self.key) <= MAX_LIMIT_KEY_LENGTH or not self.key.isprintable():
            message = f"concurrency_key must have 1 to {MAX_LIMIT_KEY_LENGTH} visible characters"
            raise InvalidInput(message, pointer="/concurrency_key", code="limit")
        check_limit(self.most, "concurrency_limit")


def jitter_for(seed: str, jitter: timedelta | None) -> timedelta:
    """Return the start delay of a job's runs: constant for each job, evenly distributed over jobs up to `jitter`."""
    if jitter is None:
        return timedelta(0)
    chance = int.from_bytes(hashlib.sha256(f"jitter {seed}".encode()).digest()[:8]) / 2**64
    return timedelta(milliseconds=int(jitter / timedelta(milliseconds=1) * chance))


def check_limit(number: object, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_CONCURRENCY:
        message = f"{what} must be a whole number from 1 to {MAX_CONCURRENCY}, not {number!r}"
        raise InvalidInput(message, pointer=f"/{what}", code="limit")
    return number
