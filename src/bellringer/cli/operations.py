"""`bellringer ops`: bulk operations on jobs, runs and dead letters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import INTERRUPTED, CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.jobs import confirm
from bellringer.cli.options import fetch_pages, limit_option, read_value
from bellringer.cli.output import (
    LIST,
    ONE,
    format_relative,
    output_option,
    print_fields,
    print_list,
    sanitize,
    to_compact_json,
    to_json,
)
from bellringer.cli.progress import show_progress

if TYPE_CHECKING:
    from datetime import datetime

    from bellringer.client import Client
    from bellringer.wire.models import Count
    from bellringer.wire.operations import BulkPlan, Operation

ACTIONS: Final = (
    "jobs.pause",
    "jobs.resume",
    "jobs.delete",
    "jobs.run",
    "jobs.update",
    "runs.cancel",
    "runs.retry",
    "dead_letters.redrive",
    "dead_letters.discard",
)
_LISTS: Final = ("tags", "add_tags", "remove_tags")
POLL_SECONDS: Final = 0.5


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer ops start jobs.pause --filter tag=billing --reason 'the migration'
    bellringer ops list
    """,
)
def ops() -> None:
    """Start and follow bulk operations on jobs, runs or dead letters."""


@ops.command(
    "start",
    examples="""
    bellringer ops start jobs.pause --filter tag=billing --dry-run
    bellringer ops start jobs.update --filter task=shop.charge --set retry.attempts=1 --dry-run
    bellringer ops start runs.cancel --filter state=queued --filter job=nightly --expect 40 --yes
    bellringer ops start dead_letters.redrive --filter fingerprint=1c9f… --rate 60 --wait
    """,
)
@click.argument("action", type=click.Choice(ACTIONS), metavar="ACTION")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Select items by a filter of the corresponding list. Repeatable.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="FIELD=VALUE",
    help="With jobs.update: set retry.attempts, retry.base, timeout, pool, priority, max_concurrency, enabled, tags, "
    "add_tags or remove_tags; `null` clears. Repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="Select all jobs or runs.")
@click.option(
    "--expect", type=click.IntRange(0), metavar="COUNT", help="Refuse the operation unless about this many items match."
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of items per minute.")
@click.option("--reason", help="Reason, stored with the jobs and runs.")
@click.option("--dry-run", is_flag=True, help="Only show how many items match, and what changes.")
@click.option("--wait", is_flag=True, help="Wait until the operation is done.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@output_option(*ONE)
@with_client
def start(
    client: Client,
    *,
    action: str,
    ids: Sequence[str],
    filters: Sequence[str],
    sets: Sequence[str],
    everything: bool,
    expect: int | None,
    rate: float | None,
    reason: str | None,
    dry_run: bool,
    wait: bool,
    yes: bool,
    output: str,
) -> None:
    """Start an ACTION on the given items, or on all that match the filters.

    ACTION is jobs.pause, jobs.resume, jobs.delete, jobs.run, jobs.update, runs.cancel, runs.retry,
    dead_letters.redrive or dead_letters.discard.
    """
    if sum((bool(ids), bool(filters), everything)) != 1:
        fail("select items in exactly one way", "give ids, --filter or --all")
    which: dict[str, Any] = {"ids": list(ids)} if ids else {"filter": read_filters(filters)}
    if sets:
        which["changes"] = read_changes(sets)
    plan = client.plan_bulk(action, **which)
    if dry_run:
        click.echo(to_json(plan) if output == "json" else describe_plan(plan))
        return
    for app, count in (plan.declared_by or {}).items():
        text = f"{count} of {plan.examined} jobs are declared by the app {app}, whose next start overrides the change"
        click.echo(sanitize(f"warning: {text}"), err=True)
    confirm(f"{action}: {format_count(plan.count)}. Continue?", yes=yes)
    expected = plan.count.value if expect is None else expect
    operation = client.bulk(action, **which, expected_count=expected, rate=rate, reason=reason)
    print_operation(wait_for_operation(client, operation.operation_id) if wait else operation, output)


def read_filters(given: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a repeated name becomes a list."""
    found: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            fail(f"--filter {text!r} is not NAME=VALUE", "write it like --filter tag=billing")
        word = read_value(value) if name == "worker" else value
        if name in found:
            found[name] = [*(found[name] if isinstance(found[name], list) else [found[name]]), word]
        else:
            found[name] = word
    return found


def read_changes(given: Sequence[str]) -> dict[str, Any]:
    """Parse FIELD=VALUE pairs; `retry.attempts=1` sets a part of `retry`, and tags are separated by commas."""
    found: dict[str, Any] = {}
    for text in given:
        name, separator, written = text.partition("=")
        if not separator or not name:
            fail(f"--set {text!r} is not FIELD=VALUE", "write it like --set retry.attempts=1")
        value = read_value(written)
        if name in _LISTS and not isinstance(value, list):
            value = [part for part in written.split(",") if part]
        head, _, part = name.partition(".")
        if part:
            inner = found.setdefault(head, {})
            if not isinstance(inner, dict):
                fail(f"--set {text!r} sets a part of {head}, which is set as a whole", "set either the parts or all")
            inner[part] = value
        else:
            found[name] = value
    return found


def describe_plan(plan: BulkPlan) -> str:
    """Describe what an operation would do: how many items, and the values of each field that changes."""
    lines = [f"{plan.action}: {format_count(plan.count)}"]
    for change in plan.changes or ():
        lines.append(f"  {change.field}: changes in {change.jobs} of {plan.examined} examined jobs")
        lines += [f"    {v.job}: {to_compact_json(v.before)} → {to_compact_json(v.after)}" for v in change.sample]
    if plan.changes == []:
        lines.append("  nothing would change")
    for app, count in (plan.declared_by or {}).items():
        lines.append(f"  warning: the next start of the app {app} overrides this in {count} of {plan.examined} jobs")
    return sanitize("\n".join(lines))


def wait_for_operation(client: Client, operation_id: str) -> Operation:
    """Polls until the operation has ended, and returns it. Ctrl-C leaves the operation running."""
    try:
        with show_progress(operation_id, "items") as progress:
            while True:
                operation = client.operation(operation_id)
                progress.update(operation.done + operation.skipped, total=operation.total.value)
                if operation.state != "running":
                    return operation
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        click.echo(f"{operation_id} continues in the background", err=True)
        click.echo(f"hint: stop it with `bellringer ops abort {operation_id}`", err=True)
        click.get_current_context().exit(INTERRUPTED)


@ops.command("list", examples="bellringer ops list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_operations(client: Client, *, limit: int, output: str) -> None:
    """List operations, newest first."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.operations, limit, output=output),
        head=("OPERATION", "STATE", "ACTION", "DONE", "OF", "FAILED", "STARTED", "BY", "ETA"),
        row=lambda o: (
            o.operation_id,
            o.state,
            o.action,
            str(o.done + o.skipped),
            format_count(o.total),
            str(o.failed),
            format_relative(o.created_at, now),
            o.who,
            _eta(o, now),
        ),
        name=lambda o: o.operation_id,
        empty="no operations",
    )


@ops.command("get", examples="bellringer ops get op_7")
@click.argument("operation")
@output_option(*ONE)
@with_client
def get(client: Client, *, operation: str, output: str) -> None:
    """Show the progress of an operation."""
    print_operation(client.operation(operation), output)


@ops.command("abort", examples="bellringer ops abort op_7")
@click.argument("operation")
@output_option(*ONE)
@with_client
def abort(client: Client, *, operation: str, output: str) -> None:
    """Stop an operation. Items that it has changed stay changed."""
    print_operation(client.abort_operation(operation), output)


@ops.command("revert", examples="bellringer ops revert op_7 --wait")
@click.argument("operation")
@click.option("--wait", is_flag=True, help="Wait until the operation is done.")
@output_option(*ONE)
@with_client
def revert(client: Client, *, operation: str, wait: bool, output: str) -> None:
    """Take back what a jobs.update operation has changed. Fields that were changed again since then stay."""
    begun = client.revert_operation(operation)
    print_operation(wait_for_operation(client, begun.operation_id) if wait else begun, output)


def print_operation(o: Operation, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(to_json(o) if output == "json" else o.operation_id)
        return
    now = SystemClock().now()
    print_fields(
        {
            "operation": o.operation_id,
            "state": o.state,
            "action": o.action,
            "filter": "" if o.filter is None else ", ".join(f"{k}={v}" for k, v in o.filter.items()) or "all",
            "sets": "" if o.changes is None else to_compact_json(o.changes),
            "done": f"{o.done} of {format_count(o.total)}",
            "skipped": str(o.skipped) if o.skipped else "",
            "failed": str(o.failed) if o.failed else "",
            "rate": f"{o.rate:g} per minute" if o.rate else "",
            "eta": _eta(o, now),
            "started": f"{format_relative(o.created_at, now)} by {o.who}",
            "ended": format_relative(o.ended_at, now) if o.ended_at else "",
            "reason": o.reason or "",
            "failures": "\n".join(f"{f.id}  {f.code}: {f.detail}" for f in o.failures),
        }
    )


def _eta(o: Operation, now: datetime) -> str:
    return format_relative(o.eta, now) if o.eta else "–"


def format_count(count: Count) -> str:
    return f"{count.value} or more" if count.relation == "gte" else str(count.value)
