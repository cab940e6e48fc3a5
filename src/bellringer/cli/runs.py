"""`bellringer runs`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.arguments import argument_options, read_arguments
from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group
from bellringer.cli.output import (
    LIST,
    ONE,
    as_json,
    clean,
    output_option,
    print_facts,
    print_list,
    print_table,
    short_json,
)
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import between, clock_time, from_now, span
from bellringer.cli.why import print_reasons

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Line, Run, RunItem

FAILED: Final = 3  # the exit code of a run that was waited for and did not succeed
LOOK: Final = 0.5
PAGE: Final = 200


@click.group(
    cls=Group,
    examples="""
    bellringer runs list --job nightly
    bellringer runs logs run_… -f
    """,
)
def runs() -> None:
    """Runs: one for each time that a job is due, was triggered, or a task was sent."""


def filter_options(function: Any) -> Any:
    for option in (
        click.option("--to", "end", metavar="TIME", help="Only those scheduled for before then."),
        click.option("--from", "start", metavar="TIME", help="Only those scheduled for then or later."),
        click.option("--q", metavar="WORDS", help="Only those with these words in the name of their job or task."),
        click.option("--worker", type=click.IntRange(1), help="Only those that this worker runs or has run."),
        click.option("--tag", help="Only those of jobs with this tag."),
        click.option("--cause", help="Only those that exist for this cause."),
        click.option("--pool", help="Only those of this pool."),
        click.option("--task", help="Only those of this task."),
        click.option("--state", metavar="STATE[,STATE]...", help="Only those in these states."),
        click.option("--job", help="Only those of this job."),
    ):
        function = option(function)
    return function


@runs.command(
    "list",
    examples="""
    bellringer runs list
    bellringer runs list --job nightly --state dead -o json
    bellringer runs list --state running,retrying --pool long
    bellringer runs list --state waiting
    """,
)
@filter_options
@limit_option
@output_option(*LIST)
@with_client
def list_runs(client: Client, /, *, limit: int, output: str, **filters: Any) -> None:
    """List runs, the newest first; `waiting` are those whose time has not come."""
    from bellringer.clock import SystemClock

    found = gather(client.runs, limit, output=output, **filters)
    now = SystemClock().now()
    print_list(
        output,
        found,
        head=("STATE", "JOB", "DUE", "LATE", "TOOK", "TRY", "CAUSE", "RUN"),
        row=lambda run: (
            run.state,
            name_of(run),
            from_now(run.scheduled_for, now),
            "–" if run.lateness_ms is None else span(max(run.lateness_ms, 0) / 1000),
            between(run.started_at, run.finished_at),
            str(run.attempt or "–"),
            run.cause,
            run.run_id,
        ),
        name=lambda run: run.run_id,
        nothing="no runs",
    )


@runs.command("get", examples="bellringer runs get run_… -o json")
@click.argument("run")
@output_option(*ONE)
@with_client
def get(client: Client, *, run: str, output: str) -> None:
    """Show a run with its attempts."""
    print_run(client.run(run), output)


def print_run(run: Run, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(as_json(run) if output == "json" else run.run_id)
        return
    now = SystemClock().now()
    print_facts(
        {
            "run": run.run_id,
            "state": run.state,
            "job": run.job or "",
            "node": f"{name_of(run)} of {run.workflow.run_id}" if run.workflow else "",
            "task": run.task,
            "nodes": f"bellringer workflows graph {run.run_id}" if run.has_nodes else "",
            "due": f"{clock_time(run.scheduled_for)}  ({from_now(run.scheduled_for, now)})",
            "late": "" if run.lateness_ms is None else span(max(run.lateness_ms, 0) / 1000),
            "started": clock_time(run.started_at),
            "took": between(run.started_at, run.finished_at),
            "cause": run.cause,
            "reason": run.reason,
            "replays": run.replay_of or "",
            "replayed by": ", ".join(run.replays),
            "pool": run.pool,
            "waits for": ", ".join(run.blocked),
            "args": short_json(run.args) if run.args else "",
            "kwargs": short_json(run.kwargs) if run.kwargs else "",
            "progress": progress_of(run),
            "result": "" if run.result is None else short_json(run.result),
            "error": error_of(run.error) if error_of(run.error) != run.reason else "",
        }
    )
    if run.attempts:
        click.echo()
        print_table(
            ("TRY", "OUTCOME", "STARTED", "TOOK", "WORKER", "ERROR"),
            [
                (
                    str(tried.attempt),
                    tried.outcome or tried.ends_as or "–",
                    from_now(tried.started_at, now),
                    between(tried.started_at, tried.finished_at),
                    tried.worker or "–",
                    error_of(tried.error) or "–",
                )
                for tried in run.attempts
            ],
        )


def name_of(run: RunItem) -> str:
    """The job; of a node of a workflow run, that of the workflow and the node: `etl/transform[3]`."""
    if run.workflow:
        return f"{run.workflow.job or run.workflow.run_id}/{run.workflow.node}"
    return run.job or run.task


def progress_of(run: RunItem) -> str:
    if not isinstance(run.progress, dict):
        return ""
    total = run.progress.get("total")
    done = f"{run.progress.get('done')}" + (f" of {total}" if total is not None else "")
    note = run.progress.get("note")
    return f"{done}  {note}" if note else done


def error_of(error: Any) -> str:
    """An error in one line."""
    if not isinstance(error, dict):
        return ""
    message = " ".join(str(error.get("message") or "").split())
    kind = str(error.get("type") or "")
    return (f"{kind}: {message}" if kind and message else kind or message) or str(error.get("reason") or "")


@runs.command(
    "logs",
    examples="""
    bellringer runs logs run_…
    bellringer runs logs run_… -f
    bellringer runs logs run_… --level warning --tail 20
    """,
)
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--level", type=click.Choice(("debug", "info", "warning", "error")), help="Only from this level on.")
@click.option("--attempt", type=click.IntRange(0), help="Only those of this try.")
@click.option("--q", metavar="WORDS", help="Only those with these words.")
@click.option("--tail", type=click.IntRange(1, 200), help="Only the last so many.")
@output_option("table", "json", "jsonl")
@with_client
def logs(client: Client, /, *, run: str, follow: bool, tail: int | None, output: str, **filters: Any) -> None:
    """Show what a run has logged."""
    if tail is not None:
        lines: Iterator[Line] = iter(client.logs(run, tail=tail, **filters).items)
    else:
        lines = lines_of(client, run, follow=follow, **filters)
    if output == "json":
        click.echo(as_json(list(lines)))
        return
    is_silent = True
    for line in lines:
        is_silent = False
        click.echo(text_of(line) if output == "table" else short_json(line))
    if is_silent:
        click.echo("nothing is logged", err=True)


def lines_of(client: Client, run_id: str, *, follow: bool, **filters: Any) -> Iterator[Line]:
    """Its lines, oldest first. What is logged right before the end may arrive after it: look once more."""
    cursor: str | None = None
    seen, last_look = 0, not follow
    while True:
        page = client.logs(run_id, limit=PAGE, cursor=cursor, **filters)
        for line in page.items:
            if line.line > seen:
                seen = line.line
                yield line
        if page.next_cursor is not None:
            cursor = page.next_cursor
        elif last_look:
            return
        else:
            from bellringer.runs import FINAL

            last_look = client.run(run_id).state in FINAL
            time.sleep(LOOK)


def text_of(line: Line) -> str:
    fields = "".join(f"  {name}={short_json(value)}" for name, value in (line.fields or {}).items())
    moment = f"{line.at.astimezone():%H:%M:%S}.{line.at.microsecond // 1000:03}"
    return clean(f"{moment}  #{line.attempt} {line.level:<7}  {line.message}{fields}")


@runs.command("explain", examples="bellringer runs explain run_…")
@click.argument("run")
@output_option("table", "json")
@with_client
def explain(client: Client, *, run: str, output: str) -> None:
    """Say why a run waits, runs or has ended, and what mends it."""
    print_reasons(client.explain(run), output)


@runs.command("cancel", examples="bellringer runs cancel run_… --reason 'wrong customer'")
@click.argument("ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--reason", help="Why; the audit keeps it, and a run that has not begun.")
@with_client
def cancel(client: Client, *, ids: Sequence[str], reason: str | None) -> None:
    """Cancel runs: what waits ends at once, what runs is asked to stop."""
    for run_id in ids:
        run = client.cancel(run_id, reason=reason)
        asked = "asked to stop" if run.state == "running" else run.state
        click.echo(f"{run.run_id}  {asked}")


@runs.command("retry", examples="bellringer runs retry run_…")
@click.argument("ids", metavar="RUN...", nargs=-1, required=True)
@with_client
def retry(client: Client, *, ids: Sequence[str]) -> None:
    """Try runs again now: dead ones anew, waiting ones without the wait."""
    for run_id in ids:
        run = client.retry(run_id)
        click.echo(f"{run.run_id}  {run.state}")


@runs.command(
    "replay",
    examples="""
    bellringer runs replay run_… --reason 'the rates were wrong'
    bellringer runs replay run_… --arg customer=7
    """,
)
@click.argument("run")
@argument_options
@click.option("--reason", help="Why; the new run keeps it.")
@output_option(*ONE)
@with_client
def replay(
    client: Client, *, run: str, named: Sequence[str], args_json: str | None, reason: str | None, output: str
) -> None:
    """Run an ended occurrence once more, as a new run; arguments that are given change those that it had."""
    args, kwargs = read_arguments(named, args_json)
    print_run(client.replay(run, args=args, kwargs=kwargs, reason=reason), output)


@runs.command("wait", examples="bellringer runs wait run_… --timeout 600")
@click.argument("run")
@click.option("--timeout", type=click.IntRange(0), help="Seconds; without it for ever.")
@output_option(*ONE)
@with_client
def wait(client: Client, *, run: str, timeout: int | None, output: str) -> None:
    """Wait for the end of a run; the exit code is 3 where it did not succeed."""
    ended = client.wait(run, timeout)
    print_run(ended, output)
    if ended.state != "succeeded":
        click.get_current_context().exit(FAILED)
