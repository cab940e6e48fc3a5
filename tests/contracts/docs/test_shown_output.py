"""Shown output is compared with what was printed."""

from __future__ import annotations

from tests.contracts.docs.shown_output import DURATIONS, find_difference


def test_a_line_that_was_not_printed_is_found() -> None:
    printed = "JOB          STATE\nhello.hello  enabled  in 3s\nshard 4  node-1\n"
    assert find_difference("JOB STATE\nhello.hello enabled in 1m 20s", printed) is None
    assert find_difference("hello.… enabled in 7ms\nshard 12 node-9", printed) is None
    assert find_difference("hello.hello  paused", printed) == "hello.hello  paused"
    assert find_difference("shard 4  node-1\nJOB  STATE", printed) == "JOB  STATE"


def test_only_durations_differ_where_numbers_are_compared() -> None:
    printed = "app.hourly  744  1\nclean: 744 occurrences in 31 days, simulated in 1 s\n"
    assert find_difference("app.hourly 744 1\nclean: … in 31 days, simulated in 25 s", printed, DURATIONS) is None
    assert find_difference("app.hourly 8,760 1", printed, DURATIONS) == "app.hourly 8,760 1"
    assert find_difference("clean: … in 365 days, simulated in 1 s", printed, DURATIONS) is not None
