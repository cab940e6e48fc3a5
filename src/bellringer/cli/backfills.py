"""`bellringer jobs backfill` and `bellringer backfills`: run past occurrences of a job."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.command_groups import INTERRUPTED, Command, CommandGroup
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import (
    LIST,
    ONE,
    format_local,
    format_relative,
    output_option,
    print_fields,
    print_list,
    print_warnings,
    to_json,
)
from bellringer.cli.progress import show_progress

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.backfills import Backfill, BackfillItem, BackfillPlan

POLL_SECONDS: Final = 0.5
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
@click.option(
    "--from",
    "start",
    required=True,
    metavar="TIME",
    help="Start of the range: RFC 3339, or a date or time in the job's time zone.",
)
@click.option("--to", "end", required=True, metavar="TIME", help="End of the range (exclusive).")
@click.option(
    "--parallel",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Maximum number of concurrent runs. One at a time, unless the job has the overlap `allow`.",
)
@click.option(
    "--order",
    type=click.Choice(["oldest", "newest"]),
    default="oldest",
    show_default=True,
    help="Order in which runs start.",
)
@click.option(
    "--reprocess",
    type=click.Choice(["none", "failed", "all"]),
    default="none",
    show_default=True,
    help="Which occurrences to run. none: those without a successful run; failed: only those that ran and failed; all.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Maximum number of runs per minute."
)
@click.option("--dry-run", is_flag=True, help="Show the plan without starting the backfill.")
@click.option("--plan", metavar="HASH", help="Start only if the plan is the one shown by --dry-run.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option(
    "--wait/--no-wait", default=None, help="Wait for the backfill to end.  [default: wait if stderr is a terminal]"
)
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
    """Run the past occurrences of JOB in a range of time.

    They have lower priority than scheduled runs. With --wait, exits with code 3 if a run failed for good.
    """
    from bellringer.cli.jobs import confirm

    found = client.plan_backfill(job, start, end, reprocess=reprocess, parallelism=parallel)
    print_warnings(found.warnings)
    if dry_run or output == "table":
        print_plan(found, output)
    if dry_run:
        return
    if not found.to_run:
        click.echo("no occurrences to run", err=True)
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
        from bellringer.cli.runs import RUN_FAILED_EXIT_CODE

        click.get_current_context().exit(RUN_FAILED_EXIT_CODE)


def print_plan(found: BackfillPlan, output: str) -> None:
    if output != "table":
        click.echo(to_json(found) if output == "json" else found.plan)
        return
    bound = "" if found.exact else "at most "
    print_fields(
        {
            "job": found.job,
            "from": format_local(found.from_at),
            "to": format_local(found.to_at),
            "occurrences": f"{found.count:,}",
            "already ran": f"{'' if found.exact else 'at least '}{found.already_ran:,}",
            "to run": f"{bound}{found.to_run:,}",
            "first": format_local(found.first),
            "last": format_local(found.last),
            "plan": found.plan,
        }
    )


def watch(client: Client, made: Backfill) -> Backfill:
    """Show the progress on stderr until all runs have ended. Ctrl-C leaves the backfill running."""
    try:
        with show_progress(made.backfill_id, "occurrences", made.total) as progress:
            while True:
                progress.update(ended(made), what=f"{made.backfill_id} {described(made)}")
                if made.state not in UNENDED and not made.running:
                    return made
                time.sleep(POLL_SECONDS)
                made = client.backfill(made.backfill_id)
    except KeyboardInterrupt:
        click.echo(f"{made.backfill_id} continues in the background", err=True)
        click.echo(f"hint: cancel it with `bellringer backfills cancel {made.backfill_id}`", err=True)
        click.get_current_context().exit(INTERRUPTED)


def ended(b: Backfill) -> int:
    """The number of occurrences that are finished."""
    return b.passed + b.made - b.running


def described(b: Backfill) -> str:
    parts = [b.state, f"{b.running} under way"] + [f"{b.dead} dead"] * bool(b.dead)
    return ", ".join(parts)


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer backfills list --job nightly
    bellringer backfills cancel bf_7 --reason 'wrong month'
    """,
)
def backfills() -> None:
    """Manage backfills and catch-ups. Start a backfill with `bellringer jobs backfill`."""


@backfills.command(
    "list",
    examples="""
    bellringer backfills list
    bellringer backfills list --job nightly -o json
    """,
)
@click.option("--job", help="Only backfills of this job.")
@limit_option
@output_option(*LIST)
@with_client
def list_backfills(client: Client, *, job: str | None, limit: int, output: str) -> None:
    """List backfills, newest first."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.backfills, limit, output=output, job=job),
        head=("ID", "STATE", "JOB", "CAUSE", "FROM", "TO", "DECIDED", "MADE", "STARTED"),
        row=lambda b: (
            b.backfill_id,
            b.state,
            b.job,
            b.cause,
            format_local(b.from_at),
            format_local(b.to_at),
            _progress(b),
            f"{b.made:,}",
            format_relative(b.created_at, now),
        ),
        name=lambda b: b.backfill_id,
        empty="no backfills; start one with `bellringer jobs backfill`",
    )


def _progress(b: BackfillItem) -> str:
    return "–" if b.total is None else f"{b.made + b.passed:,} of {b.total:,}"


@backfills.command("get", examples="bellringer backfills get bf_7 -o json")
@click.argument("backfill", metavar="ID")
@output_option(*ONE)
@with_client
def get(client: Client, *, backfill: str, output: str) -> None:
    """Show a backfill."""
    print_backfill(client.backfill(backfill), output)


def print_backfill(b: Backfill, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(to_json(b) if output == "json" else b.backfill_id)
        return
    now = SystemClock().now()
    print_fields(
        {
            "id": b.backfill_id,
            "state": b.state,
            "job": b.job,
            "cause": b.cause,
            "from": format_local(b.from_at),
            "to": format_local(b.to_at),
            "decided": _progress(b),
            "order": f"{b.order} first",
            "parallel": str(b.parallelism),
            "rate": f"{b.rate:g} per minute" if b.rate else "",
            "runs": f"{b.made:,}",
            "running": str(b.running),
            "succeeded": f"{b.succeeded:,}",
            "dead": f"{b.dead:,}" if b.dead else "",
            "cancelled": f"{b.cancelled:,}" if b.cancelled else "",
            "skipped": f"{b.passed:,}" if b.passed else "",
            "started by": f"{b.who}, {format_relative(b.created_at, now)}",
            "reason": b.why or "",
            "ended": format_relative(b.ended_at, now),
        }
    )


@backfills.command("pause", examples="bellringer backfills pause bf_7")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@with_client
def pause(client: Client, *, ids: Sequence[str]) -> None:
    """Pause backfills. They create no more runs; existing runs continue."""
    for number in ids:
        click.echo(f"paused {client.pause_backfill(number).backfill_id}")


@backfills.command("resume", examples="bellringer backfills resume bf_7")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@with_client
def resume(client: Client, *, ids: Sequence[str]) -> None:
    """Resume paused backfills."""
    for number in ids:
        click.echo(f"resumed {client.resume_backfill(number).backfill_id}")


@backfills.command("cancel", examples="bellringer backfills cancel bf_7 --reason 'wrong month'")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", help="Reason, stored with the backfill.")
@with_client
def cancel(client: Client, *, ids: Sequence[str], reason: str | None) -> None:
    """Cancel backfills: waiting runs are cancelled, running runs finish."""
    for number in ids:
        b = client.cancel_backfill(number, reason=reason)
        click.echo(f"cancelled {b.backfill_id}, {b.running} of its runs are still running")
