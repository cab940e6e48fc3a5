"""`bellringer tasks` and `bellringer pools`: what all tenants share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time, span

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.installation import Pool


@click.group(cls=Group, examples="bellringer tasks list")
def tasks() -> None:
    """Tasks: the functions that workers know."""


@tasks.command("list", examples="bellringer tasks list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_tasks(client: Client, *, limit: int, output: str) -> None:
    """List tasks that workers have told of."""
    print_list(
        output,
        gather(client.tasks, limit, output=output),
        head=("NAME", "WORKERS", "DEFAULTS", "WHAT"),
        row=lambda task: (
            task.name,
            str(task.workers),
            " ".join(f"{name}={value}" for name, value in task.defaults.items() if not isinstance(value, dict)) or "–",
            task.doc.partition("\n")[0] or "–",
        ),
        name=lambda task: task.name,
        nothing="no worker has told of a task; start one with `bellringer worker APP`",
    )


@tasks.command("show", examples="bellringer tasks show shop.report")
@click.argument("name")
@output_option(*ONE)
@with_client
def show(client: Client, *, name: str, output: str) -> None:
    """Show a task: what it takes, and who knows it."""
    task = client.task(name)
    if output == "json":
        click.echo(as_json(task))
    elif output == "name":
        click.echo(task.name)
    else:
        print_facts(
            {
                "task": task.name,
                "what": task.doc,
                "known by": ", ".join(worker.name for worker in task.known_by) or "nobody who is there",
                "defaults": json.dumps(task.defaults) if task.defaults else "",
                "takes": json.dumps(task.schema.get("properties", {}), ensure_ascii=False),
                "needs": ", ".join(task.schema.get("required", [])) or "nothing",
            }
        )


@click.group(cls=Group, examples="bellringer pools list")
def pools() -> None:
    """Pools: named lanes, and the workers that serve them."""


@pools.command("list", examples="bellringer pools list")
@limit_option
@output_option(*LIST)
@with_client
def list_pools(client: Client, *, limit: int, output: str) -> None:
    """List pools: what waits in them, and who works for them."""
    print_list(
        output,
        gather(client.pools, limit, output=output),
        head=("NAME", "READY", "OLDEST", "BUSY", "WORKERS", "PAUSED", "WHAT"),
        row=lambda pool: (
            pool.name,
            f"{pool.ready:,}",
            "–" if pool.oldest is None else span(pool.oldest),
            f"{pool.busy}/{pool.slots}",
            str(pool.workers),
            _paused(pool),
            pool.description or "–",
        ),
        name=lambda pool: pool.name,
        nothing="there are no pools",
    )


@pools.command("pause", examples='bellringer pools pause long --reason "the warehouse is down"')
@click.argument("name")
@click.option("--reason", help="Why.")
@with_client
def pause(client: Client, *, name: str, reason: str | None) -> None:
    """Let nothing of a pool start; what runs goes on."""
    made = client.put_pool(name, description=client.pool(name).description, paused=True, reason=reason)
    click.echo(f"paused {made.name}; {made.busy:,} of its runs go on")


@pools.command("resume", examples="bellringer pools resume long")
@click.argument("name")
@with_client
def resume(client: Client, *, name: str) -> None:
    """Let a paused pool go on."""
    made = client.put_pool(name, description=client.pool(name).description)
    click.echo(f"resumed {made.name}; {made.ready:,} of its runs are ready")


def _paused(pool: Pool) -> str:
    if pool.paused is None:
        return "–"
    why = f": {pool.paused.reason}" if pool.paused.reason else ""
    return f"since {clock_time(pool.paused.at)}{why}"
