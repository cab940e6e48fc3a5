"""What a cron expression may say, and how each refusal names the field, the place and the way out."""

from __future__ import annotations

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import cron

ACCEPTED = [
    "* * * * *",
    "0 9 * * mon-fri",
    "*/15 0-23/2 1,15,L * *",
    "5/15 * * * *",
    "0 0 L-3 * *",
    "0 0 L-30 * *",
    "0 0 LW * *",
    "0 0 1W,15W,31W * *",
    "0 0 * * 5L",
    "0 0 * * fril",
    "0 0 * * MON#2,3#5",
    "0 0 * * 0,7",
    "0 0 * * 5-7",
    "*/60 */24 */31 */12 */7",
    "0 0 29 2 *",
    "0 0 31 */2 *",
    "0 0 30 2 MON",
]
REFUSED = [
    # (expression, code, position, what the message says)
    ("", "cron_invalid", 0, "the cron expression is empty"),
    ("    ", "cron_invalid", 0, "the cron expression is empty"),
    ("60 * * * *", "cron_invalid", 0, "minute 60 is out of range 0–59"),
    ("0 24 * * *", "cron_invalid", 2, "hour 24 is out of range 0–23"),
    ("0 0 0 * *", "cron_invalid", 4, "day of month 0 is out of range 1–31"),
    ("0 0 32W * *", "cron_invalid", 4, "day of month 32 is out of range 1–31"),
    ("0 0 1 13 *", "cron_invalid", 6, "month 13 is out of range 1–12"),
    ("0 0 * * 8", "cron_invalid", 8, "day of week 8 is out of range 0–7"),
    ("0 0 * * 1,9", "cron_invalid", 10, "day of week 9 is out of range 0–7"),
    ("  1-61   * * * *", "cron_invalid", 4, "minute 61 is out of range 0–59"),
    ("*/0 * * * *", "cron_invalid", 2, "minute */0 has a step of 0"),
    ("* * * *", "cron_invalid", 7, "4 fields where 5 are needed"),
    ("*", "cron_invalid", 1, "1 field where 5 are needed"),
    ("* * * * * * * *", "cron_invalid", 10, "8 fields where 5 are needed"),
    ("1,,2 * * * *", "cron_invalid", 2, "minute has an empty place in its list"),
    ("1, * * * *", "cron_invalid", 2, "minute has an empty place in its list"),
    ("1-2-3 * * * *", "cron_invalid", 0, "minute 1-2-3 is not a value, a range or a step"),
    ("*/*/2 * * * *", "cron_invalid", 0, "minute */*/2 is not a value, a range or a step"),
    ("-5 * * * *", "cron_invalid", 0, "minute -5 is not a value, a range or a step"),
    ("*5 * * * *", "cron_invalid", 0, "minute *5 is not a value, a range or a step"),
    ("L * * * *", "cron_invalid", 0, "minute L is not a known name or number"),
    ("0 0 MON * *", "cron_invalid", 4, "day of month MON is not a known name or number"),
    ("0 0 * MON *", "cron_invalid", 6, "month MON is not a known name or number"),
    ("0 0 * * MONDAY", "cron_invalid", 8, "day of week MONDAY is not a known name or number"),
    ("0 0 * * L", "cron_invalid", 8, "day of week L is not a known name or number"),
    ("0 0 * * MON#6", "cron_invalid", 12, "the number after # is out of range 1–5"),
    ("0 0 * * MON#0", "cron_invalid", 12, "the number after # is out of range 1–5"),
    ("0 0 L-0 * *", "cron_invalid", 4, "day of month L-0 is out of range L-1–L-30"),
    ("0 0 L-31 * *", "cron_invalid", 4, "day of month L-31 is out of range L-1–L-30"),
    ("0 0 1-5W * *", "cron_invalid", 4, "day of month 1-5W is not a value, a range or a step"),
    ("0 0 1#2 * *", "cron_invalid", 4, "day of month 1#2 is not a value, a range or a step"),
    ("@dayly", "cron_invalid", 0, "@dayly is not a known alias"),
    ("@daily 5", "cron_invalid", 7, "@daily stands alone"),
    ("5-1 * * * *", "cron_range", 0, "minute 5-1 runs backwards"),
    ("0 0 * * FRI-MON", "cron_range", 8, "day of week FRI-MON runs backwards"),
    ("0 0 * * 1,SAT-SUN", "cron_range", 10, "day of week SAT-SUN runs backwards"),
    ("*/99 * * * *", "cron_range", 2, "minute */99 has a step beyond its range of 60 values"),
    ("10-20/12 * * * *", "cron_range", 6, "has a step beyond its range of 11 values"),
    ("55/6 * * * *", "cron_range", 3, "has a step beyond its range of 5 values"),
    ("٠ ٠ * * *", "cron_charset", 0, "the character '\\u0660' is not allowed"),
    ("0\t0 * * *", "cron_charset", 1, "the character '\\t' is not allowed"),
    ("0 0 * * *\n", "cron_charset", 9, "the character '\\n' is not allowed"),
    ("0 0 * * *\x00", "cron_charset", 9, "the character '\\x00' is not allowed"),
    ("0 $ * * *", "cron_charset", 2, "hour has the character '$'"),
    ("0 (1) * * *", "cron_charset", 2, "hour has the character '('"),
    ("* * * * * *", "cron_unsupported", 10, "six fields begin with the second"),
    ("* * * * * * *", "cron_unsupported", 10, "a field for the year is not supported"),
    ("@every 1s", "cron_unsupported", 0, "@every is not a cron expression"),
    ("@reboot", "cron_unsupported", 0, "@reboot is not supported"),
    ("R R * * *", "cron_unsupported", 0, "minute R (another time every time) is not supported"),
    ("H(30-10) * * * *", "cron_range", 0, "minute H(30-10) runs backwards"),
    ("H(0-60) * * * *", "cron_invalid", 4, "minute 60 is out of range 0–59"),
    ("0 0 H(20-31) * *", "cron_range", 9, "day of month H(20-31) goes beyond 28"),
    ("H/0 * * * *", "cron_invalid", 2, "has a step of 0"),
    ("H(0-9)/11 * * * *", "cron_range", 7, "has a step beyond its range of 10 values"),
    ("H(5) * * * *", "cron_invalid", 0, "minute H(5) is not a value, a range or a step"),
    ("H(0-29 * * * *", "cron_charset", 1, "minute has the character '('"),
    ("1,H5 * * * *", "cron_invalid", 2, "minute H5 is not a value, a range or a step"),
    ("CRON_TZ=Europe/Paris 0 9 * * *", "cron_unsupported", 0, "a time zone inside the cron expression"),
    ("TZ=UTC 0 9 * * *", "cron_unsupported", 0, "a time zone inside the cron expression"),
    ("0 0 ? * MON", "cron_unsupported", 4, "day of month ? is not supported"),
    ("0 0 30 2 *", "cron_never_fires", 4, "the cron expression never fires"),
    ("0  0   31 4,6,9,11 *", "cron_never_fires", 7, "the cron expression never fires"),
    ("0 0 L-29 FEB *", "cron_never_fires", 4, "the cron expression never fires"),
    ("0 0 */30 2 MON#5", "cron_never_fires", 4, "the cron expression never fires"),
    ("0 0 30W 2 *", "cron_never_fires", 4, "the cron expression never fires"),
    ("1" * 257, "cron_too_long", 256, "the cron expression has 257 characters, more than 256"),
    ("0," * 600_000 + "0 * * * *", "cron_too_long", 256, "the cron expression has 1200009 characters"),
]


@pytest.mark.parametrize("expression", ACCEPTED)
def test_the_grammar_takes(expression: str) -> None:
    assert cron(expression).expression == expression.upper()


@pytest.mark.parametrize(("expression", "code", "position", "message"), REFUSED)
def test_the_grammar_refuses(expression: str, code: str, position: int, message: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        cron(expression)
    assert (caught.value.code, caught.value.position) == (code, position)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("0 0 ? * MON", "write *"),
        ("@every 90s", 'every("90s")'),
        ("@dayly", "did you mean @daily?"),
        ("TZ=UTC 0 9 * * *", "name the zone with tz="),
        ("* * * * * *", "pass seconds=True"),
        ("0 0 * * SAT-SUN", "write SAT-7"),
        ("0 22-4 * * *", "write it as two: 22-23,0-4"),
        ("0 0 * * MONDAY", "names have three letters: MON"),
        ("0 0 * JANUARY *", "names have three letters: JAN"),
        ("0 0 * * L", "such as FRIL"),
        ("L * * * *", "L belongs in the day of month or the day of week"),
        ("0 0 * * 15W", "W belongs in the day of month"),
        ("0 0 1#2 * *", "# belongs in the day of week"),
        ("0 0 * FOO *", "use numbers 1–12 or names JAN–DEC"),
        ("x * * * *", "use numbers 0–59"),
    ],
)
def test_a_refusal_says_what_to_do(expression: str, hint: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        cron(expression)
    assert hint in caught.value.hint


def test_six_fields_put_the_second_first() -> None:
    assert cron("30 0 9 * * *", seconds=True).expression == "30 0 9 * * *"


def test_five_fields_are_too_few_where_seconds_are_asked_for() -> None:
    with pytest.raises(InvalidSchedule, match=r"5 fields where 6 are needed \(second, minute") as caught:
        cron("0 9 * * *", seconds=True)
    assert caught.value.code == "cron_invalid"


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"]])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidSchedule, match="a cron expression is text") as caught:
        cron(value)  # type: ignore[arg-type]
    assert caught.value.code == "cron_invalid"


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("  */15   * *  * * ", "*/15 * * * *"),
        ("00 09 * jan-mar mon", "0 9 * JAN-MAR MON"),
        ("@daily", "0 0 * * *"),
        ("@MIDNIGHT", "0 0 * * *"),
        (" @hourly ", "0 * * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_an_expression_is_kept_in_its_canonical_form(typed: str, canonical: str) -> None:
    assert cron(typed).expression == canonical
    assert cron(typed) == cron(canonical)


def test_an_alias_gains_its_second_where_seconds_are_asked_for() -> None:
    assert cron("@daily", seconds=True).expression == "0 0 0 * * *"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5/15 * * * *", "5,20,35,50 * * * *"),
        ("0 0 * * 5/1", "0 0 * * 5,6,7"),
        ("0 0 * * */3", "0 0 * * SUN,WED,SAT"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("*/60 * * * *", "0 * * * *"),
    ],
)
def test_two_ways_to_say_the_same_have_the_same_occurrences(one: str, other: str) -> None:
    from datetime import UTC, datetime, timedelta

    start = datetime(2026, 5, 1, tzinfo=UTC)
    end = start + timedelta(days=40)
    assert list(cron(one).between(start, end)) == list(cron(other).between(start, end))
