"""`bellringer webhooks`: who is told of events, what was sent to them; and whether a request that came is genuine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.webhooks import Delivery, Webhook

KINDS: Final = ("failed", "dead", "late", "missed", "slow", "outgrown", "recovered")


@click.group(
    cls=Group,
    examples="""
    bellringer webhooks create https://example.com/hook --kind dead --kind recovered
    bellringer webhooks deliveries whe_1
    """,
)
def webhooks() -> None:
    """Webhooks: events are sent to URLs, signed, and tried again for days."""


@webhooks.command("list", examples="bellringer webhooks list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_webhooks(client: Client, *, limit: int, output: str) -> None:
    """List webhook endpoints."""
    print_list(
        output,
        gather(client.webhooks, limit, output=output),
        head=("ID", "URL", "KINDS", "STATE", "DESCRIPTION"),
        row=lambda w: (w.endpoint_id, w.url, ", ".join(w.kinds) or "all", _state(w), w.description or "–"),
        name=lambda w: w.endpoint_id,
        nothing="there are no webhook endpoints",
    )


@webhooks.command(
    "create",
    examples="""
    bellringer webhooks create https://example.com/hook
    bellringer webhooks create https://example.com/hook --kind dead --description "the pager"
    """,
)
@click.argument("to", metavar="URL")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only events of this kind; repeatable.")
@click.option("--description", default="", help="What it is for.")
@output_option(*ONE)
@with_client
def create(client: Client, *, to: str, kinds: tuple[str, ...], description: str, output: str) -> None:
    """Send events to a URL. The secret that signs them is made by the server and shown now, and never again."""
    _print(client.create_webhook(to, kinds=kinds, description=description), output)


@webhooks.command("enable", examples="bellringer webhooks enable whe_1")
@click.argument("endpoint")
@with_client
def enable(client: Client, *, endpoint: str) -> None:
    """Switch an endpoint on again; it is told of what happens from now on."""
    client.patch_webhook(endpoint, {"enabled": True})
    click.echo(f"{endpoint} is on")


@webhooks.command("disable", examples="bellringer webhooks disable whe_1")
@click.argument("endpoint")
@with_client
def disable(client: Client, *, endpoint: str) -> None:
    """Tell an endpoint nothing for now."""
    client.patch_webhook(endpoint, {"enabled": False})
    click.echo(f"{endpoint} is off")


@webhooks.command("delete", examples="bellringer webhooks delete whe_1")
@click.argument("endpoint")
@with_client
def delete(client: Client, *, endpoint: str) -> None:
    """Tell an endpoint nothing more."""
    client.delete_webhook(endpoint)
    click.echo(f"deleted {endpoint}")


@webhooks.command("rotate", examples="bellringer webhooks rotate whe_1")
@click.argument("endpoint")
@output_option(*ONE)
@with_client
def rotate(client: Client, *, endpoint: str, output: str) -> None:
    """Replace the secret; the new one is shown now, and the old one signs along for a day."""
    _print(client.rotate_webhook(endpoint), output)


@webhooks.command("test", examples="bellringer webhooks test whe_1")
@click.argument("endpoint")
@click.option("--wait", metavar="SECONDS", type=float, default=10.0, show_default=True, help="How long to look.")
@with_client
def test(client: Client, *, endpoint: str, wait: float) -> None:
    """Send an endpoint something harmless, and say whether it took it."""
    from bellringer.errors import BellringerError

    sent = client.test_webhook(endpoint)
    run = client.wait(sent.run_id, timeout=wait)
    if run.state != "succeeded":
        hint = f"see `bellringer runs get {sent.run_id}`"
        raise BellringerError(f"{sent.delivery_id} did not arrive: it is {run.state}", hint=hint)
    click.echo(f"{sent.delivery_id} arrived")


@webhooks.command("deliveries", examples="bellringer webhooks deliveries whe_1 -o jsonl")
@click.argument("endpoint")
@limit_option
@output_option(*LIST)
@with_client
def list_deliveries(client: Client, *, endpoint: str, limit: int, output: str) -> None:
    """List what was sent to an endpoint, the newest first."""
    print_list(
        output,
        gather(lambda **page: client.deliveries(endpoint, **page), limit, output=output),
        head=("ID", "KIND", "SENT", "STATE", "TRIES", "RUN", "ERROR"),
        row=_row,
        name=lambda d: d.delivery_id,
        nothing=f"nothing was sent to {endpoint}",
    )


@webhooks.command("replay", examples="bellringer webhooks replay whd_7")
@click.argument("delivery")
@with_client
def replay(client: Client, *, delivery: str) -> None:
    """Send once more what was sent."""
    sent = client.replay_delivery(delivery)
    click.echo(f"{sent.delivery_id} is on its way, as {sent.run_id}")


@webhooks.command(
    "verify",
    examples="""
    bellringer webhooks verify --id run_… --timestamp 1614265330 --signature 'v1,…' < body.json
    """,
)
@click.option("--id", "message_id", required=True, help="The header webhook-id.")
@click.option("--timestamp", required=True, help="The header webhook-timestamp.")
@click.option("--signature", required=True, help="The header webhook-signature.")
@click.option("--secret", envvar="WEBHOOK_SECRET", required=True, help="whsec_… ; better as WEBHOOK_SECRET.")
@click.option("--any-time", is_flag=True, help="However old it is.")
def verify(*, message_id: str, timestamp: str, signature: str, secret: str, any_time: bool) -> None:
    """Say whether a request that came, its body on standard input, is genuine. Nothing is asked of a server."""
    from datetime import UTC, datetime

    from bellringer.clock import SystemClock
    from bellringer.egress import signing
    from bellringer.errors import BellringerError

    signing.check_secret(secret)
    now = SystemClock().now()
    if any_time and timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 11:
        now = datetime.fromtimestamp(int(timestamp), UTC)
    headers = {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}
    problem = signing.verify(secret, headers, sys.stdin.buffer.read(), now)
    if problem is not None:
        hint = "compare the raw body, byte for byte, and the secret"
        raise BellringerError(f"it is not genuine: {problem}", hint=hint)
    click.echo("it is genuine")


def _state(webhook: Webhook) -> str:
    return "on" if webhook.enabled else f"off: {webhook.disabled_reason or 'switched off'}"


def _row(delivery: Delivery) -> tuple[str, ...]:
    return (
        delivery.delivery_id,
        delivery.kind,
        clock_time(delivery.made_at),
        delivery.state or "unknown",
        "–" if delivery.attempt is None else str(delivery.attempt),
        delivery.run_id,
        delivery.error or "–",
    )


def _print(webhook: Webhook, output: str) -> None:
    if output == "json":
        click.echo(as_json(webhook))
        return
    if output == "name":
        click.echo(webhook.endpoint_id)
        return
    facts = {
        "endpoint": webhook.endpoint_id,
        "url": webhook.url,
        "kinds": ", ".join(webhook.kinds) or "all",
        "state": _state(webhook),
    }
    if isinstance(webhook.new_secret, str):
        facts["secret"] = webhook.new_secret
    print_facts(facts)
    if isinstance(webhook.new_secret, str):
        click.echo("keep the secret now: it is not shown again", err=True)
