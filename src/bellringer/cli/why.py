"""`bellringer why`: explains the state of a job, run or workflow node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.command_groups import Command, fail
from bellringer.cli.connect import with_client
from bellringer.cli.output import output_option, sanitize, to_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.runs import Explanation, Reason

# The first reason is printed in full on the first line, and in short form in the list below it.
SHORT_TEXTS: Final = {
    "blocked_by_predecessor": "an earlier run is unfinished",
    "ended": "it failed for good",
    "job_paused": "the job is paused",
    "no_schedule": "it has no schedule",
    "no_worker_for_pool": "no worker serves its pool",
    "pool_busy": "its pool is busy",
    "shard_unheld": "no scheduler holds its shard",
    "task_unknown": "no worker knows its task",
    "unaccounted": "it was not recorded",
    "waits_for_retry": "it waits for its next attempt",
    "worker_silent": "its worker is silent",
    "blocked_loop": "its event loop is blocked",
}


@click.command(
    cls=Command,
    examples="""
    bellringer why nightly
    bellringer why nightly 2026-11-16T02:30
    bellringer why run_… --node 'transform[3]'
    """,
)
@click.argument("job")
@click.argument("time", required=False)
@click.option("--node", metavar="NODE", help="Explain this node of a workflow run; JOB is the id of the run.")
@output_option("table", "json")
@with_client
def why(client: Client, *, job: str, time: str | None, node: str | None, output: str) -> None:
    """Explain why JOB does not run now, what happened to it at TIME, or the state of a run (run_…).

    TIME is an instant such as 2026-11-16T02:30Z, or a local time in the job's time zone.
    """
    if node is None:
        is_run = job.startswith("run_") and time is None
        print_reasons(client.explain(job) if is_run else client.why(job, at=time), output)
        return
    if time is not None or not job.startswith("run_"):
        fail("--node needs the id of a workflow run, and no TIME", "write it like: bellringer why run_… --node NODE")
    print_reasons(client.node_why(job, node), output)


def print_reasons(found: Explanation, output: str) -> None:
    if output == "json":
        click.echo(to_json(found))
        return
    from bellringer.explain import format_instant

    first, *others = found.reasons
    moment = f" at {format_instant(found.at)}" if found.at else ""
    subject = found.job or found.task or found.run_id or found.job_id
    if found.workflow:
        subject = f"{found.workflow.job or found.workflow.run_id}/{found.workflow.node}"
    click.echo(sanitize(f"{subject}{moment}: {first.text}"))
    lines = [(_symbol(reason), reason.text, reason.fix) for reason in others]
    if first.fix:
        lines.insert(0, (_symbol(first), SHORT_TEXTS.get(first.code, first.code.replace("_", " ")), first.fix))
    width = max((len(text) for _, text, fix in lines if fix), default=0)
    for sign, text, fix in lines:
        click.echo(sanitize(f"  {sign} {text:<{width}}   fix: {fix}" if fix else f"  {sign} {text}"))
    if found.run_id is not None:
        click.echo(f"  run: {found.run_id}, {found.state}")
    if found.next_at is not None:
        paused = any(reason.code == "job_paused" for reason in found.reasons)
        click.echo(f"  next: {format_instant(found.next_at)}{' (if resumed before then)' if paused else ''}")


def _symbol(reason: Reason) -> str:
    return "✓" if reason.holds == "ok" else "✕" if reason.holds else "·"
