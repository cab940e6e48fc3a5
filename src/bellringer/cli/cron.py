"""`bellringer cron explain`: no server is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import click

from bellringer.cli.groups import Group, fail
from bellringer.cli.output import as_json, output_option
from bellringer.errors import InvalidSchedule

FLAGS: Final = {
    "dst_gap": "DST: the clock skips that time; it fires at the first moment after the gap",
    "dst_fold_first": "DST: the clock shows that time twice; it fires the first time only",
}


@click.group(cls=Group, examples="bellringer cron explain '30 2 * * *' --tz Europe/Paris")
def cron() -> None:
    """Cron expressions."""


@cron.command(
    examples="""
    bellringer cron explain '0 9 * * MON-FRI' --tz Europe/Paris
    bellringer cron explain '30 2 * * *' --tz Europe/Paris -n 3 --from 2026-03-28
    """
)
@click.argument("expression", metavar="EXPR")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The zone it is read in.")
@click.option("--seconds", is_flag=True, help="Six fields, the second first.")
@click.option("-n", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many to show.")
@click.option("--from", "start", metavar="TIME", help="Show those after this time of the zone.  [default: now]")
@output_option("table", "json")
def explain(*, expression: str, tz: str, seconds: bool, count: int, start: str | None, output: str) -> None:
    """Say what EXPR means, and when it fires next."""
    from bellringer.schedule import cron as read
    from bellringer.schedule import preview, to_document

    with pointing_at(expression):
        schedule = read(expression, tz=tz, seconds=seconds)
    fires = preview(schedule, _start(start, tz), count)
    if output == "json":
        document = {
            "schedule": to_document(schedule),
            "description": schedule.describe(),
            "fires": [{"at": f.at, "local": f.local.isoformat(), "flags": f.flags} for f in fires],
        }
        click.echo(as_json(document))
        return
    click.echo(schedule.describe())
    for fire in fires:
        local = fire.local.isoformat(sep=" ", timespec="seconds" if seconds or fire.at.second else "minutes")
        utc = f"{fire.at.astimezone(UTC):%Y-%m-%d %H:%M}{f':{fire.at.second:02}' if seconds else ''}Z"
        remark = "".join(f"   {FLAGS[flag]}" for flag in fire.flags)
        click.echo(f"  {fire.local:%a} {local}   {utc}{remark}")


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
