"""`bellringer ops`: what is done to many at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.arguments import read_value
from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group, fail
from bellringer.cli.jobs import confirm
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import from_now

if TYPE_CHECKING:
    from datetime import datetime

    from bellringer.client import Client
    from bellringer.wire.answers import Count
    from bellringer.wire.operations import Operation

ACTIONS: Final = (
    "jobs.pause",
    "jobs.resume",
    "jobs.delete",
    "jobs.run",
    "runs.cancel",
    "runs.retry",
    "dead_letters.redrive",
    "dead_letters.discard",
)
LOOK: Final = 0.5


@click.group(
    cls=Group,
    examples="""
    bellringer ops start jobs.pause --filter tag=billing --reason 'the migration'
    bellringer ops list
    """,
)
def ops() -> None:
    """Operations: what was asked to be done to many jobs, runs or dead letters, and how far it has come."""


@ops.command(
    "start",
    examples="""
    bellringer ops start jobs.pause --filter tag=billing --dry-run
    bellringer ops start runs.cancel --filter state=queued --filter job=nightly --expect 40 --yes
    bellringer ops start dead_letters.redrive --filter fingerprint=1c9f… --rate 60 --wait
    """,
)
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--filter", "filters", multiple=True, metavar="NAME=VALUE", help="All that fit; as the lists take it.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--expect", type=click.IntRange(0), metavar="COUNT", help="Refuse it where about so many do not fit.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="How many a minute at most.")
@click.option("--reason", help="Why; jobs and runs keep it.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@click.option("--wait", is_flag=True, help="Wait until it is done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option(*ONE)
@with_client
def start(
    client: Client,
    *,
    action: str,
    ids: Sequence[str],
    filters: Sequence[str],
    everything: bool,
    expect: int | None,
    rate: float | None,
    reason: str | None,
    dry_run: bool,
    wait: bool,
    yes: bool,
    output: str,
) -> None:
    """Do something to those that are named, or to all that fit filters."""
    if sum((bool(ids), bool(filters), everything)) != 1:
        fail("what it is about is not said, or said twice", "give ids, or --filter, or --all")
    which: dict[str, Any] = {"ids": list(ids)} if ids else {"filter": read_filters(filters)}
    plan = client.plan_bulk(action, **which)
    if dry_run:
        click.echo(as_json(plan) if output == "json" else f"{action}: {count_of(plan.count)}")
        return
    confirm(f"{action}: {count_of(plan.count)}. Go on?", yes=yes)
    expected = plan.count.value if expect is None else expect
    operation = client.bulk(action, **which, expected_count=expected, rate=rate, reason=reason)
    print_operation(until_done(client, operation.operation_id) if wait else operation, output)


def read_filters(given: Sequence[str]) -> dict[str, Any]:
    """name=value, where what is named twice is a list."""
    found: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            fail(f"--filter {text!r} cannot be read", "write it like --filter tag=billing")
        word = read_value(value) if name == "worker" else value
        if name in found:
            found[name] = [*(found[name] if isinstance(found[name], list) else [found[name]]), word]
        else:
            found[name] = word
    return found


def until_done(client: Client, operation_id: str) -> Operation:
    """The operation when it has ended."""
    while True:
        operation = client.operation(operation_id)
        if operation.state != "running":
            return operation
        time.sleep(LOOK)


@ops.command("list", examples="bellringer ops list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_operations(client: Client, *, limit: int, output: str) -> None:
    """List operations, the newest first."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        gather(client.operations, limit, output=output),
        head=("OPERATION", "STATE", "ACTION", "DONE", "OF", "FAILED", "BEGUN", "BY", "READY"),
        row=lambda o: (
            o.operation_id,
            o.state,
            o.action,
            str(o.done + o.skipped),
            count_of(o.total),
            str(o.failed),
            from_now(o.created_at, now),
            o.who,
            _eta(o, now),
        ),
        name=lambda o: o.operation_id,
        nothing="no operations",
    )


@ops.command("get", examples="bellringer ops get op_7")
@click.argument("operation")
@output_option(*ONE)
@with_client
def get(client: Client, *, operation: str, output: str) -> None:
    """Show how far an operation has come."""
    print_operation(client.operation(operation), output)


@ops.command("abort", examples="bellringer ops abort op_7")
@click.argument("operation")
@output_option(*ONE)
@with_client
def abort(client: Client, *, operation: str, output: str) -> None:
    """Let an operation do no more; what was done stays done."""
    print_operation(client.abort_operation(operation), output)


def print_operation(o: Operation, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(as_json(o) if output == "json" else o.operation_id)
        return
    now = SystemClock().now()
    print_facts(
        {
            "operation": o.operation_id,
            "state": o.state,
            "action": o.action,
            "filter": "" if o.filter is None else ", ".join(f"{k}={v}" for k, v in o.filter.items()) or "all",
            "done": f"{o.done} of {count_of(o.total)}",
            "skipped": str(o.skipped) if o.skipped else "",
            "failed": str(o.failed) if o.failed else "",
            "rate": f"{o.rate:g} a minute" if o.rate else "",
            "ready": _eta(o, now),
            "begun": f"{from_now(o.created_at, now)} by {o.who}",
            "ended": from_now(o.ended_at, now) if o.ended_at else "",
            "reason": o.reason or "",
            "failures": "\n".join(f"{f.id}  {f.code}: {f.detail}" for f in o.failures),
        }
    )


def _eta(o: Operation, now: datetime) -> str:
    return from_now(o.eta, now) if o.eta else "–"


def count_of(count: Count) -> str:
    return f"{count.value} or more" if count.relation == "gte" else str(count.value)
