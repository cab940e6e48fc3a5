"""Lengths of time as people write them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1.5h", 5400),
        ("0s", 0),
        ("PT1H30M", 5400),
        ("P1D", 86_400),
        ("P1W", 604_800),
        ("P1DT0.5S", 86_400.5),
        (15, 15),
        (0.25, 0.25),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_read(text: str | float | timedelta, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "  ",
            "5",
            "5.5",
            "s",
            "1x",
            "1H",
            "1m1h",
            "1s1s",
            "1h-5m",
            "-5s",
            "1e3s",
            "٣s",
            "1s ",
            "1s\n",
            "1 s",
        ),
        *("P", "PT", "P1DT", "P1Y", "P1M", "PT-5S", "PT5", "P1H", "pt5s", "9" * 5000 + "s", "9" * 40 + "w"),
        *(-1, -0.001, float("nan"), float("inf"), float("-inf"), 1e308, 10**400, timedelta(seconds=-1)),
        *(None, True, b"5s", [5], {}),
    ],
)
def test_an_invalid_duration_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^timeout ") as caught:
        parse_duration(value, what="timeout")  # type: ignore[arg-type]
    assert caught.value.code == "duration_invalid"
    assert caught.value.hint
    assert len(str(caught.value)) < 250


def test_a_bare_number_as_text_is_rejected_with_a_hint_about_units() -> None:
    with pytest.raises(InvalidInput, match='add a unit: "90s" for seconds'):
        parse_duration("90")


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(InvalidInput, match="the unknown unit 'min'"):
        parse_duration("5min")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(hours=1, minutes=30), "1h30m"),
        (timedelta(milliseconds=500), "500ms"),
        (timedelta(0), "0s"),
        (timedelta(days=10), "10d"),
        (timedelta(seconds=1, microseconds=1001), "1s1ms1us"),
        (timedelta(seconds=-90), "-1m30s"),
    ],
)
def test_a_duration_is_written_in_its_shortest_units(value: timedelta, text: str) -> None:
    assert format_duration(value) == text


@given(st.timedeltas(timedelta(0), timedelta.max))
def test_what_was_written_can_be_read(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@given(st.one_of(st.text(max_size=80), st.text(st.sampled_from("0123456789.hmsdwuPTHMSDW -"), max_size=20)))
def test_any_text_is_a_duration_or_a_refusal(text: str) -> None:
    with suppress(InvalidInput):
        assert parse_duration(text) >= timedelta(0)
