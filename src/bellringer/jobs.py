"""A job is a durable definition: what to run, when, and by which policies."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.policies import Catchup, Delivery, Limit, Misfire, Overlap, Retry, check_limit
from bellringer.runs import Spec
from bellringer.schedule import At, Delay, Schedule

DEFAULT_POOL: Final = "short"
LONG_POOL: Final = "long"
LONG: Final = timedelta(minutes=1)  # a slot that is taken for so long could have served hundreds of short runs
NO_LONGER_LONG: Final = timedelta(seconds=30)  # what comes close to a minute does not go to and fro
HTTP: Final = "http"  # the built-in task that calls a URL, and the pool that its runs are in
WORKFLOW: Final = "workflow"  # the built-in task of a run that has nodes
WAIT: Final = "wait"  # of a node that waits for a time
SIGNAL: Final = "signal"  # of a node that waits for a signal: it runs when none has come in time
BUILT_IN: Final = frozenset({HTTP, WORKFLOW, WAIT, SIGNAL})
DEFAULT_PRIORITY: Final = 5
PRIORITIES: Final = range(10)
LONGEST_NAME: Final = 200
RESERVED: Final = frozenset({"execute", "bulk"})  # verbs under /api/v1/jobs/, so no job can be found under these
MOST_SCHEDULES: Final = 10
MOST_TAGS: Final = 50
FARTHEST: Final = timedelta(days=3653)  # ten years
OWN_KEY: Final = "job "  # begins the key of a limit that is one job's own
LONGEST_JITTER: Final = timedelta(hours=12)
LONGEST_LATE: Final = timedelta(days=31)
LONGEST_EXPECTED: Final = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)  # no slots: `mould` fills them all at once, thousands of times
class Definition:
    """What a person or a program asks for; `checked` says whether it can be had."""

    name: str
    task: str
    schedules: tuple[Schedule, ...] = ()
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pool: str = DEFAULT_POOL
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry = field(default_factory=Retry)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    misfire: Misfire = Misfire.FIRE_ONCE
    catchup: Catchup = field(default_factory=Catchup)
    overlap: Overlap = Overlap.SKIP
    max_concurrency: int | None = None
    limit: Limit | None = None
    jitter: timedelta | None = None
    late_after: timedelta | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    enabled: bool = True
    owner: str = "api"
    tags: tuple[str, ...] = ()
    region: str | None = None  # whose nodes are to fire it; None: any
    expected_duration: timedelta | None = None
    routed: bool = False  # nobody named its pool: it goes by how long its runs take
    workflow: Mapping[str, Any] | None = None  # the document of its graph …
    graph: int | None = None  # … or its version, once it is stored …
    nodes: int = 0  # … and how many nodes it has

    def checked(self, now: datetime, known: Collection[Schedule] = ()) -> Definition:
        """The same definition with its name in normal form, or the error that says what to change.

        `known` are the schedules that the job has already: a one-shot among them may lie in the past.
        """
        self._check_terms(now, known)
        return self.named()

    def named(self) -> Definition:
        """The same with its name in normal form: all that is left to check where another that is alike was checked."""
        if self.name in RESERVED:
            raise InvalidInput(
                f"{self.name!r} is a word of the API", hint="choose another name", pointer="/name", code="name_reserved"
            )
        name = check_name(self.name)
        return self if name == self.name else replace(self, name=name)

    def _check_terms(self, now: datetime, known: Collection[Schedule]) -> None:
        if self.priority not in PRIORITIES:
            raise InvalidInput(
                f"priority {self.priority} is out of range 0–9 (higher first)",
                pointer="/priority",
                code="limit",
            )
        _check_schedules(self.schedules, known, now)
        if self.max_concurrency is not None:
            check_limit(self.max_concurrency, "max_concurrency")
        if self.limit is not None and self.limit.key.startswith(OWN_KEY):
            message = f"concurrency_key must not begin with {OWN_KEY!r}"
            raise InvalidInput(message, pointer="/concurrency_key", code="name_reserved")
        _check_length(self.jitter, LONGEST_JITTER, "jitter")
        _check_length(self.late_after, LONGEST_LATE, "late_after")
        _check_length(self.expected_duration, LONGEST_EXPECTED, "expected_duration")
        if self.starts_at and self.ends_at and self.ends_at < self.starts_at:
            raise InvalidInput("ends_at is before starts_at", pointer="/ends_at", code="limit")
        if len(self.tags) > MOST_TAGS:
            raise InvalidInput(f"a job takes at most {MOST_TAGS} tags", pointer="/tags", code="limit")
        for tag in self.tags:
            check_name(tag, what="tag", pointer="/tags")
        check_name(self.pool, what="pool", pointer="/pool")
        if self.region is not None:
            check_name(self.region, what="region", pointer="/region")

    def mould(self) -> Callable[[str, Sequence[Any], Mapping[str, Any]], Definition]:
        """Makes the same for other names and arguments. In a bulk, `replace` would be a good part of the work. It may
        be kept for long, so it keeps nothing of this one's own."""
        shared = {name: value for name, value in vars(self).items() if name not in ("name", "args", "kwargs")}
        shared["likeness"] = object()  # no field: what is made by `replace` has it no more

        def cast(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Definition:
            made = object.__new__(Definition)
            fields = vars(made)  # filled past its being frozen, while it is made
            fields.update(shared)
            fields["name"], fields["args"], fields["kwargs"] = name, args, kwargs
            return made

        return cast

    @property
    def alike(self) -> Hashable:
        """The same for definitions that differ only in name and arguments, as far as that can be told at a glance."""
        return vars(self).get("likeness") or (
            self.task, self.pool, id(self.schedules), self.priority, self.timeout, self.heartbeat, id(self.retry),
            self.delivery, self.misfire, id(self.catchup), self.overlap, self.max_concurrency, self.jitter,
            self.late_after, self.starts_at, self.ends_at, self.enabled, self.owner, id(self.tags), id(self.limit),
            self.expected_duration, self.routed, self.graph,
        )  # fmt: skip

    @property
    def recurring(self) -> tuple[Schedule, ...]:
        """The schedules that have a clock hand; one-shots and delays wait in timers."""
        return tuple(s for s in self.schedules if not isinstance(s, At | Delay))

    @property
    def once_at(self) -> datetime | None:
        return next((s.instant for s in self.schedules if isinstance(s, At)), None)

    @property
    def delay(self) -> timedelta | None:
        return next((s.interval for s in self.schedules if isinstance(s, Delay)), None)

    def spec(self) -> Spec:
        return Spec(
            args=list(self.args),
            kwargs=dict(self.kwargs),
            timeout=self.timeout.total_seconds() if self.timeout else None,
            heartbeat=self.heartbeat.total_seconds() if self.heartbeat else None,
            retry=self.retry.to_document(),
            delivery=self.delivery,
            graph=self.graph,
        )


def _check_length(length: timedelta | None, most: timedelta, what: str) -> None:
    if length is not None and not timedelta(0) < length <= most:
        hint = f"give more than 0s and at most {format_duration(most)}"
        raise InvalidInput(f"{what} is {format_duration(length)}", hint=hint, pointer=f"/{what}", code="limit")


def _check_schedules(schedules: tuple[Schedule, ...], known: Collection[Schedule], now: datetime) -> None:
    if len(schedules) > MOST_SCHEDULES:
        raise InvalidInput(f"a job takes at most {MOST_SCHEDULES} schedules", pointer="/schedules", code="limit")
    waiting = [s for s in schedules if isinstance(s, At | Delay)]
    if waiting and len(schedules) > 1:
        raise InvalidInput(
            f"`{waiting[0].kind}` cannot be combined with another schedule",
            hint="make one job for each",
            pointer="/schedules",
            code="schedule_invalid",
        )
    for schedule in schedules:
        if isinstance(schedule, At) and schedule not in known:
            _check_instant(schedule.instant, now)


def _check_instant(instant: datetime, now: datetime) -> None:
    if instant > now + FARTHEST:
        raise InvalidInput(
            f"{instant:%Y-%m-%d} is more than ten years away", pointer="/schedule/at", code="run_at_too_far"
        )
    if instant < now - timedelta(minutes=1):  # a minute for clocks that differ and requests that travel
        raise InvalidInput(
            f"{instant.isoformat()} is in the past",
            hint="to run something now, send it or trigger its job",
            pointer="/schedule/at",
            code="run_at_in_past",
        )


_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def check_name(name: object, *, what: str = "name", pointer: str = "/name") -> str:
    """A name in NFC without edges of white space; control, bidi and zero-width signs are refused."""
    if not isinstance(name, str):
        raise InvalidInput(f"{what} must be text", pointer=pointer, code="type")
    if name.isascii() and name.isprintable() and name.strip() == name and 0 < len(name) <= LONGEST_NAME:
        return name  # nothing in it could be wrong; most names are such
    normal = unicodedata.normalize("NFC", name)
    if not normal.strip():
        raise InvalidInput(f"{what} is empty", pointer=pointer, code="name_charset")
    if len(normal) > LONGEST_NAME:
        raise InvalidInput(
            f"{what} has {len(normal)} characters, more than {LONGEST_NAME}",
            pointer=pointer,
            code="name_charset",
        )
    hidden = next((sign for sign in normal if unicodedata.category(sign) in _HIDDEN and sign != "\u200d"), None)
    if hidden is not None or normal != normal.strip():
        shown = f"the invisible character U+{ord(hidden):04X}" if hidden else "white space at an edge"
        raise InvalidInput(f"{what} contains {shown}", hint="remove it", pointer=pointer, code="name_charset")
    return normal


def check_others(task: str | None, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    """Whether one run may have these other arguments. Of a call only the body: whoever may run a job, but not change
    it, must not have what its author's secret signs sent to an address of their own.
    """
    if task == HTTP and (args or set(kwargs or {}) - {"body"}):
        hint = "change the job to call something else"
        raise InvalidInput("only the body of a call can be another", hint=hint, code="conflicting_fields")


def pool_for(task: str, expected: timedelta | None = None) -> str:
    """The pool of what names none: that of the built-in task, or the one for runs of this length."""
    if task == HTTP:
        return HTTP
    return LONG_POOL if expected is not None and expected > LONG else DEFAULT_POOL


def shard_of(job_id: UUID, shards: int) -> int:
    """Everything about a job lives in one shard: the tail of a version 7 id is random, so it spreads evenly."""
    return (job_id.int & 0xFFFF) % shards
