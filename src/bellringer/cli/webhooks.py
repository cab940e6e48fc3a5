"""`bellringer webhooks`: endpoints, deliveries, and verification of received requests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from bellringer.cli.command_groups import CommandGroup
from bellringer.cli.connect import with_client
from bellringer.cli.events import KINDS
from bellringer.cli.options import Length, fetch_pages, limit_option
from bellringer.cli.output import LIST, ONE, format_local, output_option, print_fields, print_list, to_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.webhooks import Webhook, WebhookDelivery


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer webhooks create https://example.com/hook --kind dead --kind recovered
    bellringer webhooks deliveries whe_1
    """,
)
def webhooks() -> None:
    """Manage webhooks: URLs that receive signed events, with retries over several days."""


@webhooks.command("list", examples="bellringer webhooks list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_webhooks(client: Client, *, limit: int, output: str) -> None:
    """List webhook endpoints."""
    print_list(
        output,
        fetch_pages(client.webhooks, limit, output=output),
        head=("ID", "URL", "KINDS", "STATE", "DESCRIPTION"),
        row=lambda w: (w.endpoint_id, w.url, ", ".join(w.kinds) or "all", _state(w), w.description or "–"),
        name=lambda w: w.endpoint_id,
        empty="no webhook endpoints",
    )


@webhooks.command(
    "create",
    examples="""
    bellringer webhooks create https://example.com/hook
    bellringer webhooks create https://example.com/hook --kind dead --description "the pager"
    """,
)
@click.argument("to", metavar="URL")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    metavar="KIND",
    help=f"Send only events of this kind: {', '.join(KINDS)}. Repeatable.",
)
@click.option("--description", default="", help="Description.")
@output_option(*ONE)
@with_client
def create(client: Client, *, to: str, kinds: tuple[str, ...], description: str, output: str) -> None:
    """Send events to a URL. The server creates the signing secret; it is shown only once."""
    _print(client.create_webhook(to, kinds=kinds, description=description), output)


@webhooks.command("enable", examples="bellringer webhooks enable whe_1")
@click.argument("endpoint")
@with_client
def enable(client: Client, *, endpoint: str) -> None:
    """Enable an endpoint. It receives events from now on."""
    client.patch_webhook(endpoint, {"enabled": True})
    click.echo(f"{endpoint} is enabled")


@webhooks.command("disable", examples="bellringer webhooks disable whe_1")
@click.argument("endpoint")
@with_client
def disable(client: Client, *, endpoint: str) -> None:
    """Disable an endpoint: it receives no events until it is enabled."""
    client.patch_webhook(endpoint, {"enabled": False})
    click.echo(f"{endpoint} is disabled")


@webhooks.command("delete", examples="bellringer webhooks delete whe_1")
@click.argument("endpoint")
@with_client
def delete(client: Client, *, endpoint: str) -> None:
    """Delete an endpoint."""
    client.delete_webhook(endpoint)
    click.echo(f"deleted {endpoint}")


@webhooks.command("rotate", examples="bellringer webhooks rotate whe_1")
@click.argument("endpoint")
@output_option(*ONE)
@with_client
def rotate(client: Client, *, endpoint: str, output: str) -> None:
    """Replace the signing secret; the new one is shown only once. For one day, both secrets sign deliveries."""
    _print(client.rotate_webhook(endpoint), output)


@webhooks.command("test", examples="bellringer webhooks test whe_1")
@click.argument("endpoint")
@click.option("--wait", type=Length(), default="10s", show_default=True, help="Time to wait for the delivery.")
@with_client
def test(client: Client, *, endpoint: str, wait: float) -> None:
    """Send a test event to an endpoint and wait for the delivery."""
    from bellringer.errors import BellringerError

    sent = client.test_webhook(endpoint)
    run = client.wait(sent.run_id, timeout=wait)
    if run.state != "succeeded":
        hint = f"see `bellringer runs get {sent.run_id}`"
        raise BellringerError(f"{sent.delivery_id} was not delivered: its run is {run.state}", hint=hint)
    click.echo(f"{sent.delivery_id} was delivered")


@webhooks.command("deliveries", examples="bellringer webhooks deliveries whe_1 -o jsonl")
@click.argument("endpoint")
@limit_option
@output_option(*LIST)
@with_client
def list_deliveries(client: Client, *, endpoint: str, limit: int, output: str) -> None:
    """List the deliveries to an endpoint, newest first."""
    print_list(
        output,
        fetch_pages(lambda **page: client.deliveries(endpoint, **page), limit, output=output),
        head=("ID", "KIND", "SENT", "STATE", "TRIES", "RUN", "ERROR"),
        row=_row,
        name=lambda d: d.delivery_id,
        empty=f"no deliveries to {endpoint}",
    )


@webhooks.command("replay", examples="bellringer webhooks replay whd_7")
@click.argument("delivery")
@with_client
def replay(client: Client, *, delivery: str) -> None:
    """Send a delivery again."""
    sent = client.replay_delivery(delivery)
    click.echo(f"{sent.delivery_id} is being sent again as {sent.run_id}")


@webhooks.command(
    "verify",
    examples="""
    bellringer webhooks verify --id run_… --timestamp 1614265330 --signature 'v1,…' < body.json
    """,
)
@click.option("--id", "message_id", required=True, help="Value of the header webhook-id.")
@click.option("--timestamp", required=True, help="Value of the header webhook-timestamp.")
@click.option("--signature", required=True, help="Value of the header webhook-signature.")
@click.option(
    "--secret",
    envvar="WEBHOOK_SECRET",
    required=True,
    help="Signing secret (whsec_…); prefer the variable WEBHOOK_SECRET.",
)
@click.option("--any-time", is_flag=True, help="Do not check the age of the timestamp.")
def verify(*, message_id: str, timestamp: str, signature: str, secret: str, any_time: bool) -> None:
    """Verify the signature of a received request.

    The body of the request is read from standard input. Works without a server.
    """
    from datetime import UTC, datetime

    from bellringer.clock import SystemClock
    from bellringer.egress import webhook_signatures
    from bellringer.errors import BellringerError

    webhook_signatures.check_secret(secret)
    now = SystemClock().now()
    if any_time and timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 11:
        now = datetime.fromtimestamp(int(timestamp), UTC)
    headers = {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}
    problem = webhook_signatures.verify_signature(secret, headers, sys.stdin.buffer.read(), now)
    if problem is not None:
        hint = "check that the body is unchanged, byte for byte, and the secret"
        raise BellringerError(f"the signature is not valid: {problem}", hint=hint)
    click.echo("the signature is valid")


def _state(webhook: Webhook) -> str:
    return "on" if webhook.enabled else f"off: {webhook.disabled_reason or 'disabled'}"


def _row(delivery: WebhookDelivery) -> tuple[str, ...]:
    return (
        delivery.delivery_id,
        delivery.kind,
        format_local(delivery.made_at),
        delivery.state or "unknown",
        "–" if delivery.attempt is None else str(delivery.attempt),
        delivery.run_id,
        delivery.error or "–",
    )


def _print(webhook: Webhook, output: str) -> None:
    if output == "json":
        click.echo(to_json(webhook))
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
    print_fields(facts)
    if isinstance(webhook.new_secret, str):
        click.echo("store the secret now: it is not shown again", err=True)
