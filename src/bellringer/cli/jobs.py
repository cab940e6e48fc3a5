"""`bellringer jobs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.arguments import argument_options, read_arguments
from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group, fail
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list, short_json
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time, from_now

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
            "next": f"{from_now(job.next_at, now)}  ({clock_time(job.next_at)})" if job.next_at else "",
            "task": job.task,
            "args": short_json(job.args) if job.args else "",
            "kwargs": short_json(job.kwargs) if job.kwargs else "",
            "pool": job.pool,
            "priority": str(job.priority),
            "timeout": job.timeout or "",
            "retry": ", ".join(f"{key} {short_json(value)}" for key, value in job.retry.items()),
            "tags": ", ".join(job.tags),
            "owner": job.owner,
            "revision": f"{job.revision}, {from_now(job.updated_at, now)}",
        }
    )


@jobs.command(
    "create",
    examples="""
    bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris --arg day=today
    bellringer jobs create ping shop.ping --every 15m --timeout 30s --attempts 5
    bellringer jobs create once shop.notify --at 2030-01-01T09:00:00+01:00
    """,
)
@click.argument("name")
@click.argument("task")
@click.option("--cron", metavar="EXPR", help="Five fields: minute, hour, day of month, month, day of week.")
@click.option("--tz", metavar="ZONE", help="The zone of --cron, such as Europe/Paris.  [default: UTC]")
@click.option("--seconds", is_flag=True, help="--cron has six fields, the second first.")
@click.option("--every", metavar="TIME", help="At this interval: 10s, 15m, 1h30m, 1d.")
@click.option("--at", metavar="INSTANT", help="Once, at this RFC 3339 instant.")
@click.option("--delay", metavar="TIME", help="This long after the previous run has ended.")
@argument_options
@click.option("--pool", help="Who runs it.  [default: short]")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher goes first.  [default: 5]")
@click.option("--timeout", metavar="TIME", help="The longest that an attempt may take.")
@click.option("--attempts", type=click.IntRange(1), help="How often to try.  [default: 3]")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@output_option(*ONE)
@with_client
def create(client: Client, /, *, named: Sequence[str], args_json: str | None, output: str, **given: Any) -> None:
    """Create the job NAME, which runs TASK; without a schedule it runs by hand only."""
    args, kwargs = read_arguments(named, args_json)
    schedule = read_schedule(given)
    document = {
        "name": given["name"],
        "task": given["task"],
        "args": args,
        "kwargs": kwargs,
        "schedule": schedule,
        "pool": given["pool"],
        "priority": given["priority"],
        "timeout": given["timeout"],
        "retry": given["attempts"],
        "tags": list(given["tags"]) or None,
    }
    made = client.create_job({key: value for key, value in document.items() if value is not None})
    print_job(made, output)


def read_schedule(given: dict[str, Any]) -> dict[str, Any] | None:
    """The one schedule that the options name; read here first, so that a mistake is pointed at."""
    kinds = [kind for kind in ("cron", "every", "at", "delay") if given[kind] is not None]
    if len(kinds) > 1:
        fail(f"--{kinds[0]} and --{kinds[1]} are both given", "a job made here takes one schedule")
    if (given["tz"] or given["seconds"]) and kinds != ["cron"]:
        fail(f"--{'tz' if given['tz'] else 'seconds'} goes with --cron")
    if not kinds:
        return None
    kind = kinds[0]
    document = {kind: given[kind]}
    if given["tz"]:
        document["tz"] = given["tz"]
    if given["seconds"]:
        document["seconds"] = True
    from bellringer.cli.cron import pointing_at
    from bellringer.schedule import parse

    with pointing_at(given[kind]):
        parse(document)
    return document


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


@jobs.command("resume", examples="bellringer jobs resume nightly")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@with_client
def resume(client: Client, *, names: Sequence[str]) -> None:
    """Resume jobs from now on; what they missed stays missed."""
    from bellringer.clock import SystemClock

    for name in names:
        job = client.resume(name)
        following = f", next {from_now(job.next_at, SystemClock().now())}" if job.next_at else ""
        click.echo(f"resumed {job.name}{following}")


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
