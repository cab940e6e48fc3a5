"""`bellringer notifications`: channels, routes, test messages and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.events import KINDS
from bellringer.cli.options import Length, fetch_pages, limit_option
from bellringer.cli.output import LIST, ONE, format_local, output_option, print_fields, print_list, to_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.notifications import Channel, NotificationRoute

CHANNEL_KINDS = ("slack", "pagerduty", "teams", "email", "webhook")


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer notifications channels create team --kind slack --webhook-url https://hooks.slack.com/services/…
    bellringer notifications routes create failures --channel team --severity critical
    bellringer notifications test team
    """,
)
def notifications() -> None:
    """Send messages about failed, late and missed jobs to Slack, PagerDuty, Teams, or by e-mail."""


@notifications.group(cls=CommandGroup, examples="bellringer notifications channels list")
def channels() -> None:
    """Manage channels: where messages go."""


@channels.command("list", examples="bellringer notifications channels list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_channels(client: Client, *, limit: int, output: str) -> None:
    """List channels."""
    print_list(
        output,
        fetch_pages(client.notification_channels, limit, output=output),
        head=("NAME", "KIND", "TO", "STATE"),
        row=lambda c: (c.name, c.kind, c.url or ", ".join(c.to), "on" if c.enabled else "off"),
        name=lambda c: c.name,
        empty="no notification channels",
    )


@channels.command(
    "create",
    examples="""
    bellringer notifications channels create team --kind slack --webhook-url https://hooks.slack.com/services/…
    bellringer notifications channels create pager --kind pagerduty --routing-key R012…
    bellringer notifications channels create mail --kind email --to ops@example.com
    """,
)
@click.argument("name")
@click.option("--kind", type=click.Choice(CHANNEL_KINDS), required=True, help="Kind of the channel.")
@click.option(
    "--webhook-url", "target", envvar="NOTIFICATION_URL", help="Webhook URL; prefer the variable NOTIFICATION_URL."
)
@click.option(
    "--routing-key",
    envvar="PAGERDUTY_ROUTING_KEY",
    help="Integration key of PagerDuty; prefer the variable PAGERDUTY_ROUTING_KEY.",
)
@click.option("--to", multiple=True, metavar="ADDRESS", help="Recipient of e-mails. Repeatable.")
@click.option("--disabled", is_flag=True, help="Create the channel without using it.")
@output_option(*ONE)
@with_client
def create_channel(
    client: Client,
    *,
    name: str,
    kind: str,
    target: str | None,
    routing_key: str | None,
    to: tuple[str, ...],
    disabled: bool,
    output: str,
) -> None:
    """Create or replace a channel. Its URL or key is stored encrypted and never shown."""
    document: dict[str, Any] = {"kind": kind, "enabled": not disabled}
    if target is not None:
        document["url"] = target
    if routing_key is not None and kind == "pagerduty":
        document["routing_key"] = routing_key
    if to:
        document["to"] = list(to)
    _print_channel(client.put_notification_channel(name, document), output)


@channels.command("get", examples="bellringer notifications channels get team")
@click.argument("name")
@output_option(*ONE)
@with_client
def get_channel(client: Client, *, name: str, output: str) -> None:
    """Show a channel."""
    _print_channel(client.notification_channel(name), output)


@channels.command("delete", examples="bellringer notifications channels delete team")
@click.argument("name")
@with_client
def delete_channel(client: Client, *, name: str) -> None:
    """Delete a channel that no route uses."""
    client.delete_notification_channel(name)
    click.echo(f"deleted {name}")


@notifications.group(cls=CommandGroup, examples="bellringer notifications routes list")
def routes() -> None:
    """Manage routes: which events go to which channel."""


@routes.command("list", examples="bellringer notifications routes list")
@limit_option
@output_option(*LIST)
@with_client
def list_routes(client: Client, *, limit: int, output: str) -> None:
    """List routes."""
    print_list(
        output,
        fetch_pages(client.notification_routes, limit, output=output),
        head=("NAME", "CHANNEL", "MATCHES", "GROUPED BY", "QUIET", "STATE"),
        row=lambda r: (r.name, r.channel, _match(r), r.group_by, _quiet(r), "on" if r.enabled else "off"),
        name=lambda r: r.name,
        empty="no notification routes",
    )


@routes.command(
    "create",
    examples="""
    bellringer notifications routes create failures --channel team
    bellringer notifications routes create billing --channel pager --tag billing --severity critical
    bellringer notifications routes create night --channel mail --quiet 22:00-07:00 --tz Europe/Paris
    """,
)
@click.argument("name")
@click.option("--channel", required=True, help="Channel that gets the messages.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), metavar="KIND", help="Event kind. Repeatable."
)
@click.option(
    "--severity",
    type=click.Choice(["info", "warning", "critical"]),
    help="Lowest severity, unless kinds are given.  [default: warning]",
)
@click.option("--job", "jobs", multiple=True, metavar="PATTERN", help="Name of jobs, such as billing-*. Repeatable.")
@click.option("--tag", "tags", multiple=True, help="Tag of jobs. Repeatable.")
@click.option("--owner", "owners", multiple=True, help="Owner of jobs. Repeatable.")
@click.option(
    "--of-tenant", "tenants", multiple=True, help="Tenant, or * for all; needs an installation key. Repeatable."
)
@click.option(
    "--group-by",
    type=click.Choice(["job", "task", "owner", "tenant", "route"]),
    help="Which events share messages.  [default: job]",
)
@click.option("--wait", metavar="TIME", help="Delay of the first message.  [default: 10s]")
@click.option("--interval", metavar="TIME", help="Shortest time between two messages of an incident.  [default: 5m]")
@click.option("--repeat", metavar="TIME", help="Repeat open incidents after this time, or `never`.  [default: 4h]")
@click.option("--quiet", metavar="FROM-TO", help="Quiet hours, such as 22:00-07:00.")
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="Time zone of --quiet.")
@click.option("--hold-critical", is_flag=True, help="In quiet hours, hold critical messages too.")
@click.option("--no-recoveries", is_flag=True, help="Do not report recoveries.")
@click.option("--disabled", is_flag=True, help="Create the route without using it.")
@output_option(*ONE)
@with_client
def create_route(client: Client, /, *, name: str, output: str, **options: Any) -> None:
    """Create or replace a route."""
    _print_route(client.put_notification_route(name, _route_document(**options)), output)


@routes.command("get", examples="bellringer notifications routes get failures")
@click.argument("name")
@output_option(*ONE)
@with_client
def get_route(client: Client, *, name: str, output: str) -> None:
    """Show a route."""
    _print_route(client.notification_route(name), output)


@routes.command("delete", examples="bellringer notifications routes delete failures")
@click.argument("name")
@with_client
def delete_route(client: Client, *, name: str) -> None:
    """Delete a route and its incidents."""
    client.delete_notification_route(name)
    click.echo(f"deleted {name}")


@notifications.command("test", examples="bellringer notifications test team")
@click.argument("channel")
@click.option("--wait", type=Length(), default="10s", show_default=True, help="Time to wait for the delivery.")
@with_client
def test(client: Client, *, channel: str, wait: float) -> None:
    """Send a test message to a channel and wait for the delivery."""
    from bellringer.errors import BellringerError

    sent = client.test_notification_channel(channel)
    assert sent.run_id is not None
    run = client.wait(sent.run_id, timeout=wait)
    if run.state != "succeeded":
        hint = f"see `bellringer runs get {sent.run_id}`"
        raise BellringerError(f"the message was not delivered: its run is {run.state}", hint=hint)
    click.echo(f"a test message was delivered to {channel}")


@notifications.command("history", examples="bellringer notifications history --channel team")
@click.option("--channel", help="Only messages to this channel.")
@limit_option
@output_option(*LIST)
@with_client
def history(client: Client, *, channel: str | None, limit: int, output: str) -> None:
    """List messages with the state of their delivery, newest first."""
    print_list(
        output,
        fetch_pages(client.notification_history, limit, output=output, channel=channel),
        head=("ID", "SENT", "CHANNEL", "ROUTE", "REASON", "TITLE", "STATE", "RUN", "ERROR"),
        row=lambda n: (
            str(n.notification_id),
            format_local(n.made_at),
            n.channel,
            n.route or "–",
            n.reason,
            n.title,
            n.state or "–",
            n.run_id or "–",
            n.error or "–",
        ),
        name=lambda n: str(n.notification_id),
        empty="no messages",
    )


@notifications.command("incidents", examples="bellringer notifications incidents --all")
@click.option("--all", "every", is_flag=True, help="Also resolved incidents.")
@limit_option
@output_option(*LIST)
@with_client
def incidents(client: Client, *, every: bool, limit: int, output: str) -> None:
    """List open incidents, newest first."""
    print_list(
        output,
        fetch_pages(client.notification_incidents, limit, output=output, resolved=every or None),
        head=("OPENED", "ROUTE", "SEVERITY", "EVENTS", "WHAT", "MESSAGES", "RESOLVED"),
        row=lambda i: (
            format_local(i.opened_at),
            i.route,
            i.severity,
            str(i.count),
            ", ".join(str(subject["name"]) for subject in i.subjects) or i.group,
            str(i.messages),
            format_local(i.resolved_at),
        ),
        name=lambda i: str(i.incident_id),
        empty="no open incidents",
    )


def _route_document(
    *, quiet: str | None, tz: str, hold_critical: bool, no_recoveries: bool, disabled: bool, **fields: Any
) -> dict[str, Any]:
    document: dict[str, Any] = {"enabled": not disabled, "recoveries": not no_recoveries}
    for name, value in fields.items():
        if isinstance(value, tuple):
            document[name] = list(value)
        elif value is not None:
            document[name] = value
    if document.get("repeat") == "never":
        document["repeat"] = None
    if quiet is not None:
        start, dash, end = quiet.partition("-")
        if not dash:
            fail(f"--quiet {quiet!r} is not FROM-TO", "write it like --quiet 22:00-07:00")
        document["quiet"] = {"from": start, "to": end, "tz": tz, "critical": "hold" if hold_critical else "send"}
    return document


def _match(route: NotificationRoute) -> str:
    parts = [f"{route.severity} and above"] if not route.kinds else [", ".join(route.kinds)]
    lists = {name: getattr(route, name) for name in ("jobs", "tags", "owners", "tenants")}
    return "; ".join([*parts, *(f"{name}: {', '.join(values)}" for name, values in lists.items() if values)])


def _quiet(route: NotificationRoute) -> str:
    return "–" if route.quiet is None else f"{route.quiet['from']}-{route.quiet['to']} {route.quiet['tz']}"


def _print_channel(channel: Channel, output: str) -> None:
    if output != "table":
        click.echo(to_json(channel) if output == "json" else channel.name)
        return
    state = "on" if channel.enabled else "off"
    print_fields(
        {"channel": channel.name, "kind": channel.kind, "to": channel.url or ", ".join(channel.to), "state": state}
    )


def _print_route(route: NotificationRoute, output: str) -> None:
    if output != "table":
        click.echo(to_json(route) if output == "json" else route.name)
        return
    print_fields(
        {
            "route": route.name,
            "channel": route.channel,
            "matches": _match(route),
            "grouped by": route.group_by,
            "wait": route.wait,
            "interval": route.interval,
            "repeat": route.repeat or "never",
            "quiet": _quiet(route),
            "recoveries": "on" if route.recoveries else "off",
            "state": "on" if route.enabled else "off",
        }
    )
