"""`bellringer dead`: dead letters, the runs that failed for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.jobs import confirm
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import LIST, format_relative, output_option, print_list
from bellringer.cli.runs import error_of

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.dead_letters import Bulk


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer dead list
    bellringer dead redrive --fingerprint 1c9f…
    """,
)
def dead() -> None:
    """Manage dead letters: runs that failed for good, until they are redriven or discarded."""


@dead.command(
    "list",
    examples="""
    bellringer dead list
    bellringer dead list --fingerprint 1c9f… -o name
    """,
)
@click.option("--fingerprint", help="Only dead letters with this error fingerprint.")
@click.option("--job", help="Only dead letters of this job.")
@click.option("--task", help="Only dead letters of this task.")
@limit_option
@output_option(*LIST)
@with_client
def list_dead(client: Client, /, *, limit: int, output: str, **filters: Any) -> None:
    """List dead letters, newest first. Equal errors share a fingerprint."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.dead_letters, limit, output=output, **filters),
        head=("JOB", "DIED", "TRIES", "ERROR", "FINGERPRINT", "RUN"),
        row=lambda letter: (
            letter.job or letter.task,
            format_relative(letter.died_at, now),
            str(letter.attempt),
            error_of(letter.error) or letter.reason,
            letter.fingerprint,
            letter.run_id,
        ),
        name=lambda letter: letter.run_id,
        empty="no dead letters",
    )


@dead.command("groups", examples="bellringer dead groups")
@limit_option
@output_option(*LIST)
@with_client
def groups(client: Client, *, limit: int, output: str) -> None:
    """Show dead letters grouped by error."""
    from bellringer.cli.operations import format_count
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.dead_letter_groups, limit, output=output),
        head=("COUNT", "ERROR", "LAST", "FIRST", "JOBS", "FINGERPRINT"),
        row=lambda group: (
            format_count(group.count),
            error_of({"type": group.type, "message": group.message}) or group.reason,
            format_relative(group.last_died_at, now),
            format_relative(group.first_died_at, now),
            ", ".join(group.jobs) or "–",
            group.fingerprint,
        ),
        name=lambda group: group.fingerprint,
        empty="no dead letters",
    )


def selection_options(function: Any) -> Any:
    for option in (
        click.option("--fingerprint", help="All dead letters with this error fingerprint."),
        click.option("--all", "everything", is_flag=True, help="All dead letters."),
        click.argument("ids", metavar="[RUN]...", nargs=-1),
    ):
        function = option(function)
    return function


def apply(client: Client, act: Callable[..., Bulk], ids: Sequence[str], everything: bool, **terms: Any) -> int:
    """Apply an action to the selected dead letters, wait for its operation if there is one, and return the count."""
    from bellringer.cli.operations import wait_for_operation

    if sum((bool(ids), everything, terms["fingerprint"] is not None)) != 1:
        fail("select dead letters in exactly one way", "give run ids, --fingerprint or --all")
    done = act(list(ids) or None, everything=everything, **terms)
    if not done.operation_id:
        return done.count
    click.echo(f"{done.operation_id} is running; stop it with `bellringer ops abort {done.operation_id}`", err=True)
    return wait_for_operation(client, done.operation_id).done


@dead.command(
    "redrive",
    examples="""
    bellringer dead redrive run_…
    bellringer dead redrive --all --rate 60
    """,
)
@selection_options
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of runs per minute.")
@with_client
def redrive(
    client: Client, *, ids: Sequence[str], everything: bool, fingerprint: str | None, rate: float | None
) -> None:
    """Run dead letters again, with new attempts. The idempotency keys stay the same."""
    count = apply(client, client.redrive, ids, everything, fingerprint=fingerprint, rate=rate)
    click.echo(f"redriven: {count}")


@dead.command("discard", examples="bellringer dead discard --fingerprint 1c9f… --yes")
@selection_options
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@with_client
def discard(client: Client, *, ids: Sequence[str], everything: bool, fingerprint: str | None, yes: bool) -> None:
    """Remove dead letters. The history of the runs is kept, and `bellringer dead restore` undoes it for a day."""
    if not ids:
        confirm(
            "discard all dead letters?" if everything else f"discard all dead letters with fingerprint {fingerprint}?",
            yes=yes,
        )
    click.echo(f"discarded: {apply(client, client.discard, ids, everything, fingerprint=fingerprint)}")


@dead.command(
    "discarded",
    examples="""
    bellringer dead discarded
    bellringer dead discarded --operation op_12 -o name
    """,
)
@click.option("--fingerprint", help="Only dead letters with this error fingerprint.")
@click.option("--operation", metavar="OPERATION", help="Only those that this operation discarded.")
@limit_option
@output_option(*LIST)
@with_client
def list_discarded(client: Client, /, *, limit: int, output: str, **filters: Any) -> None:
    """List dead letters that were discarded within the last day, and can be restored."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.discarded, limit, output=output, **filters),
        head=("JOB", "DISCARDED", "BY", "ERROR", "FINGERPRINT", "RUN"),
        row=lambda letter: (
            letter.job or letter.task,
            format_relative(letter.discarded_at, now),
            letter.discarded_by or "–",
            error_of(letter.error) or letter.reason,
            letter.fingerprint,
            letter.run_id,
        ),
        name=lambda letter: letter.run_id,
        empty="nothing was discarded within the last day",
    )


@dead.command(
    "restore",
    examples="""
    bellringer dead restore run_…
    bellringer dead restore --operation op_12
    """,
)
@click.option("--fingerprint", help="All with this error fingerprint.")
@click.option("--operation", "operation_id", metavar="OPERATION", help="All that this operation discarded.")
@click.option("--all", "everything", is_flag=True, help="All that were discarded within the last day.")
@click.argument("ids", metavar="[RUN]...", nargs=-1)
@with_client
def restore(
    client: Client, *, ids: Sequence[str], everything: bool, fingerprint: str | None, operation_id: str | None
) -> None:
    """Undo a discard: the runs become dead letters again. Possible for a day, while the runs are in the history."""
    if sum((bool(ids), everything, fingerprint is not None, operation_id is not None)) != 1:
        fail("select dead letters in exactly one way", "give run ids, --fingerprint, --operation or --all")
    count, more = 0, True
    while more:
        done = client.restore_discarded(
            list(ids) or None, fingerprint=fingerprint, operation_id=operation_id, everything=everything
        )
        count, more = count + done.count, done.more
    click.echo(f"restored: {count}")
