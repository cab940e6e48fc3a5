"""Quiet hours over midnight, on some days, and over clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bellringer.core.quiet_hours import QuietHours, parse_quiet_hours, quiet_hours_document
from bellringer.errors import InvalidInput


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


NIGHT = QuietHours(starts="22:00", ends="07:00", tz="Europe/Paris")


@pytest.mark.parametrize(
    ("quiet", "now", "end"),
    [
        (NIGHT, "2026-11-18T21:59:59+01:00", None),
        (NIGHT, "2026-11-18T22:00:00+01:00", "2026-11-19T07:00:00+01:00"),
        (NIGHT, "2026-11-19T06:59:59+01:00", "2026-11-19T07:00:00+01:00"),
        (NIGHT, "2026-11-19T07:00:00+01:00", None),
        (NIGHT, "2026-03-29T01:00:00+01:00", "2026-03-29T07:00:00+02:00"),  # the clock goes forward that night
        (NIGHT, "2026-10-25T01:00:00+02:00", "2026-10-25T07:00:00+01:00"),  # and back
        (QuietHours(starts="12:00", ends="13:00"), "2026-11-18T12:30:00+00:00", "2026-11-18T13:00:00+00:00"),
        (QuietHours(starts="00:00", ends="00:00"), "2026-11-18T12:30:00+00:00", "2026-11-19T00:00:00+00:00"),
    ],
)
def test_quiet_hours_end_at_the_wall_clock(quiet: QuietHours, now: str, end: str | None) -> None:
    assert quiet.until(at(now)) == (None if end is None else at(end))


def test_an_end_that_the_clock_skips_is_the_moment_of_the_change() -> None:
    quiet = QuietHours(starts="23:00", ends="02:30", tz="Europe/Paris")
    change = at("2026-03-29T01:00:00+00:00")
    assert quiet.until(change - timedelta(seconds=1)) == change
    assert quiet.until(change) is None


def test_an_end_that_occurs_twice_is_the_first() -> None:
    quiet = QuietHours(starts="23:00", ends="02:30", tz="Europe/Paris")
    first = at("2026-10-25T02:30:00+02:00")
    assert quiet.until(first - timedelta(seconds=1)) == first
    assert quiet.until(at("2026-10-25T02:10:00+01:00")) is None  # 02:10 for the second time


def test_days_are_those_on_which_quiet_hours_begin() -> None:
    quiet = QuietHours(starts="22:00", ends="07:00", days=("FRI",))
    assert quiet.until(at("2026-11-20T23:00:00+00:00")) == at("2026-11-21T07:00:00+00:00")  # from Friday to Saturday
    assert quiet.until(at("2026-11-21T03:00:00+00:00")) == at("2026-11-21T07:00:00+00:00")
    assert quiet.until(at("2026-11-21T23:00:00+00:00")) is None


def test_documents_are_read_and_written() -> None:
    document = {"from": "22:00", "to": "07:00", "tz": "Europe/Paris", "days": ["MON"], "critical": "hold"}
    assert quiet_hours_document(parse_quiet_hours(document)) == document


@pytest.mark.parametrize(
    "wrong", [{"from": "25:00"}, {"to": 7}, {"tz": "Mars"}, {"days": ["MO"]}, {"critical": "maybe"}, {"until": "1"}]
)
def test_mistakes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        parse_quiet_hours({"from": "22:00", "to": "07:00", **wrong})
