"""Retry: how many attempts, and how long between them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.core.retry_policy import MAX_ATTEMPTS, MAX_RETRY_DELAY, Retry
from bellringer.errors import InvalidInput

waits = st.timedeltas(timedelta(0), MAX_RETRY_DELAY)
retries = st.builds(
    Retry,
    st.integers(1, MAX_ATTEMPTS),
    base=waits,
    cap=waits,
    delays=st.lists(waits, max_size=5),
    never_on=st.lists(st.sampled_from(["ValueError", LookupError, KeyError]), max_size=3),
    jitter=st.one_of(st.none(), st.floats(0, 1)),
)


@given(retries)
def test_what_is_stored_reads_back_as_the_same(retry: Retry) -> None:
    assert Retry.parse(json.loads(json.dumps(retry.to_document()))) == retry


def test_only_what_differs_from_the_default_is_stored() -> None:
    assert Retry().to_document() == {"attempts": 3}
    assert Retry(5, base="10s").to_document() == {"attempts": 5, "base": "10s"}
    assert Retry(delays=["1s"]).to_document() == {"attempts": 2, "delays": ["1s"]}
    assert Retry(delays=["1s"], jitter=0).to_document() == {"attempts": 2, "delays": ["1s"], "jitter": 0.0}


@given(retries, st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_negative_nor_beyond_the_cap(retry: Retry, failures: int, chance: float) -> None:
    wait = retry.wait(failures, chance)
    if retry.delays:
        listed = retry.delays[min(failures, len(retry.delays)) - 1]
        assert listed <= wait <= listed * (1 + retry.jitter)
    else:
        assert timedelta(0) <= wait <= retry.cap
        assert retry.wait(failures) <= retry.cap


def test_the_ceiling_doubles_with_each_failure_up_to_the_cap() -> None:
    retry = Retry(9, base="10s", cap="1m")
    assert [retry.wait(n, 0.5).total_seconds() for n in (1, 2, 3, 4, 9)] == [5, 10, 20, 30, 30]


def test_a_list_of_delays_gives_one_attempt_more_than_delays_and_repeats_its_last() -> None:
    retry = Retry(delays=["1s", "1m"])
    assert retry.attempts == 3
    waits = [Retry(9, delays=["1s", "1m"], jitter=0).wait(n).total_seconds() for n in (1, 2, 3, 8)]
    assert waits == [1, 60, 60, 60]


def test_runs_that_failed_together_do_not_all_come_back_together() -> None:
    waits = [Retry(delays=["100s"]).wait(1).total_seconds() for _ in range(200)]
    assert 100 <= min(waits) < 102
    assert 108 < max(waits) <= 110
    assert Retry(delays=["100s"], jitter=0).wait(1) == timedelta(seconds=100)
    assert Retry(delays=["100s"], jitter=1).wait(1, 0.5) == timedelta(seconds=150)


def test_jitter_shortens_a_doubled_wait() -> None:
    assert [Retry(9, base="10s", jitter=0).wait(n).total_seconds() for n in (1, 2, 3)] == [10, 20, 40]
    assert Retry(9, base="10s", jitter=0.5).wait(1, 0) == timedelta(seconds=5)
    assert Retry(9, base="10s").wait(1, 0) == timedelta(0)


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
        ({"jitter": 1.5}, "/retry/jitter"),
        ({"jitter": -0.1}, "/retry/jitter"),
        ({"jitter": "10%"}, "/retry/jitter"),
        ({"jitter": True}, "/retry/jitter"),
    ],
)
def test_what_cannot_be_a_retry_is_refused_with_its_place(document: Any, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Retry.parse(document)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize("document", [{"base": "-1s"}, {"base": "soon"}, {"cap": []}, {"delays": [{}]}])
def test_an_invalid_duration_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInput):
        Retry.parse(document)


def test_only_on_takes_classes_and_names() -> None:
    assert Retry(only_on=[ConnectionError, "HttpError"]).only_on == ("ConnectionError", "HttpError")
    assert Retry(only_on=["A"], max_elapsed="2h").to_document() == {
        "attempts": 3,
        "only_on": ["A"],
        "max_elapsed": "2h",
    }


def test_an_exception_that_both_lists_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"only_on has ConnectionError, which retry.never_on excludes by OSError"):
        Retry(only_on=[ConnectionError], never_on=[OSError])
    with pytest.raises(InvalidInput, match="excludes by A"):
        Retry.parse({"only_on": ["A"], "never_on": ["A"]})
    Retry(only_on=[OSError], never_on=[ConnectionError])  # all but the connections


@pytest.mark.parametrize("wrong", ["0s", "367d", "-1s", "soon"])
def test_max_elapsed_has_bounds(wrong: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        Retry(max_elapsed=wrong)
    assert "max_elapsed" in str(raised.value)


@pytest.mark.parametrize("field", ["only_on", "never_on"])
def test_a_list_of_exceptions_must_be_one(field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        Retry.parse({field: "ValueError"})
    assert raised.value.pointer == f"/retry/{field}"
