"""Days off from iCalendar files: all-day events, and a refusal that names the line."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidInput
from bellringer.schedule import parse_ics

TODAY = date(2026, 11, 16)


def file(*events: str, newline: str = "\r\n") -> str:
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0"]
    for event in events:
        lines += ["BEGIN:VEVENT", *event.split("\n"), "END:VEVENT"]
    return newline.join([*lines, "END:VCALENDAR", ""])


def read(*events: str, newline: str = "\r\n") -> list[str]:
    return [day.isoformat() for day in sorted(parse_ics(file(*events, newline=newline), today=TODAY))]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_all_day_event_is_a_day_off(newline: str) -> None:
    assert read("DTSTART;VALUE=DATE:20261225\nSUMMARY:Christmas", newline=newline) == ["2026-12-25"]


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ("DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261227", ["2026-12-24", "2026-12-25", "2026-12-26"]),
        ("DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261224", ["2026-12-24"]),
        ("DTSTART;VALUE=DATE:20261230\nDURATION:P3D", ["2026-12-30", "2026-12-31", "2027-01-01"]),
        ("DTSTART;VALUE=DATE:20261201\nDURATION:P1W", [f"2026-12-0{day}" for day in range(1, 8)]),
        ("DTSTART:20261225", ["2026-12-25"]),
        ('DTSTART;X-NOTE="a;b:c";VALUE=DATE:20261225', ["2026-12-25"]),
        ("DTSTART:20261225T090000Z\nDTEND:20261225T100000Z", []),
        ("DTSTART;TZID=Europe/Berlin:20261225T090000", []),
        ("SUMMARY:no start", []),
        ("DTSTART;VALUE=DATE:20261225\nSTATUS:CANCELLED", []),
        ("DTSTART;VALUE=DATE:20261225\nX-ODD;A=B:what: ever\nCATEGORIES:a,b", ["2026-12-25"]),
        ("DTSTART;VAL\n UE=DATE:2026\n\t1225\nSUMMARY:fol\n ded", ["2026-12-25"]),
        ("DTSTART;VALUE=DATE:20261225\nBEGIN:VALARM\nDURATION:PT15M\nEND:VALARM", ["2026-12-25"]),
    ],
)
def test_events(event: str, found: list[str]) -> None:
    assert read(event) == found


def test_what_recurs_is_expanded_from_a_year_back_to_ten_years_ahead() -> None:
    found = read("DTSTART;VALUE=DATE:19991225\nRRULE:FREQ=YEARLY")
    assert found == [f"{year}-12-25" for year in range(2025, 2037)]
    thanksgiving = read("DTSTART;VALUE=DATE:20241128\nRRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH;UNTIL=20271231")
    assert thanksgiving == ["2025-11-27", "2026-11-26", "2027-11-25"]
    two_days = read("DTSTART;VALUE=DATE:20261230\nDTEND;VALUE=DATE:20270101\nRRULE:FREQ=YEARLY;COUNT=2")
    assert two_days == ["2026-12-30", "2026-12-31", "2027-12-30", "2027-12-31"]


def test_an_exception_is_not_a_day_off() -> None:
    event = "DTSTART;VALUE=DATE:20251225\nRRULE:FREQ=YEARLY;COUNT=3\nEXDATE;VALUE=DATE:20261225"
    assert read(event) == ["2025-12-25", "2027-12-25"]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "BEGIN:VCALENDAR"),
        ("<html>", 1, "BEGIN:VCALENDAR"),
        (file("DTSTART;VALUE=DATE:20261332"), 4, "is not a date"),
        (file("DTSTART;VALUE=DATE:tomorrow"), 4, "is not a date"),
        (file("DTSTART;VALUE=DATE:20261225\nDTEND;VALUE=DATE:20261224"), 5, "is before DTSTART"),
        (file("DTSTART;VALUE=DATE:20261225\nDURATION:PT5M"), 5, "is not a number of days"),
        (file("DTSTART;VALUE=DATE:20261225\nRRULE:FREQ=HOURLY"), 5, "FREQ=HOURLY"),
        (file("SUMMARY:a\nno colon here"), 5, "is not a property"),
        ("BEGIN:VCALENDAR\nEND:VEVENT\n", 2, "has no matching BEGIN"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\n", 3, "VEVENT has no END"),
        ("BEGIN:VCALENDAR\nX:" + "x" * 1_000_000, 1, "exceeds 1 MB"),
        (
            file("DTSTART;VALUE=DATE:20260101\nDURATION:P9999D", "DTSTART;VALUE=DATE:21260101\nDURATION:P9D"),
            10,
            "10000",
        ),
        (file("DTSTART;VALUE=DATE:99991231\nDURATION:P2D"), 4, "is not a date"),
        (file("DTSTART;VALUE=DATE:20260101\nDURATION:P9999D\nRRULE:FREQ=DAILY"), 4, "more than 10000 dates"),
        (file(*["DTSTART:20260101\nRRULE:FREQ=YEARLY"] * 501), 2005, "500 recurring events"),
    ],
)
def test_a_refusal_names_the_line(text: str, line: int, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_ics(text, today=TODAY)
    assert caught.value.code == "ics_invalid"
    assert caught.value.message.startswith(f"line {line}: ")
    assert says in str(caught.value)


pieces = st.sampled_from(
    [
        *(
            "BEGIN:VCALENDAR",
            "BEGIN:VEVENT",
            "END:VEVENT",
            "END:VCALENDAR",
            " folded",
            "",
            ":",
            "DTSTART:20261225",
            "É:é",
        ),
        *("DTSTART;VALUE=DATE:20260101", "DTEND:20260105", "DURATION:P2D", "RRULE:FREQ=YEARLY", "RRULE:X", "EXDATE:1"),
    ]
)


@settings(max_examples=300, deadline=timedelta(seconds=2))
@given(st.lists(st.one_of(pieces, st.text(max_size=20)), max_size=12).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"BEGIN:VCALENDAR\n{text}", file(text)):
        refusal = refusal_of(whole)
        assert refusal is None or refusal.code == "ics_invalid"
        assert refusal is None or refusal.message.startswith("line ")


def refusal_of(text: str) -> InvalidInput | None:
    try:
        parse_ics(text, today=TODAY)
    except InvalidInput as refusal:
        return refusal
    return None
