"""The look ahead, with the marks that a change of the clock leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bellringer.schedule import at, cron, delay, every, next_fires

NEW_YORK = "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_time_moved_out_of_the_gap_is_marked() -> None:
    before, moved, after = next_fires(cron("30 2 * * *", tz=NEW_YORK), utc("2026-03-07T00:00"), 3)
    assert (before.flags, after.flags) == ((), ())
    assert moved.flags == ("dst_gap",)
    assert moved.at == utc("2026-03-08T07:00")
    assert f"{moved.local:%H:%M %Z}" == "03:00 EDT"


def test_the_first_of_two_equal_times_in_the_fold_is_marked() -> None:
    first, following = next_fires(cron("30 1 * * *", tz=NEW_YORK), utc("2026-11-01T00:00"), 2)
    assert (f"{first.local:%H:%M %Z}", first.flags) == ("01:30 EDT", ("dst_fold_first",))
    assert (f"{following.local:%d %H:%M %Z}", following.flags) == ("02 01:30 EST", ())


def test_the_second_of_two_equal_times_is_marked() -> None:
    found = next_fires(cron("30 1 * * *", tz=NEW_YORK, fold="second"), utc("2026-11-01T00:00"), 2)
    assert [(f"{fire.local:%d %H:%M %Z}", fire.flags) for fire in found] == [
        ("01 01:30 EST", ("dst_fold_second",)),
        ("02 01:30 EST", ()),
    ]


def test_a_time_left_out_of_the_gap_leaves_no_mark() -> None:
    found = next_fires(cron("30 2 * * *", tz=NEW_YORK, gap="skip"), utc("2026-03-07T00:00"), 2)
    assert [(f"{fire.local:%d %H:%M}", fire.flags) for fire in found] == [("07 02:30", ()), ("09 02:30", ())]


def test_a_rhythm_shows_both_passes_of_the_fold() -> None:
    found = next_fires(cron("*/30 * * * *", tz=NEW_YORK), utc("2026-11-01T04:45"), 5)
    assert [f"{fire.local:%H:%M %Z}" for fire in found] == [
        "01:00 EDT",
        "01:30 EDT",
        "01:00 EST",
        "01:30 EST",
        "02:00 EST",
    ]
    first, second = ("dst_fold_first",), ("dst_fold_second",)
    assert [fire.flags for fire in found] == [first, first, second, second, ()]


def test_other_kinds_are_previewed_in_utc() -> None:
    noon = utc("2026-12-01T12:00")
    assert [fire.at for fire in next_fires(every("1h"), noon, 3)] == [noon + timedelta(hours=h) for h in (1, 2, 3)]
    assert [fire.local for fire in next_fires(delay("1h"), noon, 3)] == [noon + timedelta(hours=1)]
    assert next_fires(at(noon), noon, 3) == []
    assert next_fires(every("1h"), noon, 0) == []
