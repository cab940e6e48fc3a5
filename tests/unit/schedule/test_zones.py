"""Zone names, and the timeline that each zone's offsets make."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, _common

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import cron, zones

UNKNOWN = [
    "Mars/Phobos",
    "EST5",
    "../../etc/passwd",
    "/etc/passwd",
    "UTC\x00",
    "localtime",
    "posix/Europe/Paris",
    "right/UTC",
    "Factory",
    "Europe",
    "",
    " UTC",
    "Europe/Paris " * 800,
    "Zürich",
]


@pytest.mark.parametrize("name", UNKNOWN)
def test_only_the_exact_name_of_a_zone_is_taken(name: str) -> None:
    with pytest.raises(InvalidSchedule, match="is not known") as caught:
        cron("0 0 * * *", tz=name)
    assert caught.value.code == "timezone_unknown"
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", [None, 5, b"UTC", ["UTC"]])
def test_a_zone_that_is_not_text_is_refused(name: object) -> None:
    with pytest.raises(InvalidSchedule, match="is not known"):
        cron("0 0 * * *", tz=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("europe/paris", "Europe/Paris"),
        ("Europe/Pariss", "Europe/Paris"),
        ("America/New York", "America/New_York"),
        ("America/NewYork", "America/New_York"),
        ("Kolkata", "Asia/Kolkata"),
        ("utc", "UTC"),
    ],
)
def test_a_near_miss_is_answered_with_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"did you mean {meant}"):
        cron("0 0 * * *", tz=typed)


def test_every_known_zone_can_be_loaded() -> None:
    assert len(zones.names()) > 400
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert all(now.astimezone(ZoneInfo(name)) == now for name in zones.names())


def test_no_zone_changes_twice_between_two_looks() -> None:
    for name in zones.names():
        with _common.load_tzdata(name) as file:
            index, instants, offsets, *_ = _common.load_data(file)
        used = [offsets[i] for i in index]
        changes = [
            at for at, (old, new) in zip(instants[1:], pairwise(used), strict=True) if old != new and at > -(2**31)
        ]
        assert all(later - earlier > 2 * zones.PROBE for earlier, later in pairwise(changes)), name


@pytest.fixture
def fresh_blocks() -> Iterator[None]:
    zones._stretches.cache_clear()
    yield
    zones._stretches.cache_clear()


@pytest.mark.parametrize("shift", range(0, 7200, 900))
@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("America/New_York", "2026-03-08T06:00"),
        ("America/New_York", "2026-11-01T05:00"),
        ("Australia/Lord_Howe", "2026-04-04T14:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:00"),
    ],
)
def test_where_time_is_cut_into_blocks_changes_nothing(
    zone: str, change: str, shift: int, monkeypatch: pytest.MonkeyPatch, fresh_blocks: None
) -> None:
    at = datetime.fromisoformat(change).replace(tzinfo=UTC)
    start, end = at - timedelta(days=2), at + timedelta(days=2)
    schedules = [cron(expression, tz=zone) for expression in ("*/5 1-3 * * *", "0-59/5 1-3 * * *")]
    expected = [list(schedule.between(start, end)) for schedule in schedules]
    zones._stretches.cache_clear()
    # Sixty blocks from 1970 to a moment within an hour of the change, which then begins the next block.
    monkeypatch.setattr(zones, "_BLOCK", (int(at.timestamp()) + shift) // 60)
    assert [list(schedule.between(start, end)) for schedule in schedules] == expected
