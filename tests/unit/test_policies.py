"""Retry: how many attempts, and how long between them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.errors import InvalidInput
from bellringer.policies import LONGEST_DELAY, MOST_ATTEMPTS, Retry

waits = st.timedeltas(timedelta(0), LONGEST_DELAY)
retries = st.builds(
    Retry,
    st.integers(1, MOST_ATTEMPTS),
    base=waits,
    cap=waits,
    delays=st.lists(waits, max_size=5),
    never_on=st.lists(st.sampled_from(["ValueError", LookupError, KeyError]), max_size=3),
)


@given(retries)
def test_what_is_stored_reads_back_as_the_same(retry: Retry) -> None:
    assert Retry.parse(json.loads(json.dumps(retry.to_document()))) == retry


def test_only_what_differs_from_the_default_is_stored() -> None:
    assert Retry().to_document() == {"attempts": 3}
    assert Retry(5, base="10s").to_document() == {"attempts": 5, "base": "10s"}


@given(retries, st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_negative_nor_beyond_the_cap(retry: Retry, failures: int, chance: float) -> None:
    wait = retry.wait(failures, chance)
    if retry.delays:
        assert wait in retry.delays
    else:
        assert timedelta(0) <= wait <= retry.cap
        assert retry.wait(failures) <= retry.cap


def test_the_ceiling_doubles_with_each_failure_up_to_the_cap() -> None:
    retry = Retry(9, base="10s", cap="1m")
    assert [retry.wait(n, 0.5).total_seconds() for n in (1, 2, 3, 4, 9)] == [5, 10, 20, 30, 30]


def test_a_list_of_delays_gives_one_attempt_more_than_delays_and_repeats_its_last() -> None:
    retry = Retry(delays=["1s", "1m"])
    assert retry.attempts == 3
    waits = [Retry(9, delays=["1s", "1m"]).wait(n).total_seconds() for n in (1, 2, 3, 8)]
    assert waits == [1, 60, 60, 60]


def test_a_class_is_kept_by_its_name() -> None:
    assert Retry(never_on=[ValueError, "HttpError"]).never_on == ("ValueError", "HttpError")


def test_a_bare_number_counts_attempts() -> None:
    assert Retry.parse(7) == Retry(7)


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        (0, "/retry/attempts"),
        (1001, "/retry/attempts"),
        (True, "/retry"),
        ("often", "/retry"),
        (None, "/retry"),
        ({"attempts": "3"}, "/retry/attempts"),
        ({"attempts": True}, "/retry/attempts"),
        ({"attempts": 2.5}, "/retry/attempts"),
        ({"tries": 3}, "/retry/tries"),
        ({"base": "31d"}, "/retry/base"),
        ({"cap": "31d"}, "/retry/cap"),
        ({"delays": ["31d"]}, "/retry/delays"),
        ({"never_on": "ValueError"}, "/retry/never_on"),
        ({"never_on": [1]}, "/retry/never_on"),
    ],
)
def test_what_cannot_be_a_retry_is_refused_with_its_place(document: Any, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Retry.parse(document)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize("document", [{"base": "-1s"}, {"base": "soon"}, {"cap": []}, {"delays": [{}]}])
def test_what_is_no_length_of_time_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInput):
        Retry.parse(document)
