"""`bellringer jobs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.arguments import argument_options, read_arguments
from bellringer.cli.backfill import backfill
from bellringer.cli.connect import with_client
from bellringer.cli.definition import PLAIN, definition_options, read_schedule
from bellringer.cli.groups import Group, fail
from bellringer.cli.job_history import import_jobs, revisions, rollback, skip, unskip
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list, short_json
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time, from_now
from bellringer.cli.update import update

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Job


@click.group(
    cls=Group,
    examples="""
    bellringer jobs list
    bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris
    bellringer jobs trigger nightly --wait
    """,
)
def jobs() -> None:
    """Jobs: what to run, and when. A job goes by its name or its id."""


jobs.add_command(update, "update")
jobs.add_command(backfill, "backfill")
jobs.add_command(import_jobs, "import")
jobs.add_command(skip, "skip")
jobs.add_command(unskip, "unskip")
jobs.add_command(revisions, "revisions")
jobs.add_command(rollback, "rollback")


@jobs.command(
    "list",
    examples="""
    bellringer jobs list
    bellringer jobs list --tag nightly -o name
    """,
)
@click.option("--tag", help="Only those with this tag, of the jobs that --limit reaches.")
@limit_option
@output_option(*LIST)
@with_client
def list_jobs(client: Client, *, tag: str | None, limit: int, output: str) -> None:
    """List jobs."""
    from bellringer.clock import SystemClock

    found = [job for job in gather(client.jobs, limit, output=output) if tag is None or tag in job.tags]
    now = SystemClock().now()
    print_list(
        output,
        found,
        head=("STATUS", "NAME", "SCHEDULE", "NEXT", "TASK", "POOL"),
        row=lambda job: (
            status_of(job),
            job.name,
            job.description or "by hand",
            from_now(job.next_at, now),
            job.task,
            job.pool,
        ),
        name=lambda job: job.name,
        nothing="no jobs yet; make one with `bellringer jobs create`, or declare it with @app.schedule",
    )


def status_of(job: Job) -> str:
    if job.paused:
        return "paused"
    return "active" if job.enabled else "disabled"


@jobs.command("get", examples="bellringer jobs get nightly -o json")
@click.argument("job")
@output_option(*ONE)
@with_client
def get(client: Client, *, job: str, output: str) -> None:
    """Show one job."""
    print_job(client.job(job), output)


def print_job(job: Job, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(as_json(job) if output == "json" else job.name)
        return
    now = SystemClock().now()
    paused = ""
    if job.paused:
        parts = (job.paused.reason, job.paused.by and f"by {job.paused.by}", from_now(job.paused.at, now))
        paused = ", ".join(part for part in parts if part)
    print_facts(
        {
            "name": job.name,
            "id": job.job_id,
            "status": status_of(job),
            "paused": paused,
            "schedule": job.description or "by hand",
            "starts": clock_time(job.starts_at) if job.starts_at else "",
            "ends": clock_time(job.ends_at) if job.ends_at else "",
            "next": f"{from_now(job.next_at, now)}  ({clock_time(job.next_at)})" if job.next_at else "",
            "task": job.task,
            "workflow": f"{job.workflow.nodes} nodes, version {job.workflow.version}" if job.workflow else "",
            "args": short_json(job.args) if job.args else "",
            "kwargs": short_json(job.kwargs) if job.kwargs else "",
            "pool": job.pool + (", by how long it takes" if job.routed else ""),
            "expected": job.expected_duration or "",
            "priority": str(job.priority),
            "timeout": job.timeout or "",
            "misfire": job.misfire + (f", at most {job.max_catchup:,}" if job.max_catchup else ""),
            "overlap": job.overlap,
            "at once": str(job.max_concurrency or ""),
            "limit": f"{job.concurrency_limit} of {job.concurrency_key}" if job.concurrency_key else "",
            "jitter": f"{job.jitter}: always {job.jitter_by}" if job.jitter else "",
            "late after": job.late_after or "",
            "retry": ", ".join(f"{key} {short_json(value)}" for key, value in job.retry.items()),
            "tags": ", ".join(job.tags),
            "region": job.region or "",
            "owner": job.owner,
            "revision": f"{job.revision}, {from_now(job.updated_at, now)}",
        }
    )


@jobs.command(
    "create",
    examples="""
    bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris --arg day=today
    bellringer jobs create ping shop.ping --every 15m --overlap queue --late-after 5m
    bellringer jobs create payroll hr.pay --cron '0 9 1 * *' --calendar de --shift previous --misfire fire_all
    bellringer jobs create once shop.notify --at 2030-01-01T09:00:00+01:00
    """,
)
@click.argument("name")
@click.argument("task")
@definition_options
@argument_options
@output_option(*ONE)
@with_client
def create(client: Client, /, *, named: Sequence[str], args_json: str | None, output: str, **given: Any) -> None:
    """Create the job NAME, which runs TASK; without a schedule it runs by hand only."""
    args, kwargs = read_arguments(named, args_json)
    document = {
        "name": given["name"],
        "task": given["task"],
        "args": args,
        "kwargs": kwargs,
        "schedule": read_schedule(given),
        "retry": given["attempts"],
        "tags": list(given["tags"]) or None,
        **{name: given[name] for name in PLAIN},
    }
    made = client.create_job({key: value for key, value in document.items() if value is not None})
    print_job(made, output)


@jobs.command(
    "trigger",
    examples="""
    bellringer jobs trigger nightly
    bellringer jobs trigger nightly --arg day=2030-01-01 --wait
    """,
)
@click.argument("job")
@argument_options
@click.option("--wait", is_flag=True, help="Wait for its end; the exit code is 3 if it did not succeed.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="How long to wait at most.")
@output_option(*ONE)
@with_client
def trigger(
    client: Client,
    *,
    job: str,
    named: Sequence[str],
    args_json: str | None,
    wait: bool,
    timeout: float | None,
    output: str,
) -> None:
    """Run a job now, whatever its schedule says; arguments hold for this run alone."""
    from bellringer.cli.runs import FAILED, print_run

    args, kwargs = read_arguments(named, args_json)
    run = client.trigger(job, args=args, kwargs=kwargs)
    if wait:
        run = client.wait(run.run_id, timeout)
    if output == "table" and not wait:
        click.echo(f"{run.run_id}  {run.state}")
    else:
        print_run(run, output)
    if wait and run.state != "succeeded":
        click.get_current_context().exit(FAILED)


@jobs.command(
    "pause",
    examples="""
    bellringer jobs pause nightly --reason INC-42
    bellringer jobs pause nightly --until 2h
    """,
)
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--reason", help="Why; it is shown wherever the job is.")
@click.option("--until", metavar="TIME", help="Resume by itself: an RFC 3339 instant, or a time from now like 2h.")
@with_client
def pause(client: Client, *, names: Sequence[str], reason: str | None, until: str | None) -> None:
    """Pause jobs: they fire nothing, and what waits is held."""
    for name in names:
        job = client.pause(name, reason=reason, until=until)
        click.echo(f"paused {job.name}")


BECOMES = {
    "skip": "{they} missed (--missed latest|all runs {them})",
    "latest": "the latest runs now, behind live work",
    "all": "{run} now, behind live work (`bellringer backfills list`)",
}
ONE_ONLY = {"they": "it stays", "them": "it", "run": "it runs"}
SEVERAL = {"they": "they stay", "them": "them", "run": "they run"}


@jobs.command(
    "resume",
    examples="""
    bellringer jobs resume nightly
    bellringer jobs resume nightly --missed latest
    """,
)
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--missed",
    type=click.Choice(["skip", "latest", "all"]),
    default="skip",
    show_default=True,
    help="What becomes of what they missed.",
)
@with_client
def resume(client: Client, *, names: Sequence[str], missed: str) -> None:
    """Resume jobs from now on, and say how much they missed."""
    from bellringer.clock import SystemClock

    for name in names:
        done = client.resume(name, missed=missed)
        job, count = done.job, f"{done.missed:,} occurrence{'' if done.missed == 1 else 's'}"
        following = f", next {from_now(job.next_at, SystemClock().now())}" if job.next_at else ""
        if done.since is None:
            click.echo(f"{job.name} was not paused{following}")
            continue
        click.echo(f"resumed {job.name}{following}")
        if done.missed:
            becomes = BECOMES[done.what].format(**(ONE_ONLY if done.missed == 1 else SEVERAL))
            click.echo(f"  it missed {count} while it was paused: {becomes}")


@jobs.command("delete", examples="bellringer jobs delete nightly --yes")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def delete(client: Client, *, names: Sequence[str], yes: bool) -> None:
    """Delete jobs: their future ends, what runs finishes, their history stays."""
    confirm(f"delete {', '.join(names)}?", yes=yes)
    for name in names:
        client.delete_job(name)
        click.echo(f"deleted {name}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person; a program has to say --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail("this cannot be undone, and nobody can be asked here", "add --yes")
    click.confirm(question, abort=True, err=True)
