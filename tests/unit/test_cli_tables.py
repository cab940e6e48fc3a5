"""Tables on narrow terminals: states, times and ids are shown whole, whatever else has to give way."""

from __future__ import annotations

import pytest

from bellringer.cli.output import (
    COLUMN_GAP,
    KEPT_COLUMNS,
    LAST_RESORT_TEXT_WIDTH,
    TEXT_COLUMNS,
    fit_columns,
    format_age,
)

JOBS = ("STATUS", "NAME", "SCHEDULE", "NEXT", "TASK", "POOL")
RUNS = ("STATE", "JOB", "DUE", "LATE", "TOOK", "TRY", "CAUSE", "RUN")


def total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)


def test_a_wide_terminal_shows_everything_as_it_is() -> None:
    assert fit_columns(JOBS, [8, 40, 50, 10, 30, 8], 200) == dict(enumerate([8, 40, 50, 10, 30, 8]))


def test_long_texts_are_shortened_before_a_column_is_left_out() -> None:
    fitting = fit_columns(JOBS, [6, 30, 50, 7, 19, 5], 80)
    assert list(fitting) == [0, 1, 2, 3, 4, 5]
    assert total(fitting) == 80
    assert (fitting[0], fitting[3], fitting[5]) == (6, 7, 5)


def test_the_run_id_state_and_time_are_never_cut() -> None:
    fitting = fit_columns(RUNS, [9, 14, 9, 5, 6, 3, 8, 37], 80)
    assert {RUNS[i] for i in fitting} >= {"STATE", "JOB", "DUE", "RUN"}
    assert (fitting[0], fitting[2], fitting[7]) == (9, 9, 37)
    assert total(fitting) <= 80


@pytest.mark.parametrize("available", range(40, 160, 7))
@pytest.mark.parametrize("head", [JOBS, RUNS])
def test_every_width_keeps_the_important_columns(head: tuple[str, ...], available: int) -> None:
    widths = [37 if title == "RUN" else 45 if title in TEXT_COLUMNS else 9 for title in head]
    fitting = fit_columns(head, widths, available)
    kept = {i for i, title in enumerate(head) if i == 0 or title in KEPT_COLUMNS}
    assert kept <= fitting.keys()
    assert all(fitting[i] == widths[i] for i in fitting if head[i] not in TEXT_COLUMNS)
    assert total(fitting) <= available or all(
        fitting[i] <= LAST_RESORT_TEXT_WIDTH for i in fitting if head[i] in TEXT_COLUMNS
    )


def test_times_are_left_out_after_texts() -> None:
    head = ("KIND", "JOB", "WHEN", "DUE", "WHAT", "RUN")
    fitting = fit_columns(head, [18, 45, 9, 9, 60, 37], 80)
    assert [head[i] for i in fitting] == ["KIND", "JOB", "DUE", "RUN"]
    fitting = fit_columns(head, [18, 45, 9, 9, 60, 5], 80)
    assert [head[i] for i in fitting] == list(head)
    assert total(fitting) == 80
    assert (fitting[0], fitting[2], fitting[3], fitting[5]) == (18, 9, 9, 5)


def test_an_age_is_never_negative() -> None:
    """A host whose clock is ahead of the database's writes times that are still to come."""
    assert [format_age(seconds) for seconds in (0.281, 3.04, 90.0, 0.0, -599.684)] == [
        "281 ms ago",
        "3 s ago",
        "1m 30s ago",
        "now",
        "now",
    ]
