"""Check-ins: the expected reports of jobs that run elsewhere. Pure functions: a check-in, a ping and the time in."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from bellringer.errors import InvalidInput
from bellringer.schedule import Cron, Every, Rrule, Schedule, parse_schedule

EARLY_TOLERANCE: Final = timedelta(seconds=30)  # a clock elsewhere may be ahead
MIN_GRACE: Final = timedelta(seconds=1)
MAX_GRACE: Final = timedelta(days=31)
MAX_BODY_BYTES: Final = 10_000  # of a ping; the rest is dropped
MAX_PINGS_KEPT: Final = 100  # per check-in
MAX_PINGS_PER_MINUTE: Final = 60  # per check-in
_TOKEN_BYTES: Final = 24


class PingKind(StrEnum):
    """The kinds of pings."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"


class CheckinRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A check-in; see the table `checkins`."""

    checkin_id: UUID
    tenant_id: int
    name: str
    description: str = ""
    schedule: Schedule
    grace: timedelta
    owner: str = "api"
    tags: tuple[str, ...] = ()
    state: str = "new"
    paused_at: datetime | None = None
    due_at: datetime | None = None
    deadline_at: datetime | None = None
    started_at: datetime | None = None
    pinged_at: datetime | None = None
    succeeded_at: datetime | None = None
    down_since: datetime | None = None
    duration: timedelta | None = None
    pings: int = 0
    created_at: datetime
    changed_at: datetime
    changed_by: str

    def shown_state(self, now: datetime) -> str:
        """Returns new, up, late, down or paused. Late: the ping is due, and the grace period is not over."""
        if self.paused_at is not None:
            return "paused"
        is_late = self.state == "up" and self.due_at is not None and self.due_at < now and self.started_at is None
        return "late" if is_late else self.state

    def next_due(self, after: datetime) -> datetime | None:
        """Returns when the next ping is expected: an interval after the last one, or at the next occurrence."""
        if isinstance(self.schedule, Every):
            return after + self.schedule.interval
        return self.schedule.next_after(after + EARLY_TOLERANCE)


def apply_ping(checkin: CheckinRecord, kind: PingKind, now: datetime) -> tuple[CheckinRecord, str | None]:
    """Returns the check-in after a ping, and the kind of event that follows, if any."""
    checkin = replace(checkin, pings=checkin.pings + 1)
    if kind is PingKind.START:
        # From its start on, the job has the grace period to finish.
        is_watched = checkin.paused_at is None and checkin.state != "down"
        deadline = now + checkin.grace if is_watched else checkin.deadline_at
        return replace(checkin, started_at=now, deadline_at=deadline), None
    duration = None if checkin.started_at is None else now - checkin.started_at
    checkin = replace(checkin, pinged_at=now, started_at=None, duration=duration)
    if kind is PingKind.SUCCESS:
        checkin = replace(checkin, succeeded_at=now)
    if checkin.paused_at is not None:
        return checkin, None
    due_at = checkin.next_due(now)
    if kind is PingKind.FAIL:
        event = None if checkin.state == "down" else "checkin_failed"
        since = checkin.down_since or now
        return replace(checkin, state="down", due_at=due_at, deadline_at=None, down_since=since), event
    event = "checkin_recovered" if checkin.state == "down" else None
    deadline = None if due_at is None else due_at + checkin.grace
    return replace(checkin, state="up", due_at=due_at, deadline_at=deadline, down_since=None), event


def pause(checkin: CheckinRecord, now: datetime) -> CheckinRecord:
    """Returns the check-in paused: pings are recorded, and nothing is expected."""
    return replace(checkin, paused_at=checkin.paused_at or now, due_at=None, deadline_at=None, started_at=None)


def resume(checkin: CheckinRecord, now: datetime) -> CheckinRecord:
    """Returns the check-in resumed: the next ping is expected as if one had arrived now."""
    checkin = replace(checkin, paused_at=None)
    return checkin if checkin.state == "new" else expect_from(replace(checkin, state="up", down_since=None), now)


def expect_from(checkin: CheckinRecord, now: datetime) -> CheckinRecord:
    """Returns the check-in with the times that follow from its schedule, if it is up."""
    if checkin.state != "up" or checkin.paused_at is not None:
        return checkin
    due_at = checkin.next_due(now)
    return replace(checkin, due_at=due_at, deadline_at=None if due_at is None else due_at + checkin.grace)


def parse_checkin_schedule(document: dict[str, object]) -> Schedule:
    """Parses the schedule of a check-in: cron, rrule or every. Raises InvalidInput."""
    if "calendar" in document:
        hint = "remove calendar; pause the check-in on days off"
        raise InvalidInput("check-ins have no calendars", hint=hint, pointer="/schedule/calendar", code="unknown_field")
    schedule = parse_schedule(document)
    if not isinstance(schedule, Cron | Every | Rrule):
        hint = "use cron, rrule or every"
        raise InvalidInput("a check-in needs a repeating schedule", hint=hint, pointer="/schedule", code="choice")
    return schedule


def generate_token() -> str:
    """Returns a new secret token for the URL of a check-in."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def hash_token(token: str) -> bytes:
    """Returns the stored form of a token. A fast hash is enough, because tokens are random."""
    return hashlib.sha256(token.encode()).digest()
