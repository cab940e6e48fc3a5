"""`bellringer runs`: send tasks; list, inspect, cancel, retry and replay runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import Length, argument_options, fetch_pages, limit_option, read_arguments
from bellringer.cli.output import (
    LIST,
    ONE,
    format_between,
    format_local,
    format_relative,
    format_seconds,
    output_option,
    print_fields,
    print_list,
    print_table,
    to_compact_json,
    to_json,
)
from bellringer.cli.progress import show_progress
from bellringer.cli.send import send
from bellringer.cli.why import print_reasons

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.runs import Line, Run, RunItem

RUN_FAILED_EXIT_CODE: Final = 3  # exit code after waiting for a run that did not succeed
LOOK: Final = 0.5
PAGE: Final = 200
WAIT_SECONDS: Final = 60  # of one request that waits for several runs


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer runs list --job nightly
    bellringer runs logs run_… -f
    """,
)
def runs() -> None:
    """Inspect and control runs: the executions of jobs and of tasks that were sent directly."""


runs.add_command(send)


def filter_options(function: Any) -> Any:
    for option in (
        click.option("--to", "--until", "end", metavar="TIME", help="Only runs scheduled before this instant."),
        click.option("--from", "--since", "start", metavar="TIME", help="Only runs scheduled since this instant."),
        click.option("--q", metavar="WORDS", help="Only runs whose job or task name contains these words."),
        click.option("--worker", type=click.IntRange(1), help="Only runs of this worker."),
        click.option("--tag", help="Only runs of jobs with this tag."),
        click.option("--cause", help="Only runs with this cause."),
        click.option("--pool", help="Only runs in this pool."),
        click.option("--task", help="Only runs of this task."),
        click.option("--state", metavar="STATE[,STATE]...", help="Only runs in these states."),
        click.option("--job", help="Only runs of this job."),
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
    """List runs, newest first. Runs in state `waiting` are not due yet."""
    from bellringer.clock import SystemClock

    found = fetch_pages(client.runs, limit, output=output, **filters)
    now = SystemClock().now()
    print_list(
        output,
        found,
        head=("STATE", "JOB", "DUE", "LATE", "TOOK", "TRY", "CAUSE", "RUN"),
        row=lambda run: (
            run.state,
            name_of(run),
            format_relative(run.scheduled_for, now),
            "–" if run.lateness_ms is None else format_seconds(max(run.lateness_ms, 0) / 1000),
            format_between(run.started_at, run.finished_at),
            str(run.attempt or "–"),
            run.cause,
            run.run_id,
        ),
        name=lambda run: run.run_id,
        empty="no runs",
    )


@runs.command(
    "export",
    examples="""
    bellringer runs export --since 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --output november.ndjson
    bellringer runs export --job nightly --state dead --format csv
    """,
)
@filter_options
@click.option("--output", "path", metavar="FILE", default="-", show_default=True, help="File to write; - is stdout.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["ndjson", "csv"]),
    default="ndjson",
    show_default=True,
    help="Format of the file.",
)
@click.option("--zstd", is_flag=True, help="Compress with Zstandard.")
@with_client
def export(client: Client, /, *, path: str, kind: str, zstd: bool, **filters: Any) -> None:
    """Write runs to a file, newest first. Reads page by page, so memory does not depend on their number."""
    from bellringer.cli.export_runs import export_runs

    count = export_runs(client, path, kind, zstd=zstd, filters=filters)
    click.echo(f"{count:,} runs exported", err=True)


@runs.command("get", examples="bellringer runs get run_… -o json")
@click.argument("run")
@output_option(*ONE)
@with_client
def get(client: Client, *, run: str, output: str) -> None:
    """Show a run and its attempts."""
    print_run(client.run(run), output)


def wait_and_print(client: Client, run_id: str, timeout: float | None, output: str) -> None:
    """Print a run once it has ended; exit with a code of its own if it did not succeed."""
    run = client.wait(run_id, timeout)
    print_run(run, output)
    if run.state != "succeeded":
        click.get_current_context().exit(RUN_FAILED_EXIT_CODE)


def print_run(run: Run, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(to_json(run) if output == "json" else run.run_id)
        return
    now = SystemClock().now()
    print_fields(
        {
            "run": run.run_id,
            "state": run.state,
            "job": run.job or "",
            "node": f"{name_of(run)} of {run.workflow.run_id}" if run.workflow else "",
            "task": run.task,
            "nodes": f"bellringer workflows graph {run.run_id}" if run.has_nodes else "",
            "due": f"{format_local(run.scheduled_for)}  ({format_relative(run.scheduled_for, now)})",
            "late": "" if run.lateness_ms is None else format_seconds(max(run.lateness_ms, 0) / 1000),
            "started": format_local(run.started_at),
            "took": format_between(run.started_at, run.finished_at),
            "cause": run.cause,
            "reason": run.reason,
            "replays": run.replay_of or "",
            "replayed by": ", ".join(run.replays),
            "pool": run.pool,
            "trace": run.trace_id or "",
            "blocked by": ", ".join(run.blocked),
            "args": to_compact_json(run.args) if run.args else "",
            "kwargs": to_compact_json(run.kwargs) if run.kwargs else "",
            "progress": progress_of(run),
            "result": "" if run.result is None else to_compact_json(run.result),
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
                    format_relative(tried.started_at, now),
                    format_between(tried.started_at, tried.finished_at),
                    tried.worker or "–",
                    error_of(tried.error) or "–",
                )
                for tried in run.attempts
            ],
        )


def name_of(run: RunItem) -> str:
    """The name of the job, or `workflow/node` for a workflow node, such as `etl/transform[3]`."""
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
    """Format an error on one line."""
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
    bellringer runs logs run_… --source stdout,stderr --since 10m
    bellringer runs logs --job nightly -f
    """,
)
@click.argument("run", required=False)
@click.option("--job", metavar="NAME", help="Show the log of this job's latest run instead of RUN.")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the run has ended.")
@click.option("--level", type=click.Choice(("debug", "info", "warning", "error")), help="Lowest level to show.")
@click.option(
    "--source",
    metavar="SOURCE[,SOURCE]...",
    help="Only lines of these sources: ctx, stdout, stderr, warnings, logging or logging:NAME.",
)
@click.option("--since", metavar="TIME", help="Only lines since this instant, or of the last 10m, 2h and so on.")
@click.option("--attempt", type=click.IntRange(0), help="Only lines of this attempt.")
@click.option("--q", metavar="WORDS", help="Only lines that contain these words.")
@click.option("--tail", type=click.IntRange(1, 200), help="Only the last N lines; with -f, also those that follow.")
@output_option("table", "json", "jsonl")
@with_client
def logs(
    client: Client,
    /,
    *,
    run: str | None,
    job: str | None,
    follow: bool,
    since: str | None,
    tail: int | None,
    output: str,
    **filters: Any,
) -> None:
    """Show what a run has logged and printed. -o json prints one object per line."""
    if (run is None) == (job is None):
        fail("give either a run or --job", "see `bellringer runs logs --help`")
    run_id = run or _latest_run(client, job or "")
    filters["since"] = _since(since)
    is_silent = True
    for line in lines_of(client, run_id, follow=follow, tail=tail, **filters):
        is_silent = False
        click.echo(text_of(line) if output == "table" else to_compact_json(line))
    if is_silent:
        click.echo("the run has logged nothing", err=True)


def _latest_run(client: Client, job: str) -> str:
    found = client.runs(job=job, limit=1).items
    if not found:
        fail(f"the job {job!r} has no runs", "see `bellringer why JOB`")
    return found[0].run_id


def _since(given: str | None) -> str | None:
    """Return an instant for a duration such as 10m, which counts back from now; other text is sent unchanged."""
    from datetime import timedelta

    from bellringer.clock import SystemClock
    from bellringer.durations import parse_duration
    from bellringer.errors import InvalidInput

    if given is None:
        return None
    try:
        length: timedelta = parse_duration(given, what="since")
    except InvalidInput:
        return given
    return (SystemClock().now() - length).isoformat()


def lines_of(client: Client, run_id: str, *, follow: bool, tail: int | None = None, **filters: Any) -> Iterator[Line]:
    """Yield log lines, oldest first. Reads once more after the end, because the last lines may arrive late."""
    seen, last_look = 0, False
    if tail is not None:
        for line in client.logs(run_id, tail=tail, **filters).items:
            seen = line.line
            yield line
        if not follow:
            return
    while True:
        for line in _lines_after(client, run_id, seen, filters):
            seen = line.line
            yield line
        if last_look or not follow:
            return
        from bellringer.core.runs import FINAL_STATES

        last_look = client.run(run_id).state in FINAL_STATES
        time.sleep(LOOK)


def _lines_after(client: Client, run_id: str, seen: int, filters: Mapping[str, Any]) -> Iterator[Line]:
    cursor: str | None = None
    while True:
        page = client.logs(run_id, after=seen, limit=PAGE, cursor=cursor, **filters)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


BLOCK_FIELDS: Final = ("traceback", "stack")  # shown below their line


def text_of(line: Line) -> str:
    """Format a line for people: time, attempt, level, source, message and fields; further lines are indented."""
    from bellringer.telemetry import escape_control_characters

    fields = line.fields if isinstance(line.fields, dict) else {}
    short = "".join(f"  {name}={to_compact_json(value)}" for name, value in fields.items() if name not in BLOCK_FIELDS)
    first, *rest = line.message.splitlines() or [""]
    rest += [part for name in BLOCK_FIELDS for part in str(fields.get(name, "")).splitlines()]
    moment = f"{line.at.astimezone():%H:%M:%S}.{line.at.microsecond // 1000:03}"
    head = f"{moment} #{line.attempt} {line.level:<7} {line.source:<8} {first}{short}".rstrip()
    return "\n".join(escape_control_characters(part) for part in (head, *(f"  | {part}" for part in rest)))


@runs.command("explain", examples="bellringer runs explain run_…")
@click.argument("run")
@output_option("table", "json")
@with_client
def explain(client: Client, *, run: str, output: str) -> None:
    """Explain the state of a run, and how to fix it."""
    print_reasons(client.explain(run), output)


@runs.command("cancel", examples="bellringer runs cancel run_… --reason 'wrong customer'")
@click.argument("ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--reason", help="Reason, stored in the audit log.")
@with_client
def cancel(client: Client, *, ids: Sequence[str], reason: str | None) -> None:
    """Cancel runs. Waiting runs end at once; running attempts are asked to stop."""
    for run_id in ids:
        run = client.cancel(run_id, reason=reason)
        asked = "asked to stop" if run.state == "running" else run.state
        click.echo(f"{run.run_id}  {asked}")


@runs.command("retry", examples="bellringer runs retry run_…")
@click.argument("ids", metavar="RUN...", nargs=-1, required=True)
@with_client
def retry(client: Client, *, ids: Sequence[str]) -> None:
    """Retry runs now. Dead runs get new attempts; runs that wait for a retry start at once."""
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
@click.option("--reason", help="Reason, stored with the new run.")
@output_option(*ONE)
@with_client
def replay(
    client: Client, *, run: str, named: Sequence[str], args_json: str | None, reason: str | None, output: str
) -> None:
    """Repeat a finished run as a new run. Given arguments override those of the original."""
    args, kwargs = read_arguments(named, args_json)
    print_run(client.replay(run, args=args, kwargs=kwargs, reason=reason), output)


@runs.command(
    "wait",
    examples="""
    bellringer runs wait run_… --timeout 10m
    bellringer runs wait run_… run_… run_… --any
    """,
)
@click.argument("ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--any", "wait_for_any", is_flag=True, help="Wait until one of several runs has ended, not all.")
@click.option("--timeout", type=Length(), help="Maximum time to wait, such as 30s or 10m.  [default: no limit]")
@output_option(*ONE)
@with_client
def wait(client: Client, *, ids: Sequence[str], wait_for_any: bool, timeout: float | None, output: str) -> None:
    """Wait for runs to end. Exits with code 3 if one of those that ended did not succeed."""
    from bellringer.core.runs import FINAL_STATES

    if len(ids) == 1:
        run = client.wait(ids[0], timeout)
        print_run(run, output)
        ended: list[RunItem] = [run]
    else:
        found = _wait_for_several(client, ids, timeout, wait_for_any)
        ended = [item for item in found if item.state in FINAL_STATES]
        if output == "json":
            click.echo(to_json(ended))
        for item in ended if output != "json" else ():
            click.echo(item.run_id if output == "name" else f"{item.run_id}  {item.state}")
    if any(item.state != "succeeded" for item in ended):
        click.get_current_context().exit(RUN_FAILED_EXIT_CODE)


def _wait_for_several(
    client: Client, ids: Sequence[str], timeout: float | None, wait_for_any: bool
) -> Sequence[RunItem]:
    """Return the runs once all have ended, or one has; each request waits for up to a minute."""
    from bellringer.errors import Unavailable

    deadline = None if timeout is None else time.monotonic() + timeout
    with show_progress("waiting", "runs", len(ids)) as progress:
        while True:
            left = WAIT_SECONDS
            if deadline is not None:
                left = min(WAIT_SECONDS, max(0, math.ceil(deadline - time.monotonic())))
            waited = client.wait_runs(ids, any=wait_for_any, timeout=left)
            progress.update(waited.ended)
            if waited.ended == len(waited.items) or (wait_for_any and waited.ended):
                return waited.items
            if deadline is not None and time.monotonic() >= deadline:
                unfinished = len(waited.items) - waited.ended
                raise Unavailable(f"{unfinished} of {len(ids)} runs have not ended after {timeout:g} s")
