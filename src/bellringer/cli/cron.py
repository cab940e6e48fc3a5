"""`bellringer cron explain`: no server is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import click

from bellringer.cli.groups import Group, fail
from bellringer.cli.output import as_json, output_option
from bellringer.errors import InvalidSchedule

if TYPE_CHECKING:
    from bellringer.schedule import Cron, Fire, Outlook, Rrule

FLAGS: Final = {
    "dst_gap": "DST: the clock skips that time; it fires at the first moment after the gap",
    "dst_fold_first": "DST: the clock shows that time twice; this is the first time",
    "dst_fold_second": "DST: the clock shows that time twice; this is the second time",
}
ONLY: Final = {
    "first": "DST: the clock shows that time twice; it fires the first time only",
    "second": "DST: the clock shows that time twice; it fires the second time only",
}


@click.group(cls=Group, examples="bellringer cron explain '30 2 * * *' --tz Europe/Paris")
def cron() -> None:
    """Cron expressions."""


@cron.command(
    examples="""
    bellringer cron explain '0 9 * * MON-FRI' --tz Europe/Paris
    bellringer cron explain '30 2 * * *' --tz Europe/Paris -n 3 --from 2026-03-28
    bellringer cron explain --rrule 'FREQ=WEEKLY;INTERVAL=2;BYDAY=FR' --start 2026-01-02T09:00
    """
)
@click.argument("expression", metavar="[EXPR]", required=False)
@click.option("--rrule", "rule", metavar="RULE", help="A recurrence rule of RFC 5545 instead of EXPR.")
@click.option("--start", "begin", metavar="TIME", help="The local time at which the rule begins.")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The zone it is read in.")
@click.option("--seconds", is_flag=True, help="Six fields, the second first.")
@click.option("--gap", type=click.Choice(["next", "skip"]), help="What becomes of a time that the clock leaves out.")
@click.option("--fold", type=click.Choice(["first", "second", "both"]), help="Which of two equal times counts.")
@click.option("--seed", metavar="TEXT", help="What chooses the values of H.  [of a job: its name]")
@click.option("-n", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many to show.")
@click.option("--from", "since", metavar="TIME", help="Show those after this time of the zone.  [default: now]")
@output_option("table", "json")
def explain(*, count: int, since: str | None, output: str, **said: Any) -> None:
    """Say what EXPR means, when it fires next and how often, and what may surprise."""
    from bellringer.schedule import outlook, preview, to_document

    schedule = _schedule(**said)
    after = _start(since, schedule.timezone)
    fires, ahead = preview(schedule, after, count), outlook(schedule, after)
    if output == "json":
        document = {
            "schedule": to_document(schedule),
            "description": schedule.describe(),
            "fires": [{"at": f.at, "local": f.local.isoformat(), "flags": f.flags} for f in fires],
            "fires_per_day": ahead.fires_per_day,
            "busiest_day": ahead.busiest_day,
            "clock_change": ahead.clock_change,
            "warnings": [{"code": warning.code, "text": warning.text} for warning in ahead.warnings],
        }
        click.echo(as_json(document))
        return
    click.echo(schedule.describe())
    with_seconds = any(fire.at.second for fire in fires) or bool(said["seconds"])
    for fire in fires:
        click.echo(_line(fire, schedule, with_seconds=with_seconds))
    click.echo(_rate(ahead))
    for warning in ahead.warnings:
        click.echo(f"  ! {warning.text}")


def _schedule(
    *,
    expression: str | None,
    rule: str | None,
    begin: str | None,
    tz: str,
    seconds: bool,
    gap: str | None,
    fold: str | None,
    seed: str | None,
) -> Cron | Rrule:
    from bellringer.schedule import cron, rrule

    if (expression is None) == (rule is None):
        fail("give either EXPR or --rrule", "bellringer cron explain '0 9 * * MON-FRI'")
    if expression is not None:
        if begin is not None:
            fail("--start goes with --rrule", "leave it out; --from says where to begin to show")
        with pointing_at(expression):
            return cron(expression, tz=tz, seconds=seconds, gap=gap, fold=fold, seed=seed)
    if seconds or seed is not None:
        fail("--seconds and --seed go with EXPR", "leave them out")
    if begin is None:
        fail("--rrule needs --start", "give its first local time, such as --start 2026-01-02T09:00")
    assert rule is not None, "one of the two was given"
    with pointing_at(rule):
        return rrule(rule, start=begin, tz=tz, gap=gap, fold=fold)


def _line(fire: Fire, schedule: Cron | Rrule, *, with_seconds: bool) -> str:
    local = fire.local.isoformat(sep=" ", timespec="seconds" if with_seconds else "minutes")
    utc = f"{fire.at:%Y-%m-%d %H:%M}{f':{fire.at.second:02}' if with_seconds else ''}Z"
    said = FLAGS
    if schedule.fold != "both":
        said = FLAGS | {f"dst_fold_{fold}": text for fold, text in ONLY.items()}
    return f"  {fire.local:%a} {local}   {utc}" + "".join(f"   {said[flag]}" for flag in fire.flags)


def _rate(ahead: Outlook) -> str:
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
def pointing_at(expression: str) -> Iterator[None]:
    """Show a mistake in an expression with a caret under its place."""
    try:
        yield
    except InvalidSchedule as error:
        if error.position is not None and error.position <= len(expression):
            shown = expression.replace("\t", " ").replace("\n", " ")
            error.message += f"\n  {shown}\n  {'':>{error.position}}^"
        raise
