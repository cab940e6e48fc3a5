"""`H`: a value chosen by a hash, the same everywhere and for ever."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import apply_seed, at, cron, every, from_row, parse_schedule, rrule, to_document, to_row

NOW = datetime(2026, 1, 1, tzinfo=UTC)
seeds = st.text(min_size=1, max_size=20)


def plain(expression: str, seed: str, **options: bool) -> str:
    return to_row(cron(expression, seed=seed, **options)).expression  # type: ignore[arg-type]


def test_what_a_seed_chooses_never_changes() -> None:
    # Written down once: another answer would move the jobs of everyone who upgrades.
    assert plain("H H H H H", "nightly") == "4 4 15 11 2"
    assert plain("H(0-29)/10 H/6 * * *", "nightly") == "4-24/10 4-22/6 * * *"


def test_another_process_chooses_the_same() -> None:
    code = "from bellringer.schedule import cron; print(cron('H H * * *', seed='nightly').plain_expression)"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {plain("H H * * *", "nightly") + "\n"}


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_each_field_stays_within_its_values(seed: str) -> None:
    second, minute, hour, day, month, weekday = map(int, plain("H H H H H H", seed, seconds=True).split())
    assert second in range(60)
    assert minute in range(60)
    assert hour in range(24)
    assert day in range(1, 29)
    assert month in range(1, 13)
    assert weekday in range(7)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_ranges_and_steps_mean_what_they_mean_in_jenkins(seed: str) -> None:
    instants = list(cron("H(0-29) 5 * * *", seed=seed).between(NOW, NOW.replace(day=2)))
    assert len(instants) == 1
    assert instants[0].minute in range(30)
    quarters = [t.minute for t in cron("H/15 * * * *", seed=seed).between(NOW, NOW.replace(hour=1, minute=59))][:8]
    assert sorted(set(quarters)) == [min(quarters) + n * 15 for n in range(4)]
    assert min(quarters) in range(15)
    thirds = {t.minute for t in cron("H(0-29)/10 3 * * *", seed=seed).between(NOW, NOW.replace(hour=12))}
    assert thirds == {min(thirds) + n * 10 for n in range(3)}
    days = {t.isoweekday() for t in cron("0 0 * * H(1-5)/2", seed=seed).between(NOW, NOW.replace(month=3))}
    assert days in ({1, 3, 5}, {2, 4})
    late = {t.day for t in cron("0 0 H/10 * *", seed=seed).between(NOW, NOW.replace(year=2027))}
    assert max(late) <= 28


def test_many_seeds_use_the_whole_range() -> None:
    minutes = {plain("H * * * *", f"job-{n}").split()[0] for n in range(2000)}
    assert len(minutes) == 60


def test_the_fields_of_one_seed_are_chosen_apart() -> None:
    assert any(len({*plain("H H H H H", f"job-{n}").split()[:2]}) == 2 for n in range(3))


def test_the_expression_is_kept_and_the_row_is_plain() -> None:
    schedule = cron("h(00-29) 3 * * *", seed="nightly")
    assert schedule.expression == "H(0-29) 3 * * *"
    assert to_document(schedule) == {"cron": "H(0-29) 3 * * *", "seed": "nightly"}
    assert parse_schedule(to_document(schedule)) == schedule
    row = to_row(schedule)
    assert "H" not in row.expression
    again = from_row(*row)
    assert to_row(again) == row == to_row(cron(row.expression))
    assert list(again.between(NOW, NOW.replace(day=9))) == list(schedule.between(NOW, NOW.replace(day=9)))


def test_only_an_unseeded_h_takes_a_seed() -> None:
    unseeded = cron("H 3 * * *", tz="Europe/Paris", fold="both", calendar="de", shift="next")
    given = apply_seed(unseeded, "nightly")
    assert given == cron("H 3 * * *", tz="Europe/Paris", fold="both", seed="nightly", calendar="de", shift="next")
    assert apply_seed(given, "other") is given
    for other in (
        cron("0 3 * * *"),
        cron("0 0 * * THU"),
        every("1h"),
        at("2026-12-01T09:00:00Z"),
        rrule("FREQ=DAILY", start="2026-01-01T00:00"),
    ):
        assert apply_seed(other, "nightly") is other


def test_without_a_seed_it_is_evaluated_all_the_same() -> None:
    assert cron("H 3 * * *").next_after(NOW) == seeded_empty("H 3 * * *")


def seeded_empty(expression: str) -> datetime | None:
    return cron(to_row(cron(expression)).expression).next_after(NOW)


def test_what_was_spread_is_described_with_its_times() -> None:
    schedule = cron("H 3 * * *", seed="nightly")
    minute = int(schedule.plain_expression.split()[0])
    assert schedule.describe() == f"At 03:{minute:02} every day (UTC), spread by a hash"


def test_a_seed_may_choose_a_month_without_such_a_day() -> None:
    seed = next(s for s in map(str, range(500)) if plain("0 0 1 H *", s).split()[3] == "2")
    with pytest.raises(InvalidSchedule, match="never fires"):
        apply_seed(cron("0 0 31 H *"), seed)
