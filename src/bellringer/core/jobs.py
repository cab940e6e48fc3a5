"""A job is a durable definition: what to run, when, and by which policies."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from bellringer.core.policies import After, AfterCompletion, Catchup, Delivery, Limit, Misfire, Overlap, check_limit
from bellringer.core.redaction import check_paths
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Spec
from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.schedule import At, Delay, Schedule

DEFAULT_POOL: Final = "short"
LONG_POOL: Final = "long"
LONG_RUN_THRESHOLD: Final = timedelta(minutes=1)  # jobs with longer runs move to the long pool …
SHORT_RUN_THRESHOLD: Final = timedelta(seconds=30)  # … and back below this; the gap prevents flapping
HTTP_TASK: Final = "http"  # the built-in task that calls a URL; also the name of its pool
WORKFLOW_TASK: Final = "workflow"  # the built-in task of workflow runs
WAIT_TASK: Final = "wait"  # the built-in task of nodes that wait for a time
SIGNAL_TASK: Final = "signal"  # the built-in task of nodes that wait for a signal; it runs if the signal times out
GATHER_TASK: Final = "bellringer.gather"  # the built-in task of nodes that return the results of several nodes
NOTIFY_TASK: Final = "bellringer.notify"  # the built-in task that delivers a notification, in the pool of HTTP calls
BUILT_IN_TASKS: Final = frozenset({HTTP_TASK, WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK, GATHER_TASK, NOTIFY_TASK})
DEFAULT_PRIORITY: Final = 5
PRIORITIES: Final = range(10)
MAX_NAME_LENGTH: Final = 200
# A job with one of these names would be unreachable: under /api/v1/jobs/ they are routes, or clients resolve them away.
# The API's route table fails to load if one of its words is missing here.
RESERVED_JOB_NAMES: Final = frozenset({"execute", "bulk", "strips", ".", ".."})
MAX_SCHEDULES: Final = 10
MAX_TAGS: Final = 50
MAX_RUN_AT_DISTANCE: Final = timedelta(days=3653)  # ten years
JOB_LIMIT_KEY_PREFIX: Final = "job "  # prefix of the concurrency keys that implement `max_concurrency`
MAX_JITTER: Final = timedelta(hours=12)
MAX_LATE_AFTER: Final = timedelta(days=31)
MAX_EXPECTED_DURATION: Final = timedelta(days=30)
MAX_EXPIRES_IN: Final = timedelta(days=366)
MAX_PAUSE_AFTER_FAILURES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFields:
    """The fields of a job that have the same name everywhere: in definitions, in the columns of `jobs`, in requests and
    in responses. A field that is added here is stored, read, compared, and converted between these forms without
    further code; it also needs a column in `store/schema/` (in `jobs` and `job_terms`), a place in `terms_of`
    (`store/functions/jobs/revision_documents.sql`) for its history, and an entry in `wire/jobs.py`.
    """

    priority: int = DEFAULT_PRIORITY
    jitter: timedelta | None = None
    late_after: timedelta | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    enabled: bool = True
    owner: str = "api"
    tags: tuple[str, ...] = ()
    expected_duration: timedelta | None = None
    routed: bool = False  # no pool was given: the pool follows from the duration of the runs
    after_completion: AfterCompletion = AfterCompletion.KEEP
    expires_in: timedelta | None = None  # a run that has not started this long after its scheduled time is skipped
    pause_after_failures: int | None = None  # dead runs in a row after which the job is paused
    after: After | None = None  # the job also starts when a run of this other job ends


JOB_FIELDS: Final = tuple(f.name for f in fields(JobFields))


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition(JobFields):
    """A job as requested by a user; `validate` checks it."""

    name: str
    task: str
    schedules: tuple[Schedule, ...] = ()
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pool: str = DEFAULT_POOL
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry = field(default_factory=Retry)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    keep_result: bool = False  # the next run can read the result of this one
    misfire: Misfire = Misfire.FIRE_ONCE
    catchup: Catchup = field(default_factory=Catchup)
    overlap: Overlap = Overlap.SKIP
    max_concurrency: int | None = None
    limit: Limit | None = None
    region: str | None = None  # only nodes of this region fire the job; None: any node
    workflow: Mapping[str, Any] | None = None  # the graph document of a workflow
    graph: int | None = None  # the version number of the stored graph
    nodes: int = 0  # the number of nodes in the graph
    redact: tuple[str, ...] = ()  # paths of values of the payload that are not shown

    def validate(self, now: datetime, known: Collection[Schedule] = ()) -> Definition:
        """Return the definition with its name normalized; raise InvalidInput if anything is wrong.

        `known` are the schedules that the job already has: one-shot times among them may be in the past.
        """
        self._check_fields(now, known)
        if self.name in RESERVED_JOB_NAMES:
            raise InvalidInput(
                f"the name {self.name!r} is reserved",
                hint="choose another name",
                pointer="/name",
                code="name_reserved",
            )
        name = check_name(self.name)
        return self if name == self.name else replace(self, name=name)

    def _check_fields(self, now: datetime, known: Collection[Schedule]) -> None:
        if self.priority not in PRIORITIES:
            raise InvalidInput(
                f"priority must be 0 to 9, not {self.priority} (higher runs first)",
                pointer="/priority",
                code="limit",
            )
        _check_schedules(self.schedules, known, now)
        if self.max_concurrency is not None:
            check_limit(self.max_concurrency, "max_concurrency")
        if self.limit is not None and self.limit.key.startswith(JOB_LIMIT_KEY_PREFIX):
            message = f"concurrency_key must not begin with {JOB_LIMIT_KEY_PREFIX!r}"
            raise InvalidInput(message, pointer="/concurrency_key", code="name_reserved")
        if self.after is not None:
            _check_after(self.after, self.name)
        check_pause_after_failures(self.pause_after_failures)
        if self.redact:
            check_paths(self.redact)
        if self.keep_result and self.task in BUILT_IN_TASKS:
            message = f"keep_result is for tasks that read ctx.last_result, not for {self.task}"
            raise InvalidInput(message, pointer="/keep_result", code="conflicting_fields")
        self._check_times()
        if len(self.tags) > MAX_TAGS:
            raise InvalidInput(f"a job can have at most {MAX_TAGS} tags", pointer="/tags", code="limit")
        for tag in self.tags:
            check_name(tag, what="tag", pointer="/tags")
        check_name(self.pool, what="pool", pointer="/pool")
        if self.region is not None:
            check_name(self.region, what="region", pointer="/region")

    def _check_times(self) -> None:
        _check_duration(self.jitter, MAX_JITTER, "jitter")
        _check_duration(self.late_after, MAX_LATE_AFTER, "late_after")
        _check_duration(self.expected_duration, MAX_EXPECTED_DURATION, "expected_duration")
        _check_duration(self.expires_in, MAX_EXPIRES_IN, "expires_in")
        if self.expires_in and self.jitter and self.jitter >= self.expires_in:
            hint = "runs with a longer jitter would always expire"
            raise InvalidInput("expires_in must be longer than jitter", hint=hint, pointer="/expires_in", code="limit")
        if self.starts_at and self.ends_at and self.ends_at < self.starts_at:
            raise InvalidInput("ends_at is before starts_at", pointer="/ends_at", code="limit")

    @property
    def recurring(self) -> tuple[Schedule, ...]:
        """The schedules that fire through cohorts; one-shots and delays use timers."""
        return tuple(s for s in self.schedules if not isinstance(s, At | Delay))

    @property
    def once_at(self) -> datetime | None:
        return next((s.instant for s in self.schedules if isinstance(s, At)), None)

    @property
    def delay(self) -> timedelta | None:
        return next((s.interval for s in self.schedules if isinstance(s, Delay)), None)

    def has_ended(self, now: datetime) -> bool:
        """Whether the job has a schedule, and no occurrence of it is after `now`."""
        if self.ends_at is not None and self.ends_at <= now:
            return bool(self.schedules)
        if self.after is not None:
            return False
        coming = [now if isinstance(s, Delay) else s.next_after(now) for s in self.schedules]
        return bool(coming) and all(at is None or (self.ends_at is not None and at > self.ends_at) for at in coming)

    def spec(self) -> Spec:
        return Spec(
            args=list(self.args),
            kwargs=dict(self.kwargs),
            timeout=self.timeout.total_seconds() if self.timeout else None,
            heartbeat=self.heartbeat.total_seconds() if self.heartbeat else None,
            retry=self.retry.to_document(),
            delivery=self.delivery,
            graph=self.graph,
            keep_result=self.keep_result,
            redact=list(self.redact),
        )


def _check_after(after: After, name: str) -> None:
    check_name(after.job, what="after", pointer="/after/job")
    if after.job.lower() == name.lower():
        message, hint = "a job cannot start after itself", "name another job"
        raise InvalidInput(message, hint=hint, pointer="/after/job", code="conflicting_fields")


def _check_duration(length: timedelta | None, most: timedelta, what: str) -> None:
    if length is not None and not timedelta(0) < length <= most:
        message = f"{what} must be more than 0s and at most {format_duration(most)}, not {format_duration(length)}"
        raise InvalidInput(message, pointer=f"/{what}", code="limit")


def check_pause_after_failures(failures: int | None) -> None:
    """Raises InvalidInput unless the number of failures is possible."""
    if failures is None:
        return
    if isinstance(failures, bool) or not isinstance(failures, int) or not 1 <= failures <= MAX_PAUSE_AFTER_FAILURES:
        raise InvalidInput(
            f"pause_after_failures must be a whole number from 1 to {MAX_PAUSE_AFTER_FAILURES}, not {failures!r}",
            pointer="/pause_after_failures",
            code="limit",
        )


def _check_schedules(schedules: tuple[Schedule, ...], known: Collection[Schedule], now: datetime) -> None:
    if len(schedules) > MAX_SCHEDULES:
        raise InvalidInput(f"a job can have at most {MAX_SCHEDULES} schedules", pointer="/schedules", code="limit")
    waiting = [s for s in schedules if isinstance(s, At | Delay)]
    if waiting and len(schedules) > 1:
        raise InvalidInput(
            f"`{waiting[0].kind}` cannot be combined with another schedule",
            hint="create one job for each schedule",
            pointer="/schedules",
            code="schedule_invalid",
        )
    for schedule in schedules:
        if isinstance(schedule, At) and schedule not in known:
            check_instant(schedule.instant, now)


def check_instant(instant: datetime, now: datetime) -> None:
    """Raises InvalidInput if an instant has passed, or is more than ten years away."""
    if instant > now + MAX_RUN_AT_DISTANCE:
        raise InvalidInput(
            f"{instant:%Y-%m-%d} is more than ten years away",
            hint="use an earlier time, or check the year",
            pointer="/schedule/at",
            code="run_at_too_far",
        )
    if instant < now - timedelta(minutes=1):  # tolerates clock skew and network delay
        raise InvalidInput(
            f"{instant.isoformat()} is in the past",
            hint="to run something now, send it or trigger the job",
            pointer="/schedule/at",
            code="run_at_in_past",
        )


_INVISIBLE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def check_name(name: object, *, what: str = "name", pointer: str = "/name") -> str:
    """Return a name in Unicode form NFC. Rejects control, bidi, zero-width and surrounding space characters."""
    if not isinstance(name, str):
        raise InvalidInput(f"{what} must be text", pointer=pointer, code="type")
    if name.isascii() and name.isprintable() and name.strip() == name and 0 < len(name) <= MAX_NAME_LENGTH:
        return name  # the common case
    normal = unicodedata.normalize("NFC", name)
    if not normal.strip():
        raise InvalidInput(f"{what} is empty", pointer=pointer, code="name_charset")
    if len(normal) > MAX_NAME_LENGTH:
        raise InvalidInput(
            f"{what} has {len(normal)} characters, more than {MAX_NAME_LENGTH}",
            pointer=pointer,
            code="name_charset",
        )
    hidden = next(
        (sign for sign in normal if unicodedata.category(sign) in _INVISIBLE_CATEGORIES and sign != "\u200d"), None
    )
    if hidden is not None or normal != normal.strip():
        shown = f"the invisible character U+{ord(hidden):04X}" if hidden else "leading or trailing white space"
        raise InvalidInput(f"{what} contains {shown}", hint="remove it", pointer=pointer, code="name_charset")
    return normal


def check_run_arguments(task: str | None, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    """Check the arguments that a single run overrides.

    For HTTP jobs only the body can be overridden: a user who may run a job but not change it must not be able to send
    requests signed with its secret to a URL of their choice.
    """
    if task == HTTP_TASK and (args or set(kwargs or {}) - {"body"}):
        hint = "to call another URL, change the job"
        raise InvalidInput("a run of an HTTP job can override only the body", hint=hint, code="conflicting_fields")


def pool_for(task: str, expected: timedelta | None = None) -> str:
    """Return the default pool of a task, given the expected duration of its runs."""
    if task == HTTP_TASK:
        return HTTP_TASK
    return LONG_POOL if expected is not None and expected > LONG_RUN_THRESHOLD else DEFAULT_POOL


def shard_of(job_id: UUID, shards: int) -> int:
    """Return the shard of a job. The last bits of a version 7 UUID are random, so jobs spread evenly."""
    return (job_id.int & 0xFFFF) % shards
