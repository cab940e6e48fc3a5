"""`bellringer checkins`: jobs that run elsewhere and report by calling a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import (
    LIST,
    ONE,
    format_local,
    format_seconds,
    output_option,
    print_fields,
    print_list,
    to_compact_json,
    to_json,
)

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.checkins import Checkin, Ping


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer checkins create backup --schedule '0 3 * * *' --grace 30m
    bellringer checkins list
    """,
)
def checkins() -> None:
    """Watch jobs that run elsewhere: each calls a secret URL, and a missing call is reported."""


@checkins.command("list", examples="bellringer checkins list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_checkins(client: Client, *, limit: int, output: str) -> None:
    """List check-ins with their states."""
    print_list(
        output,
        fetch_pages(client.checkins, limit, output=output),
        head=("NAME", "STATE", "SCHEDULE", "GRACE", "LAST PING", "DUE", "OWNER", "TAGS"),
        row=lambda c: (
            c.name,
            c.state,
            _schedule(c),
            c.grace,
            format_local(c.pinged_at),
            format_local(c.due_at),
            c.owner,
            ", ".join(c.tags) or "–",
        ),
        name=lambda c: c.name,
        empty="no check-ins",
    )


@checkins.command(
    "create",
    examples="""
    bellringer checkins create backup --schedule '0 3 * * *' --tz Europe/Paris --grace 30m
    bellringer checkins create sync --every 10m --grace 2m --tag billing
    """,
)
@click.argument("name")
@click.option("--schedule", metavar="CRON", help="Cron expression of the times at which the job runs.")
@click.option("--every", metavar="TIME", help="Longest time between two pings, such as 10m or 1h.")
@click.option("--tz", metavar="ZONE", help="Time zone of --schedule, such as Europe/Paris.  [default: UTC]")
@click.option("--grace", metavar="TIME", default="5m", show_default=True, help="Time after which a ping is missed.")
@click.option("--description", default="", help="Description.")
@click.option("--tag", "tags", multiple=True, help="Tag, for routes of notifications. Repeatable.")
@click.option("--owner", help="Owner, for routes of notifications.  [default: you]")
@output_option(*ONE)
@with_client
def create(
    client: Client,
    *,
    name: str,
    schedule: str | None,
    every: str | None,
    tz: str | None,
    grace: str,
    description: str,
    tags: tuple[str, ...],
    owner: str | None,
    output: str,
) -> None:
    """Create or replace a check-in. The URL to call is shown only when it is created."""
    if (schedule is None) == (every is None):
        fail("give either --schedule or --every", "for example --schedule '0 3 * * *'")
    if tz is not None and schedule is None:
        fail("--tz belongs to --schedule", "remove it")
    document: dict[str, Any] = {"every": every} if schedule is None else {"cron": schedule, "tz": tz or "UTC"}
    made = client.put_checkin(name, document, grace=grace, description=description, tags=tags, owner=owner)
    _print(made, output)


@checkins.command("get", examples="bellringer checkins get backup -o json")
@click.argument("name")
@output_option(*ONE)
@with_client
def get(client: Client, *, name: str, output: str) -> None:
    """Show a check-in."""
    _print(client.checkin(name), output)


@checkins.command("pings", examples="bellringer checkins pings backup")
@click.argument("name")
@limit_option
@output_option(*LIST)
@with_client
def list_pings(client: Client, *, name: str, limit: int, output: str) -> None:
    """List the last pings of a check-in, newest first."""
    print_list(
        output,
        fetch_pages(lambda **page: client.checkin_pings(name, **page), limit, output=output),
        head=("AT", "KIND", "EXIT", "TOOK", "FROM", "BODY"),
        row=_ping_row,
        name=lambda p: str(p.ping_id),
        empty=f"no pings of {name}",
    )


@checkins.command("pause", examples="bellringer checkins pause backup")
@click.argument("name")
@with_client
def pause(client: Client, *, name: str) -> None:
    """Pause a check-in: no ping is expected."""
    client.pause_checkin(name)
    click.echo(f"{name} is paused")


@checkins.command("resume", examples="bellringer checkins resume backup")
@click.argument("name")
@with_client
def resume(client: Client, *, name: str) -> None:
    """Resume a check-in."""
    click.echo(f"{name} is {client.resume_checkin(name).state}")


@checkins.command("rotate", examples="bellringer checkins rotate backup")
@click.argument("name")
@output_option(*ONE)
@with_client
def rotate(client: Client, *, name: str, output: str) -> None:
    """Replace the URL of a check-in. The old one stops working at once."""
    _print(client.rotate_checkin(name), output)


@checkins.command("delete", examples="bellringer checkins delete backup")
@click.argument("name")
@with_client
def delete(client: Client, *, name: str) -> None:
    """Delete a check-in."""
    client.delete_checkin(name)
    click.echo(f"deleted {name}")


def _schedule(checkin: Checkin) -> str:
    schedule = checkin.schedule
    text = (
        schedule.get("cron") or schedule.get("rrule") or (f"every {schedule['every']}" if "every" in schedule else "")
    )
    zone = schedule.get("tz", "UTC")
    return str(text or to_compact_json(schedule)) + (f" {zone}" if zone != "UTC" else "")


def _ping_row(ping: Ping) -> tuple[str, ...]:
    return (
        format_local(ping.at),
        ping.kind,
        "–" if ping.exit_code is None else str(ping.exit_code),
        "–" if ping.duration_seconds is None else format_seconds(ping.duration_seconds),
        ping.origin or "–",
        (ping.body or "–").splitlines()[0][:60],
    )


def _print(checkin: Checkin, output: str) -> None:
    if output == "json":
        click.echo(to_json(checkin))
        return
    if output == "name":
        click.echo(checkin.name)
        return
    facts = {
        "check-in": checkin.name,
        "state": checkin.state,
        "schedule": _schedule(checkin),
        "grace": checkin.grace,
        "last ping": format_local(checkin.pinged_at),
        "due": format_local(checkin.due_at),
        "down since": format_local(checkin.down_since),
        "owner": checkin.owner,
        "tags": ", ".join(checkin.tags),
    }
    if isinstance(checkin.ping_url, str):
        facts["url"] = checkin.ping_url
    print_fields(facts)
    if isinstance(checkin.ping_url, str):
        click.echo("store the URL now: it is not shown again", err=True)
