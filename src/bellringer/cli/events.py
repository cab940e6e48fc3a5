"""`bellringer events`: late, missed, slow, failed and recovered runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import CommandGroup
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import (
    LIST,
    format_local,
    format_relative,
    output_option,
    print_list,
    sanitize,
    to_compact_json,
)

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.events import Event

KINDS: Final = (
    "failed",
    "dead",
    "late",
    "missed",
    "expired",
    "slow",
    "outgrown",
    "skipping",
    "paused",
    "unknown_task",
    "unstarted",
    "blocked_loop",
    "stranded",
    "recovered",
    "task_paused",
    "task_resumed",
    "orphaned",
    "adopted",
    "overridden",
    "checkin_missed",
    "checkin_failed",
    "checkin_recovered",
)
OWNERSHIP_KINDS: Final = frozenset({"orphaned", "adopted", "overridden"})
TASK_PAUSE_KINDS: Final = frozenset({"task_paused", "task_resumed"})
WAITING_KINDS: Final = frozenset({"skipping", "stranded", "paused", "unknown_task", "unstarted"})
JOB_KINDS: Final = OWNERSHIP_KINDS | {"outgrown"}  # such an event has no occurrence


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer events list
    bellringer events list --kind late --follow
    """,
)
def events() -> None:
    """List events, such as runs that are late, missed, slow or dead. Each is reported once."""


@events.command(
    "list",
    examples="""
    bellringer events list --job nightly
    bellringer events list --kind slow --follow -o jsonl
    """,
)
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help=f"Only events of this kind: {', '.join(KINDS)}.")
@click.option("--job", help="Only events of this job.")
@click.option("-f", "--follow", is_flag=True, help="Follow new events, oldest first.")
@limit_option
@output_option(*LIST)
@with_client
def list_events(client: Client, *, kind: str | None, job: str | None, follow: bool, limit: int, output: str) -> None:
    """List events, newest first."""
    from bellringer.clock import SystemClock

    if follow:
        for event in follow_events(client, limit, kind=kind, job=job):
            click.echo(_line(event, output))
        return
    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.events, limit, output=output, kind=kind, job=job),
        head=("KIND", "JOB", "WHEN", "DUE", "WHAT", "RUN"),
        row=lambda event: (
            event.kind,
            event.job or "–",
            format_relative(event.at, now),
            "–" if event.kind in JOB_KINDS else format_local(event.scheduled_for),
            describe(event),
            event.run_id or "–",
        ),
        name=lambda event: event.run_id or event.job_id,
        empty=f"no events of kind {kind}" if kind else "no events",
    )


def follow_events(client: Client, limit: int, **filters: Any) -> Iterator[Event]:
    """Yield the latest events, then new ones. The stream is opened first, so that no event is lost in between."""
    seen: set[int] | None = None
    for _, happened in client.events_stream(hearts=True, **filters):
        if seen is None:
            last = fetch_pages(client.events, limit, output="", **filters)
            seen = {event.event_id for event in last}
            yield from reversed(last)
        if happened is not None and happened.event_id not in seen:
            yield happened


def _line(event: Event, output: str) -> str:
    if output == "name":
        return event.run_id or event.job_id
    if output != "table":
        return to_compact_json(event)
    moment = f"{event.at.astimezone():%H:%M:%S}"
    return sanitize(f"{moment}  {event.kind:<12}  {event.job or event.job_id}  {describe(event)}")


def describe(event: Event) -> str:
    """Describe an event in one line."""
    if event.kind in OWNERSHIP_KINDS:
        return _ownership(event)
    if event.kind in TASK_PAUSE_KINDS:
        return _task_pause(event)
    if event.kind.startswith("checkin_"):
        return _checkin(event)
    if event.kind in WAITING_KINDS or event.data.get("after") in {"unknown_task", "unstarted"}:
        return _waiting(event)
    return _run_or_job(event)


def _checkin(event: Event) -> str:
    data = event.data
    what = {"checkin_missed": data.get("reason"), "checkin_failed": data.get("error") or "reported a failure"}
    return f"check-in {data.get('checkin')}: {what.get(event.kind) or 'recovered'}"


def _run_or_job(event: Event) -> str:
    """Describe how a run ended, or what is unusual about the times of a job."""
    data = event.data
    text = to_compact_json(data)
    match event.kind:
        case "failed":
            again = data.get("retry_in")
            text = f"attempt {event.attempt} {data.get('outcome')}: {data.get('error')}, retries in {again}"
        case "dead":
            text = f"failed for good: {data.get('error')} ({data.get('reason')})"
        case "recovered":
            text = f"recovered, after {data.get('after')} at {data.get('since')}"
        case "late":
            held = f"; blocked by {', '.join(data['blocked'])}" if data.get("blocked") else ""
            state = "not created" if data.get("not_created") else "not started"
            text = f"{state} {data.get('late_after')} after its scheduled time{held}"
        case "missed":
            count = data.get("count")
            missed = "some" if count is None else count
            text = f"{missed} missed since {data.get('from')}; misfire policy {data.get('misfire')}"
        case "expired":
            count = data.get("count") or 1
            text = f"{count} run{'' if count == 1 else 's'} had not started by the deadline, and will not run"
        case "slow":
            text = f"running for {data.get('running_for')}; usually {data.get('usual')}, at most {data.get('longest')}"
        case "outgrown":
            text = f"usually takes {data.get('usual')}, longer than its interval of {data.get('interval')}"
        case "blocked_loop":
            verb = "blocked" if data.get("over") else "blocks"
            beside = len(data.get("beside") or ())
            others = f" shared with {beside} other run{'' if beside == 1 else 's'}" if beside else ""
            text = f"task {data.get('task')} {verb} the event loop{others} for {data.get('blocked_for')}"
    return text


def _task_pause(event: Event) -> str:
    data = event.data
    until = f" until {data['until']}" if data.get("until") and event.kind == "task_paused" else ""
    why = f": {data['reason']}" if data.get("reason") else ""
    return f"task {data.get('task')} was {event.kind.removeprefix('task_')} by {data.get('who')}{until}{why}"


def _ownership(event: Event) -> str:
    """Describe what the code of an app says about a job."""
    data = event.data
    app = " ".join(str(part) for part in (data.get("app"), data.get("version")) if part)
    if event.kind == "orphaned":
        last = f"; last declared by {data['last_version']}" if data.get("last_version") else ""
        return f"app {app} no longer declares the job{last}; policy {data.get('policy')}"
    if event.kind == "adopted":
        again = "again" if data.get("from_app") == data.get("app") else f"now, instead of app {data.get('from_app')}"
        return f"app {app} declares the job {again}"
    fields = ", ".join(str(one.get("field")) for one in data.get("fields") or ())
    return f"app {app} changed back what {data.get('changed_by') or 'someone'} had changed: {fields}"


def _waiting(event: Event) -> str:
    """Describe why runs do not start, or that the cause is gone."""
    data = event.data
    if event.kind == "skipping":
        waits = f"has waited for a worker for {data.get('waiting_for')}"
        state = waits if data.get("waiting_for") else f"has not ended for {data.get('running_for')}"
        return f"{data.get('skipped')} or more skipped, while a run {state}"
    if event.kind == "paused":
        return f"paused by {data.get('by')}: {data.get('reason')}"
    if event.kind == "stranded":
        return (
            f"claimed, but no worker is known to execute it: {data.get('reason')}, since {data.get('since', event.at)}"
        )
    return _lacks_worker(event)


def _lacks_worker(event: Event) -> str:
    """Describe that a pool has no worker for its runs, or that it has one again."""
    data = event.data
    task, pool = data.get("task"), data.get("pool")
    if event.kind == "unstarted":
        is_empty = data.get("reason") == "no_worker"
        who = f"no live worker serves pool {pool}" if is_empty else f"pool {pool} has no free slot"
        return f"{who}: runs have waited since {data.get('since')}"
    if event.kind == "recovered":
        return (
            f"runs in pool {pool} start again"
            if data.get("after") == "unstarted"
            else f"a worker of pool {pool} knows the task {task} again"
        )
    return f"no live worker of pool {pool} knows the task {task}, so its runs wait"
