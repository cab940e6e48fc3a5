"""What a cron expression may say, and how each refusal names the field, the place and the way out."""

from __future__ import annotations

from datetime import UTC, datetime

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
    "0 22-4/2 * NOV-FEB FRI-MON",
    "*/99 * * * *",
    "10-20/12 * * * *",
    "0 0 L-3W * *",
    "0 0 29-L * *",
    "0 H(22-3) * * H(FRI-SUN)",
]
REFUSED = [
    # (expression, code, position, what the message says)
    ("", "cron_invalid", 0, "the cron expression is empty"),
    ("    ", "cron_invalid", 0, "the cron expression is empty"),
    ("60 * * * *", "cron_invalid", 0, "minute 60 is out of range 0 to 59"),
    ("0 24 * * *", "cron_invalid", 2, "hour 24 is out of range 0 to 23"),
    ("0 0 0 * *", "cron_invalid", 4, "day of month 0 is out of range 1 to 31"),
    ("0 0 32W * *", "cron_invalid", 4, "day of month 32 is out of range 1 to 31"),
    ("0 0 1 13 *", "cron_invalid", 6, "month 13 is out of range 1 to 12"),
    ("0 0 * * 8", "cron_invalid", 8, "day of week 8 is out of range 0 to 7"),
    ("0 0 * * 1,9", "cron_invalid", 10, "day of week 9 is out of range 0 to 7"),
    ("  1-61   * * * *", "cron_invalid", 4, "minute 61 is out of range 0 to 59"),
    ("*/0 * * * *", "cron_invalid", 2, "minute */0: the step must be at least 1"),
    ("* * * *", "cron_invalid", 7, "the expression has 4 fields; it needs 5"),
    ("*", "cron_invalid", 1, "the expression has 1 field; it needs 5"),
    ("* * * * * * * *", "cron_invalid", 10, "the expression has 8 fields; it needs 5"),
    ("1,,2 * * * *", "cron_invalid", 2, "the minute field has an empty list item"),
    ("1, * * * *", "cron_invalid", 2, "the minute field has an empty list item"),
    ("1-2-3 * * * *", "cron_invalid", 0, "minute 1-2-3 is not a value, range or step"),
    ("*/*/2 * * * *", "cron_invalid", 0, "minute */*/2 is not a value, range or step"),
    ("-5 * * * *", "cron_invalid", 0, "minute -5 is not a value, range or step"),
    ("*5 * * * *", "cron_invalid", 0, "minute *5 is not a value, range or step"),
    ("L * * * *", "cron_invalid", 0, "minute L is neither a name nor a number"),
    ("0 0 MON * *", "cron_invalid", 4, "day of month MON is neither a name nor a number"),
    ("0 0 * MON *", "cron_invalid", 6, "month MON is neither a name nor a number"),
    ("0 0 * * MONDAY", "cron_invalid", 8, "day of week MONDAY is neither a name nor a number"),
    ("0 0 * * L", "cron_invalid", 8, "day of week L is neither a name nor a number"),
    ("0 0 * * MON#6", "cron_invalid", 12, "the number after # must be 1 to 5"),
    ("0 0 * * MON#0", "cron_invalid", 12, "the number after # must be 1 to 5"),
    ("0 0 L-0 * *", "cron_invalid", 4, "day of month L-0 is out of range L-1 to L-30"),
    ("0 0 L-31 * *", "cron_invalid", 4, "day of month L-31 is out of range L-1 to L-30"),
    ("0 0 1-5W * *", "cron_invalid", 4, "day of month 1-5W is not a value, range or step"),
    ("0 0 1#2 * *", "cron_invalid", 4, "day of month 1#2 is not a value, range or step"),
    ("@dayly", "cron_invalid", 0, "unknown alias @dayly"),
    ("@daily 5", "cron_invalid", 7, "@daily takes no further fields"),
    ("٠ ٠ * * *", "cron_charset", 0, "the character '\\u0660' is not allowed"),
    ("0 0 *\n* *", "cron_charset", 5, "the character '\\n' is not allowed"),
    ("0 0\v* * *", "cron_charset", 3, "the character '\\x0b' is not allowed"),
    ("0 0 * * *\x00", "cron_charset", 9, "the character '\\x00' is not allowed"),
    ("0 $ * * *", "cron_charset", 2, "the hour field contains '$'"),
    ("0 (1) * * *", "cron_charset", 2, "the hour field contains '('"),
    ("* * * * * *", "cron_unsupported", 10, "the expression has six fields, but seconds are not enabled"),
    ("* * * * * * *", "cron_dialect", 12, "the default dialect has no year field"),
    ("0 9 * * MON 2026", "cron_dialect", 12, "the default dialect has no year field"),
    ("0 ? * * *", "cron_invalid", 2, "? stands alone, in the day of month or the day of week field"),
    ("0 0 ?/2 * *", "cron_invalid", 4, "? stands alone, in the day of month or the day of week field"),
    ("CRON_TZ=Europe/Pariss 0 9 * * *", "timezone_unknown", 0, "unknown time zone 'Europe/Pariss'"),
    ("CRON_TZ=Europe/Paris", "cron_invalid", 20, "has a time zone, but no fields"),
    ("CRON_TZ=Europe/Paris 0 99 * * *", "cron_invalid", 23, "hour 99 is out of range"),
    ("0 0 L-31W * *", "cron_invalid", 4, "day of month L-31 is out of range L-1 to L-30"),
    ("0 0 40-L * *", "cron_invalid", 4, "day of month 40 is out of range 1 to 31"),
    ("H(0-9)/99 * * * *", "cron_range", 7, "the step exceeds the range of 10 values"),
    ("cron(0 9 ? * MON *)", "cron_dialect", 0, "this looks like an expression for AWS EventBridge"),
    ("@every 1s", "cron_unsupported", 0, "@every is not a cron expression"),
    ("@reboot", "cron_unsupported", 0, "@reboot is not supported"),
    ("R R * * *", "cron_unsupported", 0, "R (a random time for each run) is not supported in the minute field"),
    ("H(0-60) * * * *", "cron_invalid", 4, "minute 60 is out of range 0 to 59"),
    ("0 0 H(20-31) * *", "cron_range", 9, "day of month H(20-31) exceeds 28"),
    ("H/0 * * * *", "cron_invalid", 2, "the step must be at least 1"),
    ("H(0-9)/11 * * * *", "cron_range", 7, "the step exceeds the range of 10 values"),
    ("H(5) * * * *", "cron_invalid", 0, "minute H(5) is not a value, range or step"),
    ("H(0-29 * * * *", "cron_charset", 1, "the minute field contains '('"),
    ("1,H5 * * * *", "cron_invalid", 2, "minute H5 is not a value, range or step"),
    ("0 12 * * ? *", "cron_dialect", 9, "this looks like an expression for AWS EventBridge"),
    ("0 15 10 ? * 6L", "cron_dialect", 8, "this looks like an expression for Quartz"),
    ("0 15 10 ? * 6L 2026", "cron_dialect", 8, "this looks like an expression for Quartz"),
    ("0 0 30 2 *", "cron_never_fires", 4, "the cron expression never fires"),
    ("0  0   31 4,6,9,11 *", "cron_never_fires", 7, "the cron expression never fires"),
    ("0 0 L-29 FEB *", "cron_never_fires", 4, "the cron expression never fires"),
    ("0 0 */30 2 MON#5", "cron_never_fires", 4, "the cron expression never fires"),
    ("0 0 30W 2 *", "cron_never_fires", 4, "the cron expression never fires"),
    ("1" * 257, "cron_too_long", 256, "the cron expression has 257 characters; the maximum is 256"),
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
        ("0 12 * * ? *", 'pass dialect="aws"'),
        ("0 15 10 ? * 6L", 'pass dialect="quartz"'),
        ("0 15 10 ? * 6L 2026", 'pass dialect="quartz"'),
        ("* * * * * * *", 'pass dialect="quartz"'),
        ("@every 90s", 'every("90s")'),
        ("@dayly", "did you mean @daily?"),
        ("* * * * * *", "pass seconds=True"),
        ("0 0 * * MON-WED#1", "write MON#1,TUE#1,WED#1"),
        ("0 0 * * 1-2#3", "write MON#3,TUE#3"),
        ("0 0 * * L5", "write 5L"),
        ("0 0 * * LFRI", "write FRIL"),
        ("0 0 W15 * *", "write 15W"),
        ("0 0 * * MONDAY", "use the three-letter name: MON"),
        ("0 0 * JANUARY *", "use the three-letter name: JAN"),
        ("0 0 * * L", "for example FRIL"),
        ("L * * * *", "L is only allowed in the day of month or the day of week field"),
        ("0 0 * * 15W", "W is only allowed in the day of month field"),
        ("0 0 1#2 * *", "# is only allowed in the day of week field"),
        ("0 0 * FOO *", "use numbers 1–12 or names JAN–DEC"),
        ("x * * * *", "use numbers 0–59"),
    ],
)
def test_a_refusal_says_what_to_do(expression: str, hint: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        cron(expression)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "0\t9 * * MON-FRI",
        "0\t9\t*\t*\tMON-FRI\n",
        "  0 9 * *  MON-FRI \r\n",
        "\n0 9 * * MON-FRI\n\n",
        "0 9 ? * MON-FRI",
    ],
)
def test_fields_may_be_separated_by_tabs_and_the_line_may_end(expression: str) -> None:
    assert cron(expression).expression == "0 9 * * MON-FRI"


def test_six_fields_put_the_second_first() -> None:
    assert cron("30 0 9 * * *", seconds=True).expression == "30 0 9 * * *"


def test_five_fields_are_too_few_where_seconds_are_asked_for() -> None:
    with pytest.raises(InvalidSchedule, match=r"the expression has 5 fields; it needs 6 \(second, minute") as caught:
        cron("0 9 * * *", seconds=True)
    assert caught.value.code == "cron_invalid"


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"]])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidSchedule, match="a cron expression must be a string") as caught:
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
        ("*/90 * * * *", "0 * * * *"),
        ("55/10 * * * *", "55 * * * *"),
        ("0 22-4 * * *", "0 22-23,0-4 * * *"),
        ("0 22-4/2 * * *", "0 22,0,2,4 * * *"),
        ("0 20-5/3 * * *", "0 20,23,2,5 * * *"),
        ("50-10/20 * * * *", "50,10 * * * *"),
        ("0 0 * * FRI-MON", "0 0 * * FRI,SAT,SUN,MON"),
        ("0 0 * * SAT-SUN", "0 0 * * 6,0"),
        ("0 0 * * FRI-TUE/2", "0 0 * * FRI,SUN,TUE"),
        ("0 0 * * 7-1", "0 0 * * 0,1"),
        ("0 0 * * 1,SAT-SUN", "0 0 * * 0,1,6"),
        ("0 0 28-2 * *", "0 0 1,2,28-31 * *"),
        ("0 0 29-L * *", "0 0 29-31 * *"),
        ("0 0 1-L/8 * *", "0 0 1,9,17,25 * *"),
        ("0 0 ? * MON", "0 0 * * MON"),
        ("0 0 13 * ?", "0 0 13 * *"),
    ],
)
def test_two_ways_to_say_the_same_have_the_same_occurrences(one: str, other: str) -> None:
    from datetime import timedelta

    start = datetime(2026, 5, 1, tzinfo=UTC)
    end = start + timedelta(days=40)
    assert list(cron(one).between(start, end)) == list(cron(other).between(start, end))
