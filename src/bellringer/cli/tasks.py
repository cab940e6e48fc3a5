"""`bellringer tasks`: the tasks that workers have registered, and their pauses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.command_groups import CommandGroup
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
from bellringer.cli.pools import shown_rate
from bellringer.durations import format_duration

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.workers import TaskItem


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer tasks list
    bellringer tasks pause shop.charge --reason 'the bank is down' --until 30m
    """,
)
def tasks() -> None:
    """List, pause and resume the tasks that workers have registered."""


@tasks.command("list", examples="bellringer tasks list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_tasks(client: Client, *, limit: int, output: str) -> None:
    """List registered tasks with their waiting, running, held and dead runs; dead ones of the last hour."""
    print_list(
        output,
        fetch_pages(client.tasks, limit, output=output),
        head=("NAME", "WORKERS", "READY", "RETRYING", "RUNNING", "HELD", "DEAD", "PAUSED", "DEFAULTS", "WHAT"),
        row=lambda task: (
            task.name,
            str(task.workers),
            f"{task.ready:,}",
            f"{task.retrying:,}",
            f"{task.running:,}",
            f"{task.held:,}",
            f"{task.dead:,}",
            describe_pause(task) or "–",
            " ".join(f"{name}={_shown_default(name, value)}" for name, value in task.defaults.items()) or "–",
            task.doc.partition("\n")[0] or "–",
        ),
        name=lambda task: task.name,
        empty="no tasks; start a worker with `bellringer worker APP`",
    )


@tasks.command("show", examples="bellringer tasks show shop.report")
@click.argument("name")
@output_option(*ONE)
@with_client
def show(client: Client, *, name: str, output: str) -> None:
    """Show a task: its arguments, defaults and workers."""
    task = client.task(name)
    if output == "json":
        click.echo(to_json(task))
    elif output == "name":
        click.echo(task.name)
    else:
        print_fields(
            {
                "task": task.name,
                "what": task.doc,
                "paused": describe_pause(task),
                "workers": ", ".join(worker.name for worker in task.known_by) or "no live worker",
                "ready": f"{task.ready:,}" + ("" if task.oldest is None else f", for {format_seconds(task.oldest)}"),
                "retrying": f"{task.retrying:,}",
                "running": f"{task.running:,}",
                "held": f"{task.held:,}" if task.held else "",
                "dead": f"{task.dead:,} in the last hour" if task.dead else "",
                "defaults": json.dumps(task.defaults) if task.defaults else "",
                "takes": json.dumps(task.schema.get("properties", {}), ensure_ascii=False),
                "needs": ", ".join(task.schema.get("required", [])) or "nothing",
            }
        )


@tasks.command(
    "pause",
    examples="""
    bellringer tasks pause shop.charge --reason 'the bank is down'
    bellringer tasks pause shop.charge --until 30m
    """,
)
@click.argument("names", metavar="TASK...", nargs=-1, required=True)
@click.option("--reason", help="Reason, shown with the task and its waiting runs.")
@click.option("--until", metavar="TIME", help="End of the pause: a duration such as 30m, or an instant.")
@with_client
def pause(client: Client, *, names: Sequence[str], reason: str | None, until: str | None) -> None:
    """Pause tasks: no run of them starts, whether scheduled, sent, retried or part of a workflow.

    Running runs finish. Occurrences and sends are still accepted, and wait.
    """
    for name in names:
        task = client.pause_task(name, reason=reason, until=until)
        end = "" if task.paused is None or task.paused.until is None else f" until {format_local(task.paused.until)}"
        click.echo(f"paused {task.name}{end}; {task.held:,} runs wait, {task.running:,} continue")


@tasks.command(
    "resume",
    examples="""
    bellringer tasks resume shop.charge
    bellringer tasks resume shop.charge --rate 50/s
    """,
)
@click.argument("names", metavar="TASK...", nargs=-1, required=True)
@click.option("--rate", metavar="N/s", help="Release waiting runs at this rate: 50/s, 300/m or 10/h. New runs start.")
@with_client
def resume(client: Client, *, names: Sequence[str], rate: str | None) -> None:
    """Resume paused tasks: at once, or with --rate gradually."""
    for name in names:
        task = client.resume_task(name, rate=rate)
        pace = None if task.paused is None else task.paused.rate
        waiting = "" if pace is None else f"; {task.held:,} runs are released at {shown_rate(pace)}"
        click.echo(f"resumed {task.name}{waiting}")


def _shown_default(name: str, value: Any) -> str:
    """Format a default for a list: 5m for a timeout, attempts:5,delays:[1,60] for a retry policy."""
    if isinstance(value, dict):
        return ",".join(f"{key}:{to_compact_json(part)}" for key, part in value.items())
    if name in {"timeout", "heartbeat", "expected_duration", "expires_in"} and isinstance(value, int | float):
        return format_duration(timedelta(seconds=value))
    return str(value)


def describe_pause(task: TaskItem) -> str:
    """Describe the pause of a task in one line; empty if it is not paused."""
    pause = task.paused
    if pause is None:
        return ""
    if pause.rate is not None:
        return f"releasing {shown_rate(pause.rate)}"
    until = f" until {format_local(pause.until)}" if pause.until else ""
    why = f": {pause.reason}" if pause.reason else ""
    return f"by {pause.by} at {format_local(pause.at)}{until}{why}"
