"""`bellringer why`: the reasons of a job, and how reasons are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Command, fail
from bellringer.cli.output import as_json, clean, output_option

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Explanation, Reason

# The first reason is told in full on the first line; in the list below it is named in short.
SHORT: Final = {
    "blocked_by_predecessor": "an earlier run is unfinished",
    "ended": "it gave up",
    "job_paused": "the job is paused",
    "no_schedule": "nothing but a person starts it",
    "no_worker_for_pool": "nobody serves its pool",
    "pool_busy": "its pool is busy",
    "shard_unheld": "no scheduler holds its shard",
    "task_unknown": "nobody knows its task",
    "unaccounted": "nothing is known of it",
    "waits_for_retry": "it waits for its next attempt",
    "worker_silent": "its worker is silent",
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
@click.option("--node", metavar="NODE", help="Why this node of a workflow run does not start; JOB is the run.")
@output_option("table", "json")
@with_client
def why(client: Client, *, job: str, time: str | None, node: str | None, output: str) -> None:
    """Say why JOB does not run now, or what became of it at TIME; or why a run, run_…, is where it is.

    TIME is like 2026-11-16T02:30Z; without Z or an offset it is in the job's zone.
    """
    if node is None:
        is_run = job.startswith("run_") and time is None
        print_reasons(client.explain(job) if is_run else client.why(job, at=time), output)
        return
    if time is not None or not job.startswith("run_"):
        fail("--node is for a workflow run, without a time", "bellringer why run_… --node NODE")
    print_reasons(client.node_why(job, node), output)


def print_reasons(found: Explanation, output: str) -> None:
    if output == "json":
        click.echo(as_json(found))
        return
    from bellringer.reasons import shown

    first, *others = found.reasons
    moment = f" at {shown(found.at)}" if found.at else ""
    subject = found.job or found.task or found.run_id or found.job_id
    if found.workflow:
        subject = f"{found.workflow.job or found.workflow.run_id}/{found.workflow.node}"
    click.echo(clean(f"{subject}{moment}: {first.text}"))
    lines = [(_sign(reason), reason.text, reason.fix) for reason in others]
    if first.fix:
        lines.insert(0, (_sign(first), SHORT.get(first.code, first.code.replace("_", " ")), first.fix))
    width = max((len(text) for _, text, fix in lines if fix), default=0)
    for sign, text, fix in lines:
        click.echo(clean(f"  {sign} {text:<{width}}   fix: {fix}" if fix else f"  {sign} {text}"))
    if found.run_id is not None:
        click.echo(f"  run: {found.run_id}, {found.state}")
    if found.next_at is not None:
        paused = any(reason.code == "job_paused" for reason in found.reasons)
        click.echo(f"  next: {shown(found.next_at)}{' if it is resumed before' if paused else ''}")


def _sign(reason: Reason) -> str:
    return "✓" if reason.holds == "ok" else "✕" if reason.holds else "·"
