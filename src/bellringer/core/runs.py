"""Runs: their keys and public ids, their states, and the decision what happens after an attempt."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import MAX_RETRY_DELAY, Retry
from bellringer.core.run_traces import RunTrace
from bellringer.durations import format_duration
from bellringer.errors import NotFound

SCHEDULED_SLOT: Final = 0
BACKFILL_SLOT_BASE: Final = 1 << 40  # plus the number of a backfill: the slot of its runs
FOLLOWER_SLOT_BASE: Final = 1 << 61  # plus a hash of the upstream run: the slot of a run that follows it
POISON_LOST_ATTEMPTS: Final = 3  # a run that crashed this many worker processes is assumed to crash every one


class State(StrEnum):
    """The state of a run."""

    QUEUED = "queued"
    BLOCKED = "blocked"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Outcome(StrEnum):
    """How one attempt ended."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"


class Cause(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    SEND = "send"
    MANUAL = "manual"
    BACKFILL = "backfill"
    CATCHUP = "catchup"
    REPLAY = "replay"
    WORKFLOW = "workflow"
    WEBHOOK = "webhook"  # delivers an event to a webhook endpoint
    AFTER = "after"  # a run of the job that this job starts after has ended


class RunEvent(StrEnum):
    """A transition of a run's state."""

    CLAIMED = "claimed"
    GIVEN_BACK = "given back"
    OPENED = "opened"  # a workflow run has started its nodes
    BLOCKED = "blocked"
    FREED = "freed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    EXPIRED = "expired"
    REDRIVEN = "redriven"


TRANSITIONS: Final[Mapping[tuple[State, RunEvent], State]] = {
    (State.QUEUED, RunEvent.CLAIMED): State.RUNNING,
    (State.QUEUED, RunEvent.BLOCKED): State.BLOCKED,
    (State.QUEUED, RunEvent.CANCELLED): State.CANCELLED,
    (State.QUEUED, RunEvent.EXPIRED): State.SKIPPED,
    (State.BLOCKED, RunEvent.FREED): State.QUEUED,
    (State.BLOCKED, RunEvent.CANCELLED): State.CANCELLED,
    (State.BLOCKED, RunEvent.SKIPPED): State.SKIPPED,
    (State.BLOCKED, RunEvent.EXPIRED): State.SKIPPED,
    (State.BLOCKED, RunEvent.EXHAUSTED): State.DEAD,  # a retry that expires while it is blocked
    (State.RUNNING, RunEvent.SUCCEEDED): State.SUCCEEDED,
    (State.RUNNING, RunEvent.FAILED): State.RETRYING,
    (State.RUNNING, RunEvent.EXHAUSTED): State.DEAD,
    (State.RUNNING, RunEvent.CANCELLED): State.CANCELLED,
    (State.RUNNING, RunEvent.GIVEN_BACK): State.QUEUED,
    (State.RUNNING, RunEvent.OPENED): State.RUNNING,
    (State.RUNNING, RunEvent.EXPIRED): State.SKIPPED,  # claimed, but its handler was not called in time
    (State.RETRYING, RunEvent.CLAIMED): State.RUNNING,
    (State.RETRYING, RunEvent.BLOCKED): State.BLOCKED,
    (State.RETRYING, RunEvent.CANCELLED): State.CANCELLED,
    (State.RETRYING, RunEvent.EXHAUSTED): State.DEAD,  # its deadline passed before the next attempt
    (State.DEAD, RunEvent.REDRIVEN): State.RETRYING,
}
FINAL_STATES: Final = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED, State.SKIPPED})


# Types of which a worker creates one for every run are msgspec Structs: a frozen dataclass takes several times as long
# to create and to hash.


class RunKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """The primary key of a run. Slot 0 is the scheduled occurrence, so the database rejects a duplicate."""

    job_id: UUID
    scheduled_for: datetime
    slot: int = SCHEDULED_SLOT

    @property
    def backfill(self) -> int | None:
        """The number of the backfill that created the run."""
        return self.slot - BACKFILL_SLOT_BASE if BACKFILL_SLOT_BASE < self.slot < FOLLOWER_SLOT_BASE else None

    @property
    def id(self) -> str:
        """The public id, a reversible encoding of this key. It is also the run's idempotency key."""
        return encode_run_id(self)


_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]  # two digits per step are faster
_VALUES: Final = {digits: value for table in (_ALPHABET, _PAIRS) for value, digits in enumerate(table)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_BIAS: Final = 1 << 62  # keeps instants before 1970 positive
_SCHEDULED_ID_DIGITS, _OTHER_ID_DIGITS = 33, 44  # base-62 digits of a key with slot 0, and with any other slot
_RUN_ID: Final = re.compile(rf"run_(?:[0-9A-Za-z]{{{_SCHEDULED_ID_DIGITS}}}|[0-9A-Za-z]{{{_OTHER_ID_DIGITS}}})")


@lru_cache(maxsize=8192)  # the same run is often shown several times
def encode_run_id(key: RunKey) -> str:
    """Return the public id of a run. The id contains the whole key, so no lookup table is needed."""
    micros = (key.scheduled_for - _EPOCH) // _MICROSECOND + _BIAS
    number, width = (key.job_id.int << 64) | micros, _SCHEDULED_ID_DIGITS
    if key.slot != SCHEDULED_SLOT:
        number, width = (number << 64) | key.slot, _OTHER_ID_DIGITS
    pairs = []
    for _ in range(0, width, 2):
        number, rest = divmod(number, 62 * 62)
        pairs.append(_PAIRS[rest])
    return "run_" + "".join(reversed(pairs))[-width:]


@lru_cache(maxsize=8192)  # clients poll for the same run
def decode_run_id(run_id: str) -> RunKey:
    """Return the key of a public id. Raises NotFound for a malformed id, as for an unknown one."""
    if not _RUN_ID.fullmatch(run_id):
        raise NotFound("there is no such run", hint="ids look like run_… ; list them with `bellringer runs list`")
    digits, number = run_id[4:], 0
    for index in range(0, len(digits) - 1, 2):
        number = number * (62 * 62) + _VALUES[digits[index : index + 2]]
    if len(digits) % 2:
        number = number * 62 + _VALUES[digits[-1]]
    slot = SCHEDULED_SLOT
    if len(digits) == _OTHER_ID_DIGITS:
        number, slot = number >> 64, number & ((1 << 64) - 1)
    job, micros = number >> 64, (number & ((1 << 64) - 1)) - _BIAS
    try:
        if slot >= 1 << 63 or (len(digits) == _OTHER_ID_DIGITS and slot == SCHEDULED_SLOT):
            raise ValueError  # encode_run_id never produces this
        return RunKey(UUID(int=job), _EPOCH + timedelta(microseconds=micros), slot)
    except (ValueError, OverflowError):
        raise NotFound("there is no such run") from None


class UpstreamRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The run of another job whose end caused a run. Both have the same `scheduled_for`."""

    job_id: UUID
    job: str
    slot: int
    state: str
    result: Any = None
    large: bool = False  # the result is too large to be stored here; the worker reads it
    attempt: int | None = None  # the attempt that ended it
    trace_id: str | None = None  # of its caller

    def key(self, scheduled_for: datetime) -> RunKey:
        return RunKey(self.job_id, scheduled_for, self.slot)


class Spec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Everything that a worker needs to execute a run; stored as `spec` with the job or with the run."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None  # seconds
    heartbeat: float | None = None  # seconds; an attempt without a heartbeat for this long is stopped
    retry: dict[str, Any] = {}
    delivery: str = Delivery.AT_LEAST_ONCE
    graph: int | None = None  # workflow runs: the version of the graph
    node: str | None = None  # workflow nodes: the name of the node
    refs: dict[str, Any] = {}  # workflow nodes: results of other nodes that are too large to be stored here
    keep_result: bool = False  # the next run of the job gets the result as `ctx.last_result`
    expires_in: float | None = None  # sends: seconds after the scheduled time; jobs have it in a column
    expires_at: float | None = None  # set by a claim: seconds since 1970; no attempt begins at or after this time
    upstream: UpstreamRun | None = None  # the run of another job that this run follows
    trace: RunTrace | None = None  # the trace context of the caller
    redact: list[str] = []  # paths of values that are not shown

    @property
    def is_incomplete(self) -> bool:
        """Whether the worker must read values that were too large to be stored here."""
        return bool(self.refs) or (self.upstream is not None and self.upstream.large)

    @property
    def is_in_workflow(self) -> bool:
        """Whether this is a workflow run or one of its nodes."""
        return self.node is not None or self.graph is not None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended, as reported by its worker or by the reaper."""

    outcome: Outcome
    error: dict[str, Any] | None = None
    result: Any = None
    snooze: timedelta | None = None
    discard: str | None = None
    opened: bool = False  # workflow runs: the nodes can start
    ran: float = 0.0  # seconds
    started: bool = True  # False: the worker claimed the run but never called the handler
    after: timedelta | None = None  # failures: the minimum wait before the next attempt
    final: str | None = None  # failures: the reason why there is no further attempt
    expired: bool = False  # the deadline of the run passed before the handler was called
    progress: dict[str, Any] | None = None  # the last report of the handler, if there was one


class SettleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a run after an attempt: a final state, or another attempt after a wait."""

    event: RunEvent
    ends_as: State | None = None
    wait: timedelta | None = None
    reason: str | None = None
    counted: bool = True  # False: the attempt does not count towards the maximum


class RetryWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The time in which attempts of a run may begin. All times are the database's."""

    now: datetime
    first_started_at: datetime  # of the first attempt since the run was created or redriven
    expires_at: datetime | None = None  # the deadline of the run

    def find_death_reason(self, retry: Retry, wait: timedelta) -> str | None:
        """Return the reason why no attempt may begin after this wait, or None."""
        begins_at = self.now + wait
        if retry.max_elapsed is not None and begins_at > self.first_started_at + retry.max_elapsed:
            return f"the next attempt would begin more than {format_duration(retry.max_elapsed)} after the first"
        if self.expires_at is not None and begins_at >= self.expires_at:
            return "expired: the next attempt would begin after the deadline of the run"
        return None


def decide_next_step(
    ending: Ending, spent: int, retry: Retry, delivery: str, lost: int = 0, window: RetryWindow | None = None
) -> SettleDecision:
    """Decide what happens to a run after an attempt has ended.

    `spent` is the number of counted attempts since the run was created or last redriven, including this one. `lost` is
    the number of worker processes that disappeared while they executed the run, including the one of this attempt.
    `window` limits when another attempt may begin.

    A lost attempt does not use up the retries: the handler did not fail. Only POISON_LOST_ATTEMPTS limits losses.
    """
    if ending.expired:
        return _decide_expired(spent)
    if ending.outcome is Outcome.OK:
        return _decide_success(ending)
    if ending.outcome is Outcome.CANCELLED:
        return SettleDecision(event=RunEvent.CANCELLED, ends_as=State.CANCELLED, reason="cancelled while running")
    if reason := _find_death_reason(ending, spent, retry, delivery, lost):
        return SettleDecision(event=RunEvent.EXHAUSTED, ends_as=State.DEAD, reason=reason)
    is_lost = ending.outcome is Outcome.LOST
    wait = timedelta(0) if is_lost else retry.wait(spent)
    wait = max(wait, ending.after or wait)
    if window is not None and (reason := window.find_death_reason(retry, wait)):
        return SettleDecision(event=RunEvent.EXHAUSTED, ends_as=State.DEAD, reason=reason)
    return SettleDecision(event=RunEvent.FAILED, wait=wait, counted=not is_lost)


def _decide_expired(spent: int) -> SettleDecision:
    """Decide about a run whose handler was not called before its deadline: only a run whose attempts failed is dead."""
    if spent > 1:
        reason = "expired: its deadline passed before the next attempt"
        return SettleDecision(event=RunEvent.EXHAUSTED, ends_as=State.DEAD, reason=reason)
    return SettleDecision(event=RunEvent.EXPIRED, ends_as=State.SKIPPED, reason="expired")


def _decide_success(ending: Ending) -> SettleDecision:
    if ending.discard is not None:
        return SettleDecision(event=RunEvent.CANCELLED, ends_as=State.CANCELLED, reason=ending.discard)
    if ending.opened:
        return SettleDecision(event=RunEvent.OPENED, ends_as=State.RUNNING)
    if ending.snooze is not None:
        return SettleDecision(event=RunEvent.GIVEN_BACK, wait=min(ending.snooze, MAX_RETRY_DELAY), counted=False)
    return SettleDecision(event=RunEvent.SUCCEEDED, ends_as=State.SUCCEEDED)


def _find_death_reason(ending: Ending, spent: int, retry: Retry, delivery: str, lost: int) -> str | None:
    """Return the reason why there is no further attempt, or None."""
    if ending.outcome is Outcome.LOST:
        if delivery == Delivery.AT_MOST_ONCE:
            return "the worker was lost, and delivery is at_most_once"
        if lost >= POISON_LOST_ATTEMPTS:
            return f"poison: the worker disappeared {lost} times"
        return None
    lineage = (ending.error or {}).get("lineage", ())
    # The handler has finished its work; running it again would not make the result storable.
    if ending.final is not None or "ResultNotStorable" in lineage:
        return ending.final or "the result cannot be stored"
    if reason := _find_excluded_error(ending, retry):
        return reason
    return "no retries left" if spent >= retry.attempts else None


def _find_excluded_error(ending: Ending, retry: Retry) -> str | None:
    """Return the reason why the retry policy excludes this error, or None."""
    error = ending.error or {}
    lineage = error.get("lineage", ())
    if refused := next((name for name in lineage if name in retry.never_on), None):
        return f"{refused} is never retried"
    if retry.only_on and ending.outcome is Outcome.FAILED and not any(name in retry.only_on for name in lineage):
        return f"{error.get('type', 'the error')} is not one of the errors that are retried: {', '.join(retry.only_on)}"
    return None
