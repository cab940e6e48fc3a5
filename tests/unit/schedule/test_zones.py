"""Zone names, and the timeline that each zone's offsets make."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, _common

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import cron, time_zones

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
    with pytest.raises(InvalidSchedule, match="unknown time zone") as caught:
        cron("0 0 * * *", tz=name)
    assert caught.value.code == "timezone_unknown"
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", [5, b"UTC", ["UTC"]])
def test_a_zone_that_is_not_text_is_refused(name: object) -> None:
    with pytest.raises(InvalidSchedule, match="unknown time zone"):
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


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("GMT+2", "name a place, for example Europe/Paris; for 2 hours ahead of UTC all year use Etc/GMT-2"),
        ("UTC+2", "2 hours ahead of UTC all year use Etc/GMT-2"),
        ("utc-05:00", "5 hours behind UTC all year use Etc/GMT+5"),
        ("+02:00", "2 hours ahead of UTC all year use Etc/GMT-2"),
        ("UTC+1", "1 hour ahead of UTC all year use Etc/GMT-1"),
        ("UTC+5:30", "name a place, for example Europe/Paris"),
        ("UTC+19", "name a place, for example Europe/Paris"),
        ("CEST", "abbreviations are ambiguous"),
        ("PST", "abbreviations are ambiguous"),
        ("est", "did you mean EST?"),
    ],
)
def test_an_offset_or_an_abbreviation_is_not_answered_with_another_offset(typed: str, hint: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        cron("0 0 * * *", tz=typed)
    assert hint in caught.value.hint
    assert "Etc" not in caught.value.hint or "Etc" in hint


def test_the_zone_of_an_offset_has_that_offset() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for hours in range(-12, 15):
        with pytest.raises(InvalidSchedule) as caught:
            cron("0 0 * * *", tz=f"UTC{hours:+}")
        name = caught.value.hint.split()[-1]
        assert now.astimezone(ZoneInfo(name)).utcoffset() == timedelta(hours=hours)


def test_every_known_zone_can_be_loaded() -> None:
    assert len(time_zones.zone_names()) > 400
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert all(now.astimezone(ZoneInfo(name)) == now for name in time_zones.zone_names())


def test_no_zone_changes_twice_between_two_looks() -> None:
    for name in time_zones.zone_names():
        with _common.load_tzdata(name) as file:
            index, instants, offsets, *_ = _common.load_data(file)
        used = [offsets[i] for i in index]
        changes = [
            at for at, (old, new) in zip(instants[1:], pairwise(used), strict=True) if old != new and at > -(2**31)
        ]
        assert all(later - earlier > 2 * time_zones.PROBE_SECONDS for earlier, later in pairwise(changes)), name


@pytest.fixture
def fresh_blocks() -> Iterator[None]:
    time_zones._periods_of_block.cache_clear()
    yield
    time_zones._periods_of_block.cache_clear()


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
    time_zones._periods_of_block.cache_clear()
    # Sixty blocks from 1970 to a moment within an hour of the change, which then begins the next block.
    monkeypatch.setattr(time_zones, "_BLOCK_SECONDS", (int(at.timestamp()) + shift) // 60)
    assert [list(schedule.between(start, end)) for schedule in schedules] == expected
