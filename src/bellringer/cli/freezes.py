"""`bellringer freezes`: times in which schedules rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Freeze

POLICIES: Final = ("defer", "skip", "collapse")


@click.group(
    cls=Group,
    examples="""
    bellringer freezes create black-friday --to 2h
    bellringer freezes lift black-friday
    """,
)
def freezes() -> None:
    """Freezes: times in which schedules rest; what is due then is deferred, skipped or collapsed into one run."""


@freezes.command("list", examples="bellringer freezes list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_freezes(client: Client, *, limit: int, output: str) -> None:
    """List freezes: what is to come and what holds first, then what is over."""
    print_list(
        output,
        gather(client.freezes, limit, output=output),
        head=("ID", "NAME", "STATE", "FROM", "TO", "POLICY", "TAGS", "REASON"),
        row=lambda f: (
            f.freeze_id,
            f.name,
            f.state,
            clock_time(f.from_at),
            clock_time(f.to_at),
            f.policy,
            ", ".join(f.tags) or "all jobs",
            f.reason or "–",
        ),
        name=lambda f: f.freeze_id,
        nothing="there are no freezes",
    )


@freezes.command(
    "create",
    examples="""
    bellringer freezes create black-friday --from 2026-11-27T00:00:00Z --to 2026-11-28T00:00:00Z --reason "no deploys"
    bellringer freezes create migration --to 90m --policy collapse --tag warehouse
    """,
)
@click.argument("name")
@click.option("--from", "start", metavar="TIME", help="When it begins.  [default: now]")
@click.option("--to", "end", metavar="TIME", required=True, help="When it ends: a time, or a length such as 2h.")
@click.option("--policy", type=click.Choice(POLICIES), default="defer", show_default=True, help="What becomes of it.")
@click.option("--tag", "tags", multiple=True, help="Only jobs with this tag; may be repeated.")
@click.option("--reason", help="Why.")
@output_option(*ONE)
@with_client
def create(
    client: Client,
    *,
    name: str,
    start: str | None,
    end: str,
    policy: str,
    tags: tuple[str, ...],
    reason: str | None,
    output: str,
) -> None:
    """Let schedules rest: defer to the end, skip, or collapse into one run of each job.

    Times are RFC 3339 with an offset. A run that is due within a second of a freeze's creation may still start;
    what already runs goes on.
    """
    made = client.create_freeze(name, end, start=start, policy=policy, tags=tags, reason=reason)
    _print(made, output)


@freezes.command("lift", examples="bellringer freezes lift black-friday")
@click.argument("freeze")
@with_client
def lift(client: Client, *, freeze: str) -> None:
    """End a freeze now, by its id or name; what it held goes at once."""
    done = client.lift_freeze(freeze)
    runs = f"{done.freed:,} {'run goes' if done.freed == 1 else 'runs go'} now"
    click.echo(f"{freeze} was over already" if done.was_over else f"lifted {freeze}; {runs}")


def _print(freeze: Freeze, output: str) -> None:
    if output == "json":
        click.echo(as_json(freeze))
    elif output == "name":
        click.echo(freeze.freeze_id)
    else:
        print_facts(
            {
                "freeze": freeze.freeze_id,
                "name": freeze.name,
                "state": freeze.state,
                "from": clock_time(freeze.from_at),
                "to": clock_time(freeze.to_at),
                "policy": freeze.policy,
                "jobs": _covers(freeze),
                "reason": freeze.reason or "",
            }
        )


def _covers(freeze: Freeze) -> str:
    which = f"those tagged {', '.join(freeze.tags)}" if freeze.tags else "all"
    return which if freeze.jobs is None else f"{which}: {freeze.jobs:,} now"
