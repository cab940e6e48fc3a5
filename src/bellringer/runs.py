"""A run is the one record of one occurrence: its key, its states, and what an attempt's end means for it."""

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

from bellringer.errors import NotFound
from bellringer.policies import LONGEST_DELAY, Delivery, Retry

SCHEDULED_SLOT: Final = 0
BACKFILL_SLOTS: Final = 1 << 40  # with the number of a backfill: the slot of its runs
POISON: Final = 3  # lost attempts after which a run is taken for the cause of the crashes


class State(StrEnum):
    """Where a run is."""

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
    WEBHOOK = "webhook"  # it tells an endpoint of an event


class Event(StrEnum):
    """What may happen to a run."""

    CLAIMED = "claimed"
    GIVEN_BACK = "given back"
    OPENED = "opened"  # a workflow run: its nodes are under way
    BLOCKED = "blocked"
    FREED = "freed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    REDRIVEN = "redriven"


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.QUEUED, Event.CLAIMED): State.RUNNING,
    (State.QUEUED, Event.BLOCKED): State.BLOCKED,
    (State.QUEUED, Event.CANCELLED): State.CANCELLED,
    (State.BLOCKED, Event.FREED): State.QUEUED,
    (State.BLOCKED, Event.CANCELLED): State.CANCELLED,
    (State.BLOCKED, Event.SKIPPED): State.SKIPPED,
    (State.RUNNING, Event.SUCCEEDED): State.SUCCEEDED,
    (State.RUNNING, Event.FAILED): State.RETRYING,
    (State.RUNNING, Event.EXHAUSTED): State.DEAD,
    (State.RUNNING, Event.CANCELLED): State.CANCELLED,
    (State.RUNNING, Event.GIVEN_BACK): State.QUEUED,
    (State.RUNNING, Event.OPENED): State.RUNNING,
    (State.RETRYING, Event.CLAIMED): State.RUNNING,
    (State.RETRYING, Event.BLOCKED): State.BLOCKED,
    (State.RETRYING, Event.CANCELLED): State.CANCELLED,
    (State.DEAD, Event.REDRIVEN): State.RETRYING,
}
FINAL: Final = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED, State.SKIPPED})


# What a worker makes for every run is a Struct: a frozen dataclass costs several times as much to make and to hash.


class RunKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """Which occurrence of which job. Slot 0 is the schedule's own, so the database refuses a second one."""

    job_id: UUID
    scheduled_for: datetime
    slot: int = SCHEDULED_SLOT

    @property
    def backfill(self) -> int | None:
        """The number of the backfill that made it."""
        return self.slot - BACKFILL_SLOTS if self.slot > BACKFILL_SLOTS else None

    @property
    def id(self) -> str:
        """The public id, which is also the idempotency key: the key itself, written reversibly."""
        return encode_id(self)


_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]  # two signs at a time are faster
_VALUES: Final = {sign: value for signs in (_ALPHABET, _PAIRS) for value, sign in enumerate(signs)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_BIAS: Final = 1 << 62  # keeps instants before 1970 positive
_SHORT, _LONG = 33, 44  # signs for a key in slot 0, and in any other
_ID: Final = re.compile(rf"run_(?:[0-9A-Za-z]{{{_SHORT}}}|[0-9A-Za-z]{{{_LONG}}})")


@lru_cache(maxsize=8192)  # it is told again and again
def encode_id(key: RunKey) -> str:
    """Write a run key as its public id: no second identity, and every look-up knows its partition."""
    micros = (key.scheduled_for - _EPOCH) // _MICROSECOND + _BIAS
    number, width = (key.job_id.int << 64) | micros, _SHORT
    if key.slot != SCHEDULED_SLOT:
        number, width = (number << 64) | key.slot, _LONG
    signs = []
    for _ in range(0, width, 2):
        number, rest = divmod(number, 62 * 62)
        signs.append(_PAIRS[rest])
    return "run_" + "".join(reversed(signs))[-width:]


@lru_cache(maxsize=8192)  # who waits for a run asks for it again and again
def decode_id(run_id: str) -> RunKey:
    """Read a public id back; anything else is, as any unknown id, not found."""
    if not _ID.fullmatch(run_id):
        raise NotFound("there is no such run", hint="ids look like run_… ; list them with `bellringer runs list`")
    signs, number = run_id[4:], 0
    for place in range(0, len(signs) - 1, 2):
        number = number * (62 * 62) + _VALUES[signs[place : place + 2]]
    if len(signs) % 2:
        number = number * 62 + _VALUES[signs[-1]]
    slot = SCHEDULED_SLOT
    if len(signs) == _LONG:
        number, slot = number >> 64, number & ((1 << 64) - 1)
    job, micros = number >> 64, (number & ((1 << 64) - 1)) - _BIAS
    try:
        if slot >= 1 << 63 or (len(signs) == _LONG and slot == SCHEDULED_SLOT):
            raise ValueError  # not one that encode_id would write
        return RunKey(UUID(int=job), _EPOCH + timedelta(microseconds=micros), slot)
    except (ValueError, OverflowError):
        raise NotFound("there is no such run") from None


class Spec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a worker needs to know to execute a run; stored as `spec` with the job, or with the run itself."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None  # seconds
    heartbeat: float | None = None  # seconds without a sign of life after which an attempt has hung
    retry: dict[str, Any] = {}
    delivery: str = Delivery.AT_LEAST_ONCE
    graph: int | None = None  # of a workflow run: the version of its graph
    node: str | None = None  # of a node of a workflow: its name
    refs: dict[str, Any] = {}  # of a node: arguments that are results of others, too large to travel with it

    @property
    def flows(self) -> bool:
        """Whether it is part of a workflow, so that others may start when it ends."""
        return self.node is not None or self.graph is not None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended, as its worker (or the reaper) saw it."""

    outcome: Outcome
    error: dict[str, Any] | None = None
    result: Any = None
    snooze: timedelta | None = None
    discard: str | None = None
    opened: bool = False  # of a workflow run: its nodes are to begin
    ran: float = 0.0
    after: timedelta | None = None  # of a failure: the next attempt comes no sooner
    final: str | None = None  # of a failure: why there is no next attempt


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What an ending means for the run: an end, or another attempt after a wait."""

    event: Event
    ends_as: State | None = None
    wait: timedelta | None = None
    reason: str | None = None
    counted: bool = True  # False: the attempt does not use up the run's budget


def judge(ending: Ending, spent: int, retry: Retry, delivery: str, lost: int = 0) -> Verdict:
    """Decide what an attempt's ending means.

    `spent` counts this attempt and those before it since the run was born or last redriven; `lost` counts
    the attempts, this one included, whose worker vanished.
    """
    if ending.outcome is Outcome.OK:
        return _good(ending)
    if ending.outcome is Outcome.CANCELLED:
        return Verdict(event=Event.CANCELLED, ends_as=State.CANCELLED, reason="cancelled while it ran")
    if reason := _deadly(ending, spent, retry, delivery, lost):
        return Verdict(event=Event.EXHAUSTED, ends_as=State.DEAD, reason=reason)
    wait = timedelta(0) if ending.outcome is Outcome.LOST else retry.wait(spent)
    return Verdict(event=Event.FAILED, wait=max(wait, ending.after or wait))


def _good(ending: Ending) -> Verdict:
    if ending.discard is not None:
        return Verdict(event=Event.CANCELLED, ends_as=State.CANCELLED, reason=ending.discard)
    if ending.opened:
        return Verdict(event=Event.OPENED, ends_as=State.RUNNING)
    if ending.snooze is not None:
        return Verdict(event=Event.GIVEN_BACK, wait=min(ending.snooze, LONGEST_DELAY), counted=False)
    return Verdict(event=Event.SUCCEEDED, ends_as=State.SUCCEEDED)


def _deadly(ending: Ending, spent: int, retry: Retry, delivery: str, lost: int) -> str | None:
    """Why no further attempt may be made, or None."""
    if ending.outcome is Outcome.LOST:
        if delivery == Delivery.AT_MOST_ONCE:
            return "lost, and the job is delivered at most once"
        if lost >= POISON:
            return f"poison: its worker vanished {lost} times"
    lineage = (ending.error or {}).get("lineage", ())
    # Where the work is done, to do it again would not make the result smaller.
    if ending.final is not None or "ResultNotStorable" in lineage:
        return ending.final or "its result cannot be stored"
    if refused := next((name for name in lineage if name in retry.never_on), None):
        return f"{refused} is never retried"
    if spent >= retry.attempts:
        return f"all {retry.attempts} attempts are used"
    return None
