"""`bellringer jobs backfill` and `bellringer backfills`: the past of a job, run again or at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import INTERRUPTED, Command, Group
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time, from_now

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Backfill, BackfillItem, BackfillPlan

LOOK: Final = 0.5  # seconds between two looks at what is waited for
UNENDED: Final = frozenset({"running", "paused"})


@click.command(
    "backfill",
    cls=Command,
    examples="""
    bellringer jobs backfill nightly --from 2026-01-01 --to 2026-02-01 --dry-run
    bellringer jobs backfill nightly --from 2026-01-01 --to 2026-02-01 --parallel 4 --order newest
    bellringer jobs backfill nightly --from 2026-01-01 --to 2026-02-01 --reprocess failed --yes --wait
    """,
)
@click.argument("job")
@click.option("--from", "start", required=True, metavar="TIME", help="RFC 3339, or a date or time of the job's zone.")
@click.option("--to", "end", required=True, metavar="TIME", help="The same; it is itself not in the range.")
@click.option("--parallel", type=click.IntRange(1, 1000), default=1, show_default=True, help="So many at once.")
@click.option(
    "--order", type=click.Choice(["oldest", "newest"]), default="oldest", show_default=True, help="Who first."
)
@click.option(
    "--reprocess",
    type=click.Choice(["none", "failed", "all"]),
    default="none",
    show_default=True,
    help="none: what has not succeeded; failed: only what ran and did not succeed; all: everything.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most so many a minute.")
@click.option("--dry-run", is_flag=True, help="Only say what it would do.")
@click.option("--plan", metavar="HASH", help="Only if it would still do what a dry run said under this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=None, help="Wait for its end.  [default: on a terminal]")
@output_option(*ONE)
@with_client
def backfill(
    client: Client,
    *,
    job: str,
    start: str,
    end: str,
    parallel: int,
    order: str,
    reprocess: str,
    rate: float | None,
    dry_run: bool,
    plan: str | None,
    yes: bool,
    wait: bool | None,
    output: str,
) -> None:
    """Run the occurrences of JOB from one time up to another, behind live work.

    A backfill that was waited for ends with the exit code 3 if one of its runs is dead.
    """
    from bellringer.cli.jobs import confirm

    found = client.plan_backfill(job, start, end, reprocess=reprocess)
    if dry_run or output == "table":
        print_plan(found, output)
    if dry_run:
        return
    if not found.to_run:
        click.echo("nothing is to be run", err=True)
        return
    confirm(f"run {found.to_run:,} occurrences of {found.job}?", yes=yes)
    made = client.start_backfill(
        job,
        start,
        end,
        plan=plan or found.plan,
        reprocess=reprocess,
        order=order,
        parallelism=parallel,
        rate=rate,
    )
    if wait if wait is not None else sys.stderr.isatty():
        made = watch(client, made)
    print_backfill(made, output)
    if made.dead and made.state not in UNENDED:
        from bellringer.cli.runs import FAILED

        click.get_current_context().exit(FAILED)


def print_plan(found: BackfillPlan, output: str) -> None:
    if output != "table":
        click.echo(as_json(found) if output == "json" else found.plan)
        return
    bound = "" if found.exact else "at most "
    print_facts(
        {
            "job": found.job,
            "from": clock_time(found.from_at),
            "to": clock_time(found.to_at),
            "occurrences": f"{found.count:,}",
            "already ran": f"{'' if found.exact else 'at least '}{found.already_ran:,}",
            "to run": f"{bound}{found.to_run:,}",
            "first": clock_time(found.first),
            "last": clock_time(found.last),
            "plan": found.plan,
        }
    )


def watch(client: Client, made: Backfill) -> Backfill:
    """Show how far it is, on stderr, until all of its runs have ended; Ctrl-C leaves it running."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            shown = bar.add_task(made.backfill_id, total=made.total)
            while True:
                bar.update(shown, completed=ended(made), description=f"{made.backfill_id} {told(made)}")
                if made.state not in UNENDED and not made.running:
                    return made
                time.sleep(LOOK)
                made = client.backfill(made.backfill_id)
    except KeyboardInterrupt:
        click.echo(f"{made.backfill_id} goes on by itself", err=True)
        click.echo(f"hint: `bellringer backfills cancel {made.backfill_id}` ends it", err=True)
        click.get_current_context().exit(INTERRUPTED)


def ended(b: Backfill) -> int:
    """How many of its occurrences need no more work."""
    return b.passed + b.made - b.running


def told(b: Backfill) -> str:
    parts = [b.state, f"{b.running} under way"] + [f"{b.dead} dead"] * bool(b.dead)
    return ", ".join(parts)


@click.group(
    cls=Group,
    examples="""
    bellringer backfills list --job nightly
    bellringer backfills cancel bf_7 --reason 'wrong month'
    """,
)
def backfills() -> None:
    """Backfills and catch-ups: what is still to be run of the past. Start one with `bellringer jobs backfill`."""


@backfills.command(
    "list",
    examples="""
    bellringer backfills list
    bellringer backfills list --job nightly -o json
    """,
)
@click.option("--job", help="Only those of this job.")
@limit_option
@output_option(*LIST)
@with_client
def list_backfills(client: Client, *, job: str | None, limit: int, output: str) -> None:
    """List them, the newest first."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        gather(client.backfills, limit, output=output, job=job),
        head=("ID", "STATE", "JOB", "CAUSE", "FROM", "TO", "DECIDED", "MADE", "STARTED"),
        row=lambda b: (
            b.backfill_id,
            b.state,
            b.job,
            b.cause,
            clock_time(b.from_at),
            clock_time(b.to_at),
            _progress(b),
            f"{b.made:,}",
            from_now(b.created_at, now),
        ),
        name=lambda b: b.backfill_id,
        nothing="no backfills yet; start one with `bellringer jobs backfill`",
    )


def _progress(b: BackfillItem) -> str:
    return "–" if b.total is None else f"{b.made + b.passed:,} of {b.total:,}"


@backfills.command("get", examples="bellringer backfills get bf_7 -o json")
@click.argument("backfill", metavar="ID")
@output_option(*ONE)
@with_client
def get(client: Client, *, backfill: str, output: str) -> None:
    """Show one."""
    print_backfill(client.backfill(backfill), output)


def print_backfill(b: Backfill, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(as_json(b) if output == "json" else b.backfill_id)
        return
    now = SystemClock().now()
    print_facts(
        {
            "id": b.backfill_id,
            "state": b.state,
            "job": b.job,
            "cause": b.cause,
            "from": clock_time(b.from_at),
            "to": clock_time(b.to_at),
            "decided": _progress(b),
            "order": f"{b.order} first",
            "parallel": str(b.parallelism),
            "rate": f"{b.rate:g} a minute" if b.rate else "",
            "runs": f"{b.made:,}",
            "under way": str(b.running),
            "succeeded": f"{b.succeeded:,}",
            "dead": f"{b.dead:,}" if b.dead else "",
            "cancelled": f"{b.cancelled:,}" if b.cancelled else "",
            "needed none": f"{b.passed:,}" if b.passed else "",
            "asked by": f"{b.who}, {from_now(b.created_at, now)}",
            "reason": b.why or "",
            "ended": from_now(b.ended_at, now),
        }
    )


@backfills.command("pause", examples="bellringer backfills pause bf_7")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@with_client
def pause(client: Client, *, ids: Sequence[str]) -> None:
    """Make no more runs for now; those that exist go on."""
    for number in ids:
        click.echo(f"paused {client.pause_backfill(number).backfill_id}")


@backfills.command("resume", examples="bellringer backfills resume bf_7")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@with_client
def resume(client: Client, *, ids: Sequence[str]) -> None:
    """Go on."""
    for number in ids:
        click.echo(f"resumed {client.resume_backfill(number).backfill_id}")


@backfills.command("cancel", examples="bellringer backfills cancel bf_7 --reason 'wrong month'")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", help="Why; it is kept.")
@with_client
def cancel(client: Client, *, ids: Sequence[str], reason: str | None) -> None:
    """End them: what waits is cancelled, what runs finishes."""
    for number in ids:
        b = client.cancel_backfill(number, reason=reason)
        click.echo(f"cancelled {b.backfill_id}, {b.running} of its runs are still under way")
