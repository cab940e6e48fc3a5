"""`bellringer calendars`: days off by name, which schedules heed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group, fail
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Calendar, CalendarItem

MOST_COUNTED: Final = 10_000  # where there are more, it is not known whether they become fewer


@click.group(
    cls=Group,
    examples="""
    bellringer calendars put de --ics holidays.ics
    bellringer calendars get de
    """,
)
def calendars() -> None:
    """Calendars: days off by name. A cron or rrule schedule that names one skips them, or moves to a working day."""


@calendars.command("list", examples="bellringer calendars list")
@limit_option
@output_option(*LIST)
@with_client
def list_calendars(client: Client, *, limit: int, output: str) -> None:
    """List calendars by their names."""
    print_list(
        output,
        gather(client.calendars, limit, output=output),
        head=("NAME", "VERSION", "WEEKEND", "DAYS", "NEXT", "JOBS"),
        row=lambda c: (
            c.name,
            str(c.version),
            ", ".join(c.weekend) or "none",
            str(c.days),
            c.coming[0].isoformat() if c.coming else "–",
            _jobs(c),
        ),
        name=lambda c: c.name,
        nothing="there are no calendars; make one with `bellringer calendars put`",
    )


@calendars.command("get", examples="bellringer calendars get de -o json")
@click.argument("name")
@output_option(*ONE)
@with_client
def get(client: Client, *, name: str, output: str) -> None:
    """Show a calendar and its next days off."""
    _print(client.calendar(name), output)


@calendars.command(
    "put",
    examples="""
    bellringer calendars put de --ics holidays.ics
    bellringer calendars put uae --weekend FRI --weekend SAT --date 2026-12-02
    """,
)
@click.argument("name")
@click.option("--ics", type=click.File(encoding="utf-8"), help="An iCalendar file; its all-day events are days off.")
@click.option("--date", "dates", multiple=True, metavar="DATE", help="A day off, such as 2026-12-25; may be repeated.")
@click.option("--weekend", "days", multiple=True, metavar="DAY", help="A day of every weekend.  [default: SAT, SUN]")
@click.option("--no-weekend", is_flag=True, help="Only the dates are days off.")
@output_option(*ONE)
@with_client
def put(
    client: Client,
    *,
    name: str,
    ics: Any,
    dates: tuple[str, ...],
    days: tuple[str, ...],
    no_weekend: bool,
    output: str,
) -> None:
    """Make a calendar what is given; the jobs that use it follow.

    It replaces all that the calendar held. Content that is the same again changes nothing.
    """
    if ics is not None and dates:
        fail("--ics and --date are both given", "give one of them")
    if days and no_weekend:
        fail("--weekend and --no-weekend are both given", "give one of them")
    given: dict[str, Any] = {"ics": ics.read()} if ics is not None else {"dates": list(dates)}
    if days or no_weekend:
        given["weekend"] = list(days)
    made = client.put_calendar(name, **given)
    while made.outdated:
        click.echo(f"{made.outdated} jobs follow …", err=True)
        before, made = made, client.put_calendar(name, **given)
        if before.outdated <= made.outdated < MOST_COUNTED:
            fail(f"{made.outdated} jobs do not follow", "the server's log says why")
    _print(made, output)


@calendars.command("delete", examples="bellringer calendars delete de")
@click.argument("name")
@with_client
def delete(client: Client, *, name: str) -> None:
    """Delete a calendar that no job uses."""
    client.delete_calendar(name)
    click.echo(f"deleted {name}")


def _print(calendar: Calendar, output: str) -> None:
    if output == "json":
        click.echo(as_json(calendar))
    elif output == "name":
        click.echo(calendar.name)
    else:
        print_facts(
            {
                "calendar": f"{calendar.name}, version {calendar.version}",
                "weekend": ", ".join(calendar.weekend) or "none",
                "days": str(calendar.days),
                "next": ", ".join(day.isoformat() for day in calendar.coming),
                "jobs": _jobs(calendar),
                "changed": f"{clock_time(calendar.changed_at)} by {calendar.changed_by}",
            }
        )


def _jobs(calendar: CalendarItem) -> str:
    behind = f", {calendar.outdated} follow an older version" if calendar.outdated else ""
    return f"{calendar.jobs}{behind}"
