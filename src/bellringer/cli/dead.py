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
@click.option("--job", help="Only those of this job.")
@click.option("--task", help="Only those of this task.")
@limit_option
@output_option(*LIST)
@with_client
def list_dead(client: Client, /, *, limit: int, output: str, **filters: Any) -> None:
    """List dead letters, the newest first; equal errors have one fingerprint."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        gather(client.dead_letters, limit, output=output, **filters),
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


@dead.command("groups", examples="bellringer dead groups")
@limit_option
@output_option(*LIST)
@with_client
def groups(client: Client, *, limit: int, output: str) -> None:
    """Show what runs died of, and how many of each."""
    from bellringer.cli.ops import count_of
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        gather(client.dead_letter_groups, limit, output=output),
        head=("COUNT", "ERROR", "LAST", "FIRST", "JOBS", "FINGERPRINT"),
        row=lambda group: (
            count_of(group.count),
            error_of({"type": group.type, "message": group.message}) or group.reason,
            from_now(group.last_died_at, now),
            from_now(group.first_died_at, now),
            ", ".join(group.jobs) or "–",
            group.fingerprint,
        ),
        name=lambda group: group.fingerprint,
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


def apply(client: Client, act: Callable[..., Bulk], ids: Sequence[str], everything: bool, **terms: Any) -> int:
    """Do it to those that were named in one of the three ways; answers to how many. An operation is waited for."""
    from bellringer.cli.ops import until_done

    if sum((bool(ids), everything, terms["fingerprint"] is not None)) != 1:
        fail("which dead letters is not said, or said twice", "give runs, or --fingerprint, or --all")
    done = act(list(ids) or None, everything=everything, **terms)
    if not done.operation_id:
        return done.count
    click.echo(f"{done.operation_id}: bellringer ops abort {done.operation_id} ends it", err=True)
    return until_done(client, done.operation_id).done


@dead.command(
    "redrive",
    examples="""
    bellringer dead redrive run_…
    bellringer dead redrive --all --rate 60
    """,
)
@which_options
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="How many a minute at most.")
@with_client
def redrive(
    client: Client, *, ids: Sequence[str], everything: bool, fingerprint: str | None, rate: float | None
) -> None:
    """Give dead runs their attempts anew, under the same idempotency key."""
    count = apply(client, client.redrive, ids, everything, fingerprint=fingerprint, rate=rate)
    click.echo(f"redriven: {count}")


@dead.command("discard", examples="bellringer dead discard --fingerprint 1c9f… --yes")
@which_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def discard(client: Client, *, ids: Sequence[str], everything: bool, fingerprint: str | None, yes: bool) -> None:
    """Take runs off the dead letters for good; their history stays."""
    if not ids:
        confirm("discard all dead letters?" if everything else f"discard all of {fingerprint}?", yes=yes)
    click.echo(f"discarded: {apply(client, client.discard, ids, everything, fingerprint=fingerprint)}")
