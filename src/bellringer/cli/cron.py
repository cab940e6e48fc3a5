"""`bellringer cron explain` and `bellringer cron parse`: work without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.output import output_option, to_compact_json, to_json
from bellringer.errors import InvalidSchedule

if TYPE_CHECKING:
    from bellringer.schedule import Cron, PlannedFire, Rrule, Schedule, SchedulePreview

FLAGS: Final = {
    "dst_gap": "DST: this local time does not exist; fires at the first moment after the gap",
    "dst_fold_first": "DST: this local time occurs twice; this is the first",
    "dst_fold_second": "DST: this local time occurs twice; this is the second",
}
MAX_EXCLUDED: Final = 20
ONLY: Final = {
    "first": "DST: this local time occurs twice; fires only the first time",
    "second": "DST: this local time occurs twice; fires only the second time",
}


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer cron explain '30 2 * * *' --tz Europe/Paris
    bellringer cron parse 'every weekday at 9:30 in Berlin'
    """,
)
def cron() -> None:
    """Work with cron expressions and recurrence rules."""


@cron.command(
    examples="""
    bellringer cron explain '0 9 * * MON-FRI' --tz Europe/Paris
    bellringer cron explain '30 2 * * *' --tz Europe/Paris -n 3 --from 2026-03-28
    bellringer cron explain '0 15 10 ? * 6L 2026-2028' --dialect quartz
    bellringer cron explain '0 0 13 * FRI' --day-match both
    bellringer cron explain --rrule 'FREQ=WEEKLY;INTERVAL=2;BYDAY=FR' --start 2026-01-02T09:00
    """
)
@click.argument("expression", metavar="[EXPR]", required=False)
@click.option("--rrule", "rule", metavar="RULE", help="Recurrence rule (RFC 5545) instead of EXPR.")
@click.option("--start", "begin", metavar="TIME", help="First local time of the rule.")
@click.option("--exdate", multiple=True, metavar="TIME", help="Local time or day that the rule omits. Repeatable.")
@click.option("--rdate", multiple=True, metavar="TIME", help="Local time that the rule has in addition. Repeatable.")
@click.option("--tz", metavar="ZONE", help="Time zone.  [default: UTC]")
@click.option("--seconds", is_flag=True, help="EXPR has six fields, seconds first.")
@click.option("--dialect", type=click.Choice(["unix", "quartz", "aws"]), help="Dialect of EXPR.  [default: unix]")
@click.option(
    "--day-match",
    type=click.Choice(["either", "both"]),
    help="Days that must match day of month and day of week.  [default: as crontab]",
)
@click.option("--times", type=click.IntRange(1), help="End after this many occurrences, counted from --from.")
@click.option(
    "--gap",
    type=click.Choice(["next", "skip"]),
    help="Local times skipped by a DST change.  [default: next; skip after a leading *]",
)
@click.option(
    "--fold",
    type=click.Choice(["first", "second", "both"]),
    help="Local times repeated by a DST change.  [default: first; both after a leading *]",
)
@click.option("--seed", metavar="TEXT", help="Seed for the values of H; for a job, its name.")
@click.option(
    "-n", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of occurrences to show."
)
@click.option("--from", "since", metavar="TIME", help="Show occurrences after this local time.  [default: now]")
@output_option("table", "json")
def explain(*, count: int, since: str | None, output: str, **said: Any) -> None:
    """Describe EXPR and list its next occurrences."""
    schedule = _schedule(**said)
    _print(schedule, _start(since, schedule.timezone), count, output, with_seconds=bool(said["seconds"]))


@cron.command(
    "parse",
    examples="""
    bellringer cron parse 'every weekday at 9:30 in Berlin'
    bellringer cron parse 'first monday of the month at 08:00' --tz Europe/Paris -o json
    """,
)
@click.argument("text")
@click.option("--tz", metavar="ZONE", help="Time zone, if TEXT names none.  [default: UTC]")
@click.option(
    "-n", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of occurrences to show."
)
@click.option("--from", "since", metavar="TIME", help="Show occurrences after this local time.  [default: now]")
@output_option("table", "json")
def parse(*, text: str, tz: str | None, count: int, since: str | None, output: str) -> None:
    """Read a schedule from plain English and list its next occurrences."""
    from bellringer.schedule import parse_schedule, read_schedule

    after = _start(since, tz or "UTC")
    found = read_schedule(text, now=after, tz=tz)
    understood = [(part.text, part.meaning) for part in found.understood]
    _print(parse_schedule(found.document), after, count, output, understood=understood)


def _print(
    schedule: Schedule,
    after: datetime,
    count: int,
    output: str,
    *,
    with_seconds: bool = False,
    understood: Sequence[tuple[str, str]] = (),
) -> None:
    from bellringer.schedule import bind_repeat, excluded_fires, next_fires, summarize_schedule, to_document

    counted = bind_repeat(schedule, after)
    fires, ahead = next_fires(counted, after, count), summarize_schedule(counted, after)
    excluded = excluded_fires(counted, after, fires[-1].at if fires else after, MAX_EXCLUDED)
    if output == "json":
        document = {
            "schedule": to_document(schedule),
            "description": schedule.describe(),
            "fires": [{"at": f.at, "local": f.local.isoformat(), "flags": f.flags} for f in fires],
            "fires_per_day": ahead.fires_per_day,
            "busiest_day": ahead.busiest_day,
            "clock_change": ahead.clock_change,
            "warnings": [{"code": warning.code, "text": warning.text} for warning in ahead.warnings],
            "excluded": [{"at": e.at, "local": e.local.isoformat(), "reason": e.reason.text} for e in excluded],
        }
        if understood:
            document["understood"] = [{"text": text, "meaning": meaning} for text, meaning in understood]
        click.echo(to_json(document))
        return
    click.echo(schedule.describe())
    if understood:
        click.echo(f"  {to_compact_json(to_document(schedule))}")
        for text, meaning in understood:
            click.echo(f"  {text or '(default)'}: {meaning}")
    with_seconds = with_seconds or any(fire.at.second for fire in fires)
    for fire in fires:
        click.echo(_line(fire, schedule, with_seconds=with_seconds))
    for one in excluded:
        click.echo(f"  – {one.local.isoformat(sep=' ', timespec='minutes')}   {one.reason.text}")
    click.echo(_rate(ahead))
    for warning in ahead.warnings:
        click.echo(f"  ! {warning.text}")


def _schedule(
    *,
    expression: str | None,
    rule: str | None,
    begin: str | None,
    exdate: tuple[str, ...],
    rdate: tuple[str, ...],
    tz: str | None,
    seconds: bool,
    dialect: str | None,
    day_match: str | None,
    times: int | None,
    gap: str | None,
    fold: str | None,
    seed: str | None,
) -> Cron | Rrule:
    from bellringer.schedule import cron, rrule

    if (expression is None) == (rule is None):
        fail("give either EXPR or --rrule", "bellringer cron explain '0 9 * * MON-FRI'")
    if expression is not None:
        if begin is not None or exdate or rdate:
            fail("--start, --exdate and --rdate need --rrule", "use --from to choose where the list begins")
        options: dict[str, Any] = {"day_match": day_match, "times": times, "gap": gap, "fold": fold, "seed": seed}
        with show_error_position(expression):
            return cron(expression, tz=tz, seconds=seconds, dialect=dialect or "unix", **options)
    if seconds or seed is not None or dialect or day_match or times:
        fail(
            "--seconds, --seed, --dialect, --day-match and --times need EXPR",
            "remove them, or replace --rrule by EXPR",
        )
    if begin is None and "DTSTART" not in (rule or "").upper():
        fail("--rrule needs --start", "give the first local time, such as --start 2026-01-02T09:00")
    assert rule is not None, "one of the two was given"
    with show_error_position(rule):
        return rrule(rule, start=begin, tz=tz, exdate=exdate, rdate=rdate, gap=gap, fold=fold)


def _line(fire: PlannedFire, schedule: Schedule, *, with_seconds: bool) -> str:
    local = fire.local.isoformat(sep=" ", timespec="seconds" if with_seconds else "minutes")
    utc = f"{fire.at:%Y-%m-%d %H:%M}{f':{fire.at.second:02}' if with_seconds else ''}Z"
    said = FLAGS
    if getattr(schedule, "fold", None) != "both":
        said = FLAGS | {f"dst_fold_{fold}": text for fold, text in ONLY.items()}
    return f"  {fire.local:%a} {local}   {utc}" + "".join(f"   {said[flag]}" for flag in fire.flags)


def _rate(ahead: SchedulePreview) -> str:
    if ahead.fires_per_day is None:
        return "  fires per day: depends on the runs"
    rate, most = ahead.fires_per_day or 0.0, ahead.busiest_day or 0
    average = f"{rate:,.2f}".rstrip("0").rstrip(".")
    return f"  fires per day: {average} on average over the next 30 days, at most {most:,}"


def _start(text: str | None, tz: str) -> datetime:
    if text is None:
        from bellringer.clock import SystemClock

        return SystemClock().now()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"--from {text!r} is not a time", "write it like 2026-03-28 or 2026-03-28T02:00")
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(tz))


@contextmanager
def show_error_position(expression: str) -> Iterator[None]:
    """Show the position of a mistake in an expression with a caret."""
    try:
        yield
    except InvalidSchedule as error:
        if error.position is not None and error.position <= len(expression):
            shown = expression.replace("\t", " ").replace("\n", " ")
            error.message += f"\n  {shown}\n  {'':>{error.position}}^"
        raise
