"""`bellringer calendars` and `bellringer freezes`: days off, and periods without runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import LIST, ONE, format_local, output_option, print_fields, print_list, to_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.calendars import Calendar, CalendarItem, Freeze


MOST_COUNTED: Final = 10_000  # the server counts no further, so progress is unknown above it


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer calendars put de --ics holidays.ics
    bellringer calendars get de
    """,
)
def calendars() -> None:
    """Manage calendars of days off, which cron and rrule schedules skip or move to a working day."""


@calendars.command("list", examples="bellringer calendars list")
@limit_option
@output_option(*LIST)
@with_client
def list_calendars(client: Client, *, limit: int, output: str) -> None:
    """List calendars by name."""
    print_list(
        output,
        fetch_pages(client.calendars, limit, output=output),
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
        empty="no calendars; create one with `bellringer calendars put`",
    )


@calendars.command("get", examples="bellringer calendars get de -o json")
@click.argument("name")
@output_option(*ONE)
@with_client
def get(client: Client, *, name: str, output: str) -> None:
    """Show a calendar and its next days off."""
    _print_calendar(client.calendar(name), output)


@calendars.command(
    "put",
    examples="""
    bellringer calendars put de --ics holidays.ics
    bellringer calendars put uae --weekend FRI --weekend SAT --date 2026-12-02
    bellringer calendars put office --hours 'MON-THU 09:00-17:30' --hours 'FRI 09:00-15:00'
    """,
)
@click.argument("name")
@click.option("--ics", type=click.File(encoding="utf-8"), help="iCalendar file; its all-day events are days off.")
@click.option("--date", "dates", multiple=True, metavar="DATE", help="Day off, such as 2026-12-25. Repeatable.")
@click.option(
    "--weekend", "days", multiple=True, metavar="DAY", help="Day of the weekend. Repeatable.  [default: SAT, SUN]"
)
@click.option("--no-weekend", is_flag=True, help="No weekend: only the given dates are days off.")
@click.option(
    "--hours",
    multiple=True,
    metavar="RANGE",
    help='Working hours, such as "MON-FRI 09:00-17:30". Repeatable.  [default: all hours]',
)
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
    hours: tuple[str, ...],
    output: str,
) -> None:
    """Create or replace a calendar, and update the jobs that use it.

    The given days replace all days of the calendar. Repeating the command with the same days changes nothing.
    """
    if ics is not None and dates:
        fail("--ics and --date are both given", "give one of them")
    if days and no_weekend:
        fail("--weekend and --no-weekend are both given", "give one of them")
    given: dict[str, Any] = {"ics": ics.read()} if ics is not None else {"dates": list(dates)}
    if days or no_weekend:
        given["weekend"] = list(days)
    if hours:
        given["hours"] = list(hours)
    made = client.put_calendar(name, **given)
    while made.outdated:
        click.echo(f"updating {made.outdated} jobs …", err=True)
        before, made = made, client.put_calendar(name, **given)
        if before.outdated <= made.outdated < MOST_COUNTED:
            fail(f"{made.outdated} jobs could not be updated", "see the log of the server")
    _print_calendar(made, output)


@calendars.command("delete", examples="bellringer calendars delete de")
@click.argument("name")
@with_client
def delete(client: Client, *, name: str) -> None:
    """Delete a calendar that no job uses."""
    client.delete_calendar(name)
    click.echo(f"deleted {name}")


def _print_calendar(calendar: Calendar, output: str) -> None:
    if output == "json":
        click.echo(to_json(calendar))
    elif output == "name":
        click.echo(calendar.name)
    else:
        print_fields(
            {
                "calendar": f"{calendar.name}, version {calendar.version}",
                "weekend": ", ".join(calendar.weekend) or "none",
                "hours": ", ".join(calendar.hours) or "all",
                "days": str(calendar.days),
                "next": ", ".join(day.isoformat() for day in calendar.coming),
                "jobs": _jobs(calendar),
                "changed": f"{format_local(calendar.changed_at)} by {calendar.changed_by}",
            }
        )


def _jobs(calendar: CalendarItem) -> str:
    behind = f", {calendar.outdated} use an older version" if calendar.outdated else ""
    return f"{calendar.jobs}{behind}"


POLICIES: Final = ("defer", "skip", "collapse")


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer freezes create black-friday --to 2h
    bellringer freezes lift black-friday
    """,
)
def freezes() -> None:
    """Manage freezes: periods in which due runs are deferred, skipped, or collapsed into one run."""


@freezes.command("list", examples="bellringer freezes list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_freezes(client: Client, *, limit: int, output: str) -> None:
    """List freezes: future and active ones first, then past ones."""
    print_list(
        output,
        fetch_pages(client.freezes, limit, output=output),
        head=("ID", "NAME", "STATE", "FROM", "TO", "POLICY", "TAGS", "REASON"),
        row=lambda f: (
            f.freeze_id,
            f.name,
            f.state,
            format_local(f.from_at),
            format_local(f.to_at),
            f.policy,
            ", ".join(f.tags) or "all jobs",
            f.reason or "–",
        ),
        name=lambda f: f.freeze_id,
        empty="no freezes",
    )


@freezes.command(
    "create",
    examples="""
    bellringer freezes create black-friday --from 2026-11-27T00:00:00Z --to 2026-11-28T00:00:00Z --reason "no deploys"
    bellringer freezes create migration --to 90m --policy collapse --tag warehouse
    """,
)
@click.argument("name")
@click.option("--from", "start", metavar="TIME", help="Start of the freeze (RFC 3339).  [default: now]")
@click.option(
    "--to",
    "end",
    metavar="TIME",
    required=True,
    help="End of the freeze: an RFC 3339 instant, or a duration such as 2h.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="defer",
    show_default=True,
    help="What to do with runs due during the freeze.",
)
@click.option("--tag", "tags", multiple=True, help="Only jobs with this tag. Repeatable.")
@click.option("--reason", help="Reason, shown with the freeze.")
@output_option(*ONE)
@with_client
def create(
    client: Client,
    *,
    name: str,
    start: str | None,
    end: str,
    policy: str,
    tags: tuple[str, ...],
    reason: str | None,
    output: str,
) -> None:
    """Suspend schedules for a period.

    Due runs are deferred to the end, skipped, or collapsed into one run per job. Running runs continue, and a run
    that is due within a second of the creation may still start.
    """
    made = client.create_freeze(name, end, start=start, policy=policy, tags=tags, reason=reason)
    _print_freeze(made, output)


@freezes.command("lift", examples="bellringer freezes lift black-friday")
@click.argument("freeze")
@with_client
def lift(client: Client, *, freeze: str) -> None:
    """End a freeze now and release its deferred runs. FREEZE is its id or name."""
    done = client.lift_freeze(freeze)
    runs = f"{done.freed:,} run{'' if done.freed == 1 else 's'} released"
    click.echo(f"{freeze} had already ended" if done.was_over else f"lifted {freeze}; {runs}")


def _print_freeze(freeze: Freeze, output: str) -> None:
    if output == "json":
        click.echo(to_json(freeze))
    elif output == "name":
        click.echo(freeze.freeze_id)
    else:
        print_fields(
            {
                "freeze": freeze.freeze_id,
                "name": freeze.name,
                "state": freeze.state,
                "from": format_local(freeze.from_at),
                "to": format_local(freeze.to_at),
                "policy": freeze.policy,
                "jobs": _covers(freeze),
                "reason": freeze.reason or "",
            }
        )


def _covers(freeze: Freeze) -> str:
    which = f"jobs tagged {', '.join(freeze.tags)}" if freeze.tags else "all"
    return which if freeze.jobs is None else f"{which}: {freeze.jobs:,} now"
