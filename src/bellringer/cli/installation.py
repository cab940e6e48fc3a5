"""`bellringer tasks` and `bellringer pools`: what all tenants share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group, fail
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time, span

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.installation import Pool

_BOUNDS: Final = ("concurrency", "rate", "timeout")
_NOTHING: Final = "none"  # the word that takes a value away


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
        head=("NAME", "READY", "OLDEST", "BUSY", "WORKERS", "BOUNDS", "PAUSED", "WHAT"),
        row=lambda pool: (
            pool.name,
            f"{pool.ready:,}",
            "–" if pool.oldest is None else span(pool.oldest),
            f"{pool.busy}/{pool.slots}",
            str(pool.workers),
            _bounds(pool),
            _paused(pool),
            pool.description or "–",
        ),
        name=lambda pool: pool.name,
        nothing="there are no pools",
    )


@pools.command("show", examples="bellringer pools show short")
@click.argument("name")
@output_option(*ONE)
@with_client
def show_pool(client: Client, *, name: str, output: str) -> None:
    """Show a pool: its bounds, what waits in it, and who works for it."""
    _print_pool(client.pool(name), output)


@pools.command(
    "set",
    examples="""
    bellringer pools set short --concurrency 100 --rate 50/s --timeout 60s
    bellringer pools set gpu --description 'with a card' --concurrency 4
    bellringer pools set short --rate none
    """,
)
@click.argument("name")
@click.option("--description", help="What it is for.")
@click.option("--concurrency", metavar="N", help="How many of its runs are under way at most, on all workers.")
@click.option("--rate", metavar="N/s", help="How many start at most: 50/s, 300/m or 10/h, on all workers.")
@click.option("--timeout", metavar="TIME", help="The longest that an attempt takes whose job says nothing.")
@output_option(*ONE)
@with_client
def set_pool(client: Client, /, *, name: str, output: str, **given: str | None) -> None:
    """Change what the options name of a pool, or make one; the rest stays. The word `none` takes a bound away."""
    from bellringer.errors import NotFound

    wanted: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    if not wanted:
        fail("nothing is to be changed", "name it, such as --concurrency 100")
    if (most := wanted.get("concurrency")) not in {None, _NOTHING}:
        if not most.isascii() or not most.isdecimal():
            fail(f"--concurrency {most!r} cannot be read", "write a whole number")
        wanted["concurrency"] = int(most)
    try:
        before = _chosen(client.pool(name))
    except NotFound:
        before = {}
    taken = {option: None if value == _NOTHING else value for option, value in wanted.items()}
    if taken.get("description", "") is None:
        taken["description"] = ""
    _print_pool(client.put_pool(name, **{**before, **taken}), output)


@pools.command("pause", examples='bellringer pools pause long --reason "the warehouse is down"')
@click.argument("name")
@click.option("--reason", help="Why.")
@with_client
def pause(client: Client, *, name: str, reason: str | None) -> None:
    """Let nothing of a pool start; what runs goes on."""
    made = client.put_pool(name, **{**_chosen(client.pool(name)), "paused": True, "reason": reason})
    click.echo(f"paused {made.name}; {made.busy:,} of its runs go on")


@pools.command("resume", examples="bellringer pools resume long")
@click.argument("name")
@with_client
def resume(client: Client, *, name: str) -> None:
    """Let a paused pool go on."""
    made = client.put_pool(name, **{**_chosen(client.pool(name)), "paused": False, "reason": None})
    click.echo(f"resumed {made.name}; {made.ready:,} of its runs are ready")


def _chosen(pool: Pool) -> dict[str, Any]:
    """What somebody has chosen of a pool, as it is put again."""
    paused = {"paused": pool.paused is not None, "reason": pool.paused.reason if pool.paused else None}
    return {name: getattr(pool, name) for name in ("description", *_BOUNDS)} | paused


def _print_pool(pool: Pool, output: str) -> None:
    if output != "table":
        click.echo(as_json(pool) if output == "json" else pool.name)
        return
    print_facts(
        {
            "name": pool.name,
            "what": pool.description,
            "paused": "" if pool.paused is None else _paused(pool),
            "at once": "" if pool.concurrency is None else f"{pool.concurrency:,}",
            "rate": "" if pool.rate is None else shown_rate(pool.rate),
            "timeout": pool.timeout or "",
            "ready": f"{pool.ready:,}",
            "oldest": "" if pool.oldest is None else span(pool.oldest),
            "busy": f"{pool.busy:,} of {pool.slots:,} slots",
            "workers": f"{pool.workers:,}",
        }
    )


def shown_rate(rate: float) -> str:
    """Starts a second, in the unit in which they are one or more."""
    for unit, seconds in (("s", 1), ("m", 60)):
        if rate * seconds >= 1:
            return f"{rate * seconds:,g}/{unit}"
    return f"{rate * 3600:,g}/h"


def _bounds(pool: Pool) -> str:
    at_once = None if pool.concurrency is None else f"{pool.concurrency:,} at once"
    rate = None if pool.rate is None else shown_rate(pool.rate)
    timeout = None if pool.timeout is None else f"timeout {pool.timeout}"
    return ", ".join(bound for bound in (at_once, rate, timeout) if bound) or "–"


def _paused(pool: Pool) -> str:
    if pool.paused is None:
        return "–"
    why = f": {pool.paused.reason}" if pool.paused.reason else ""
    return f"since {clock_time(pool.paused.at)}{why}"
