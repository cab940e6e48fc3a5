"""`bellringer dead`: the runs that gave up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group, fail
from bellringer.cli.jobs import confirm
from bellringer.cli.output import LIST, output_option, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.runs import error_of
from bellringer.cli.times import from_now

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Bulk


@click.group(
    cls=Group,
    examples="""
    bellringer dead list
    bellringer dead redrive --fingerprint 1c9f…
    """,
)
def dead() -> None:
    """Dead letters: runs that used up their attempts, until somebody redrives or discards them."""


@dead.command(
    "list",
    examples="""
    bellringer dead list
    bellringer dead list --fingerprint 1c9f… -o name
    """,
)
@click.option("--fingerprint", help="Only those that died of this.")
@limit_option
@output_option(*LIST)
@with_client
def list_dead(client: Client, *, fingerprint: str | None, limit: int, output: str) -> None:
    """List dead letters, the newest first; equal errors have one fingerprint."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        gather(client.dead_letters, limit, output=output, fingerprint=fingerprint),
        head=("JOB", "DIED", "TRIES", "ERROR", "FINGERPRINT", "RUN"),
        row=lambda letter: (
            letter.job or letter.task,
            from_now(letter.died_at, now),
            str(letter.attempt),
            error_of(letter.error) or letter.reason,
            letter.fingerprint,
            letter.run_id,
        ),
        name=lambda letter: letter.run_id,
        nothing="nothing is dead",
    )


def which_options(function: Any) -> Any:
    for option in (
        click.option("--fingerprint", help="All that died of this."),
        click.option("--all", "everything", is_flag=True, help="All of them."),
        click.argument("ids", metavar="[RUN]...", nargs=-1),
    ):
        function = option(function)
    return function


def apply(act: Callable[..., Bulk], ids: Sequence[str], everything: bool, fingerprint: str | None) -> int:
    """Do it to those that were named in one of the three ways; answers to how many."""
    if sum((bool(ids), everything, fingerprint is not None)) != 1:
        fail("which dead letters is not said, or said twice", "give runs, or --fingerprint, or --all")
    count = 0
    while True:
        done = act(list(ids) or None, fingerprint=fingerprint, everything=everything)
        count += done.count
        if not done.more:
            return count


@dead.command(
    "redrive",
    examples="""
    bellringer dead redrive run_…
    bellringer dead redrive --all
    """,
)
@which_options
@with_client
def redrive(client: Client, *, ids: Sequence[str], everything: bool, fingerprint: str | None) -> None:
    """Give dead runs their attempts anew, under the same idempotency key."""
    click.echo(f"redriven: {apply(client.redrive, ids, everything, fingerprint)}")


@dead.command("discard", examples="bellringer dead discard --fingerprint 1c9f… --yes")
@which_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def discard(client: Client, *, ids: Sequence[str], everything: bool, fingerprint: str | None, yes: bool) -> None:
    """Take runs off the dead letters for good; their history stays."""
    if not ids:
        confirm("discard all dead letters?" if everything else f"discard all of {fingerprint}?", yes=yes)
    click.echo(f"discarded: {apply(client.discard, ids, everything, fingerprint)}")
