"""Definitions: what a job may say, and the names that things may have."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uuid_utils.compat import uuid7

from bellringer.core.jobs import Definition, check_name, shard_of
from bellringer.core.retry_policy import Retry
from bellringer.errors import InvalidInput
from bellringer.schedule import at, cron, delay, every

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def job(**more: Any) -> Definition:
    return Definition(**{"name": "job", "task": "greet", **more})


# Names


@pytest.mark.parametrize("name", ["a", "Nightly report", "отчёт", "日報", "a/b:c#1", "👩‍🚀", "x" * 200])
def test_a_name_may_be_any_visible_text(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        " a",
        "a ",
        "a\n",
        "\ta",
        "a\0b",
        "a\u202eb",
        "a\u200bb",
        "\ufeffa",
        "a\u2028b",
        "a\ud800b",
        "x" * 201,
    ],
)
def test_a_name_that_hides_something_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_name(name)
    assert (refusal.value.code, refusal.value.pointer) == ("name_charset", "/name")


@pytest.mark.parametrize("name", [None, 7, b"a", ["a"]])
def test_a_name_that_is_not_text_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput):
        check_name(name)


def test_a_name_is_kept_in_its_composed_form() -> None:
    assert check_name("cafe\N{COMBINING ACUTE ACCENT}") == "café"


@given(st.text())
def test_a_name_that_was_taken_once_is_taken_again_unchanged(text: str) -> None:
    try:
        name = check_name(text)
    except InvalidInput:
        return
    assert check_name(name) == name
    assert name.encode()


# Definitions


def test_a_plain_definition_is_fine_and_its_name_is_put_in_order() -> None:
    assert job(name="cafe\N{COMBINING ACUTE ACCENT}").validate(NOW).name == "café"


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"priority": -1}, "/priority"),
        ({"priority": 10}, "/priority"),
        ({"schedules": (every("1s"),) * 11}, "/schedules"),
        ({"schedules": (every("1s"), delay("1s"))}, "/schedules"),
        ({"schedules": (at(NOW), cron("* * * * *"))}, "/schedules"),
        ({"schedules": (at(NOW - timedelta(seconds=61)),)}, "/schedule/at"),
        ({"schedules": (at(NOW + timedelta(days=3654)),)}, "/schedule/at"),
        ({"starts_at": NOW, "ends_at": NOW - timedelta(seconds=1)}, "/ends_at"),
        ({"tags": ("a",) * 51}, "/tags"),
        ({"tags": ("a", "")}, "/tags"),
        ({"pool": ""}, "/pool"),
        ({"name": ""}, "/name"),
    ],
)
def test_a_definition_that_is_invalid_says_where(more: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        job(**more).validate(NOW)
    assert refusal.value.pointer == pointer


def test_an_instant_of_a_moment_ago_is_still_taken() -> None:
    moment = NOW - timedelta(seconds=59)
    assert job(schedules=(at(moment),)).validate(NOW).once_at == moment


def test_only_recurring_schedules_have_a_cohort() -> None:
    mixed = job(schedules=(every("1s"), cron("* * * * *")))
    assert mixed.recurring == mixed.schedules
    assert (mixed.once_at, mixed.delay) == (None, None)
    assert job(schedules=(delay("90s"),)).recurring == ()
    assert job(schedules=(delay("90s"),)).delay == timedelta(seconds=90)


def test_a_spec_holds_what_a_worker_needs() -> None:
    spec = job(args=(1,), kwargs={"a": 2}, timeout=timedelta(minutes=1), retry=Retry(5)).spec()
    assert (spec.args, spec.kwargs, spec.timeout, spec.retry) == ([1], {"a": 2}, 60, {"attempts": 5})


# Shards


def test_jobs_spread_evenly_over_the_shards() -> None:
    counts = Counter(shard_of(uuid7(), 16) for _ in range(8000))
    assert set(counts) == set(range(16))
    assert max(counts.values()) < 2 * min(counts.values())
