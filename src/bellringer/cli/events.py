"""`bellringer events`: what is late, missed, slow or outgrown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group
from bellringer.cli.output import LIST, clean, output_option, print_list, short_json
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time, from_now

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Event

KINDS: Final = ("failed", "dead", "late", "missed", "slow", "outgrown", "recovered")


@click.group(
    cls=Group,
    examples="""
    bellringer events list
    bellringer events list --kind late --follow
    """,
)
def events() -> None:
    """Events: runs that are late, missed or slow, and jobs that outgrow their interval; each is told once."""


@events.command(
    "list",
    examples="""
    bellringer events list --job nightly
    bellringer events list --kind slow --follow -o jsonl
    """,
)
@click.option("--kind", type=click.Choice(KINDS), help="Only those of this kind.")
@click.option("--job", help="Only those of this job.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, oldest first.")
@limit_option
@output_option(*LIST)
@with_client
def list_events(client: Client, *, kind: str | None, job: str | None, follow: bool, limit: int, output: str) -> None:
    """List events, the newest first."""
    from bellringer.clock import SystemClock

    if follow:
        for event in coming(client, limit, kind=kind, job=job):
            click.echo(_line(event, output))
        return
    now = SystemClock().now()
    print_list(
        output,
        gather(client.events, limit, output=output, kind=kind, job=job),
        head=("KIND", "JOB", "TOLD", "DUE", "WHAT", "RUN"),
        row=lambda event: (
            event.kind,
            event.job or "–",
            from_now(event.at, now),
            "–" if event.kind == "outgrown" else clock_time(event.scheduled_for),
            what(event),
            event.run_id or "–",
        ),
        name=lambda event: event.run_id or event.job_id,
        nothing=f"there are no events of kind {kind}" if kind else "nothing was late, missed, slow or outgrown",
    )


def coming(client: Client, limit: int, **filters: Any) -> Iterator[Event]:
    """The last events, then those that happen, oldest first. The stream begins first, so that none falls between."""
    seen: set[int] | None = None
    for _, happened in client.events_stream(hearts=True, **filters):
        if seen is None:
            last = gather(client.events, limit, output="", **filters)
            seen = {event.event_id for event in last}
            yield from reversed(last)
        if happened is not None and happened.event_id not in seen:
            yield happened


def _line(event: Event, output: str) -> str:
    if output == "name":
        return event.run_id or event.job_id
    if output != "table":
        return short_json(event)
    moment = f"{event.at.astimezone():%H:%M:%S}"
    return clean(f"{moment}  {event.kind:<8}  {event.job or event.job_id}  {what(event)}")


def what(event: Event) -> str:
    """An event in words."""
    data = event.data
    text = short_json(data)
    match event.kind:
        case "failed":
            again = data.get("retry_in")
            text = f"attempt {event.attempt} {data.get('outcome')}: {data.get('error')}, again in {again}"
        case "dead":
            text = f"gave up: {data.get('error')} ({data.get('reason')})"
        case "recovered":
            text = f"runs well again, after {data.get('after')} at {data.get('since')}"
        case "late":
            held = f"; it waits: {', '.join(data['blocked'])}" if data.get("blocked") else ""
            state = "not even born" if data.get("unborn") else "not started"
            text = f"{state} {data.get('late_after')} after its time{held}"
        case "missed":
            count = data.get("count")
            text = f"{'some' if count is None else count} from {data.get('from')} were missed; {data.get('misfire')}"
        case "slow":
            text = f"runs for {data.get('running_for')}, usually {data.get('usual')}, {data.get('longest')} at most"
        case "outgrown":
            text = f"usually takes {data.get('usual')}, but comes again after {data.get('interval')}"
    return text
