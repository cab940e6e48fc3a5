"""States of a check-in, with the time as an argument."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from bellringer.core.checkins import CheckinRecord, PingKind, apply_ping, parse_checkin_schedule, pause, resume
from bellringer.errors import InvalidInput
from bellringer.schedule import cron, every

THREE = datetime(2026, 11, 18, 3, 0, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def checkin(**more: Any) -> CheckinRecord:
    given: dict[str, Any] = {"schedule": cron("0 3 * * *"), "grace": 30 * MINUTE, **more}
    return CheckinRecord(
        checkin_id=UUID(int=1), tenant_id=1, name="backup", created_at=THREE, changed_at=THREE, changed_by="t", **given
    )


def test_a_success_expects_the_next_occurrence() -> None:
    up, event = apply_ping(checkin(), PingKind.SUCCESS, THREE + 5 * MINUTE)
    assert (up.state, up.due_at, up.deadline_at, event) == ("up", THREE + DAY, THREE + DAY + 30 * MINUTE, None)
    assert up.shown_state(THREE + DAY) == "up"
    assert up.shown_state(THREE + DAY + MINUTE) == "late"


def test_a_ping_a_little_early_counts_for_its_occurrence() -> None:
    up, _ = apply_ping(checkin(), PingKind.SUCCESS, THREE - timedelta(seconds=2))
    assert up.due_at == THREE + DAY


def test_an_interval_counts_from_the_last_ping() -> None:
    up, _ = apply_ping(checkin(schedule=every("10m")), PingKind.SUCCESS, THREE + MINUTE)
    assert up.due_at == THREE + 11 * MINUTE


def test_a_job_that_started_has_the_grace_period_to_finish() -> None:
    up, _ = apply_ping(checkin(), PingKind.SUCCESS, THREE)
    running, event = apply_ping(up, PingKind.START, THREE + DAY)
    assert (running.deadline_at, running.shown_state(THREE + DAY + MINUTE), event) == (
        THREE + DAY + 30 * MINUTE,
        "up",
        None,
    )
    done, _ = apply_ping(running, PingKind.SUCCESS, THREE + DAY + 7 * MINUTE)
    assert (done.duration, done.started_at) == (7 * MINUTE, None)


def test_a_failure_is_reported_once_and_a_success_recovers() -> None:
    down, event = apply_ping(checkin(), PingKind.FAIL, THREE)
    assert (down.state, down.down_since, down.deadline_at, event) == ("down", THREE, None, "checkin_failed")
    again, event = apply_ping(down, PingKind.FAIL, THREE + MINUTE)
    assert (again.down_since, event) == (THREE, None)
    up, event = apply_ping(again, PingKind.SUCCESS, THREE + 2 * MINUTE)
    assert (up.state, up.down_since, event) == ("up", None, "checkin_recovered")


def test_a_paused_check_in_records_pings_and_expects_none() -> None:
    up, _ = apply_ping(checkin(), PingKind.SUCCESS, THREE)
    held = pause(up, THREE + MINUTE)
    assert (held.shown_state(THREE + DAY), held.deadline_at) == ("paused", None)
    pinged, event = apply_ping(held, PingKind.FAIL, THREE + 2 * MINUTE)
    assert (pinged.pings, pinged.pinged_at, event) == (2, THREE + 2 * MINUTE, None)
    back = resume(pinged, THREE + 3 * MINUTE)
    assert (back.state, back.due_at) == ("up", THREE + DAY)
    assert resume(pause(checkin(), THREE), THREE).shown_state(THREE) == "new"


def test_a_down_check_in_that_is_paused_and_resumed_starts_anew() -> None:
    down = replace(checkin(), state="down", down_since=THREE)
    assert resume(pause(down, THREE), THREE + MINUTE).state == "up"


@pytest.mark.parametrize(
    "wrong", [{"at": "2026-11-18T03:00:00Z"}, {"delay": "5m"}, {"cron": "0 3 * * *", "calendar": "x"}]
)
def test_only_repeating_schedules_without_calendars(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        parse_checkin_schedule(wrong)
