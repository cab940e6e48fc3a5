"""`bellringer pools`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    to_json,
)

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.workers import Pool

_BOUNDS: Final = ("concurrency", "rate", "timeout")
_CLEAR: Final = "none"  # the value that clears a limit


@click.group(cls=CommandGroup, examples="bellringer pools list")
def pools() -> None:
    """Manage pools: named queues that workers serve."""


@pools.command("list", examples="bellringer pools list")
@limit_option
@output_option(*LIST)
@with_client
def list_pools(client: Client, *, limit: int, output: str) -> None:
    """List pools with their waiting runs and workers."""
    print_list(
        output,
        fetch_pages(client.pools, limit, output=output),
        head=("NAME", "READY", "OLDEST", "BUSY", "WORKERS", "BOUNDS", "PAUSED", "WHAT"),
        row=lambda pool: (
            pool.name,
            f"{pool.ready:,}",
            "–" if pool.oldest is None else format_seconds(pool.oldest),
            f"{pool.busy}/{pool.slots}",
            str(pool.workers),
            _bounds(pool),
            _paused(pool),
            pool.description or "–",
        ),
        name=lambda pool: pool.name,
        empty="no pools",
    )


@pools.command("show", examples="bellringer pools show short")
@click.argument("name")
@output_option(*ONE)
@with_client
def show_pool(client: Client, *, name: str, output: str) -> None:
    """Show a pool: its limits, waiting runs and workers."""
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
@click.option("--description", help="Description.")
@click.option("--concurrency", metavar="N", help="Maximum number of concurrent runs on all workers.")
@click.option("--rate", metavar="N/s", help="Maximum rate of starts on all workers: 50/s, 300/m or 10/h.")
@click.option("--timeout", metavar="TIME", help="Timeout of attempts whose job has none.")
@output_option(*ONE)
@with_client
def set_pool(client: Client, /, *, name: str, output: str, **given: str | None) -> None:
    """Create a pool, or change the given options; all others are kept. The value `none` clears a limit."""
    from bellringer.errors import NotFound

    wanted: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    if not wanted:
        fail("no options are given", "pass the options to change, such as --concurrency 100")
    if (most := wanted.get("concurrency")) not in {None, _CLEAR}:
        if not most.isascii() or not most.isdecimal():
            fail(f"--concurrency {most!r} is not a number", "give a whole number, or none")
        wanted["concurrency"] = int(most)
    try:
        before = _options(client.pool(name))
    except NotFound:
        before = {}
    taken = {option: None if value == _CLEAR else value for option, value in wanted.items()}
    if taken.get("description", "") is None:
        taken["description"] = ""
    _print_pool(client.put_pool(name, **{**before, **taken}), output)


@pools.command("pause", examples='bellringer pools pause long --reason "the warehouse is down"')
@click.argument("name")
@click.option("--reason", help="Reason, shown with the pool.")
@with_client
def pause(client: Client, *, name: str, reason: str | None) -> None:
    """Pause a pool: no new runs start. Running runs continue."""
    made = client.put_pool(name, **{**_options(client.pool(name)), "paused": True, "reason": reason})
    click.echo(f"paused {made.name}; {made.busy:,} runs continue")


@pools.command("resume", examples="bellringer pools resume long")
@click.argument("name")
@with_client
def resume(client: Client, *, name: str) -> None:
    """Resume a paused pool."""
    made = client.put_pool(name, **{**_options(client.pool(name)), "paused": False, "reason": None})
    click.echo(f"resumed {made.name}; {made.ready:,} runs are ready")


def _options(pool: Pool) -> dict[str, Any]:
    """The current options of a pool, which PUT would otherwise clear."""
    paused = {"paused": pool.paused is not None, "reason": pool.paused.reason if pool.paused else None}
    return {name: getattr(pool, name) for name in ("description", *_BOUNDS)} | paused


def _print_pool(pool: Pool, output: str) -> None:
    if output != "table":
        click.echo(to_json(pool) if output == "json" else pool.name)
        return
    print_fields(
        {
            "name": pool.name,
            "what": pool.description,
            "paused": "" if pool.paused is None else _paused(pool),
            "concurrency": "" if pool.concurrency is None else f"{pool.concurrency:,}",
            "rate": "" if pool.rate is None else shown_rate(pool.rate),
            "timeout": pool.timeout or "",
            "ready": f"{pool.ready:,}",
            "oldest": "" if pool.oldest is None else format_seconds(pool.oldest),
            "busy": f"{pool.busy:,} of {pool.slots:,} slots",
            "workers": f"{pool.workers:,}",
        }
    )


def shown_rate(rate: float) -> str:
    """Format a rate in the unit in which it is at least one."""
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
    return f"since {format_local(pool.paused.at)}{why}"
