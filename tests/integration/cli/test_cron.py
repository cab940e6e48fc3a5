"""`bellringer cron explain`: what a schedule means, when it fires, how often, and what may surprise."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from bellringer.cli import cli


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cron", "explain", *arguments])


def test_the_choices_for_clock_changes_are_shown_at_work() -> None:
    near = ("30 1 * * *", "--tz", "America/New_York", "-n", "2", "--from", "2026-10-31T12:00")
    assert "the schedule fires only the second time" in explain(*near, "--fold", "second").output
    both = explain(*near, "--fold", "both").output.splitlines()
    assert both[1].endswith("2026-11-01 05:30Z   DST: this local time occurs twice; this is the first")
    assert both[2].endswith("2026-11-01 06:30Z   DST: this local time occurs twice; this is the second")
    gap = explain("30 2 * * *", "--tz", "America/New_York", "--gap", "skip", "-n", "1", "--from", "2026-03-08").output
    assert "2026-03-09 06:30Z" in gap
    assert "! on 2026-03-08 the clock skips the scheduled time: the job does not run" in gap


def test_a_seed_chooses_and_its_absence_is_remarked() -> None:
    seeded = explain("H 3 * * *", "--seed", "nightly", "--from", "2026-01-01")
    assert "spread by a hash" in seeded.output
    assert "!" not in seeded.output
    assert "! H has no seed" in explain("H 3 * * *", "--from", "2026-01-01").output


def test_a_rule_is_explained_like_an_expression() -> None:
    rule = ("--rrule", "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", "--start", "2026-01-02T09:00")
    result = explain(*rule, "--from", "2026-01-01")
    assert result.output.splitlines() == [
        "Every 2 weeks on Friday at 09:00 from 2026-01-02 on (UTC)",
        "  Fri 2026-01-02 09:00+00:00   2026-01-02 09:00Z",
        "  Fri 2026-01-16 09:00+00:00   2026-01-16 09:00Z",
        "  Fri 2026-01-30 09:00+00:00   2026-01-30 09:00Z",
        "  Fri 2026-02-13 09:00+00:00   2026-02-13 09:00Z",
        "  Fri 2026-02-27 09:00+00:00   2026-02-27 09:00Z",
        "  fires per day: 0.1 on average over the next 30 days, at most 1",
    ]


def test_json_shows_the_rate_and_the_warnings() -> None:
    document = json.loads(explain("0 0 13 * FRI", "--from", "2026-01-01", "-o", "json").output)
    assert document["busiest_day"] == 1
    assert document["fires_per_day"] == pytest.approx(6 / 30)
    assert [warning["code"] for warning in document["warnings"]] == ["dom_and_dow"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either EXPR or --rrule"),
        (["* * * * *", "--rrule", "FREQ=DAILY"], "give either EXPR or --rrule"),
        (["* * * * *", "--start", "2026-01-01T00:00"], "--start, --exdate and --rdate need --rrule"),
        (["--rrule", "FREQ=DAILY", "--start", "2026-01-01T00:00", "--times", "3"], "--times need EXPR"),
        (["0 15 10 ? * 6L"], "this looks like an expression for Quartz"),
        (["--rrule", "FREQ=DAILY"], "--rrule needs --start"),
        (["--rrule", "FREQ=DAILY", "--start", "2026-01-01T00:00", "--seed", "x"], "need EXPR"),
        (["--rrule", "FREQ=HOURLY", "--start", "2026-01-01T00:00"], "FREQ=HOURLY is not supported"),
        (["0 3 * * *", "--seed", "x"], "the expression has no H"),
    ],
)
def test_a_wrong_call_is_refused(arguments: list[str], says: str) -> None:
    result = explain(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr.splitlines()[0]


def test_a_mistake_in_a_rule_is_pointed_at() -> None:
    result = explain("--rrule", "FREQ=DAILY;BYDAY=XX", "--start", "2026-01-01T00:00")
    assert result.stderr.splitlines()[1:3] == ["  FREQ=DAILY;BYDAY=XX", f"  {chr(94):>18}"]


def test_dialects_counts_and_exceptions_are_explained() -> None:
    quartz = explain("0 15 10 ? * 6L 2026-2028", "--dialect", "quartz", "-n", "1", "--from", "2026-01-01")
    assert quartz.output.splitlines()[:2] == [
        "At 10:15 on the last Friday of the month, only in 2026 to 2028 (UTC)",
        "  Fri 2026-01-30 10:15+00:00   2026-01-30 10:15Z",
    ]
    both = explain("0 0 13 * FRI", "--day-match", "both", "-n", "1", "--from", "2026-01-01")
    assert "Fri 2026-02-13" in both.output
    counted = json.loads(explain("0 9 * * *", "--times", "2", "--from", "2026-01-01", "-o", "json").output)
    assert [fire["at"] for fire in counted["fires"]] == ["2026-01-01T09:00:00Z", "2026-01-02T09:00:00Z"]
    assert counted["schedule"] == {"cron": "0 9 * * *", "times": 2}
    rule = ("--rrule", "FREQ=DAILY", "--start", "2026-01-01T09:00", "--exdate", "2026-01-02", "-n", "2")
    assert (
        "– 2026-01-02 09:00+00:00   2026-01-02 09:00 is excluded by an EXDATE"
        in explain(*rule, "--from", "2026-01-01").output
    )
    lines = "DTSTART;TZID=Europe/Berlin:20260101T090000\nRRULE:FREQ=DAILY"
    assert "from 2026-01-01 on (Europe/Berlin)" in explain("--rrule", lines, "--from", "2026-01-01").output


def test_plain_english_is_parsed() -> None:
    arguments = ["cron", "parse", "every weekday at 9:30 in Berlin", "-n", "1", "--from", "2026-01-01"]
    result = CliRunner().invoke(cli, arguments)
    assert result.output.splitlines()[:6] == [
        "At 09:30 on Monday to Friday (Europe/Berlin)",
        '  {"cron":"30 9 * * MON-FRI","tz":"Europe/Berlin"}',
        "  in Berlin: time zone Europe/Berlin",
        "  every weekday: Monday to Friday; a calendar can leave out holidays",
        "  at 9:30: at 09:30",
        "  Thu 2026-01-01 09:30+01:00   2026-01-01 08:30Z",
    ]
    document = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).output)
    assert document["understood"][0] == {"text": "in Berlin", "meaning": "time zone Europe/Berlin"}
    refused = CliRunner().invoke(cli, ["cron", "parse", "every blursday at 9:00"])
    assert refused.exit_code == 2
    assert "the part 'blursday' was not understood" in refused.stderr
