"""`bellringer jobs update`: change a job, or see what the change would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.arguments import argument_options, read_arguments
from bellringer.cli.connect import with_client
from bellringer.cli.definition import KINDS, OF_SCHEDULE, PLAIN, definition_options, read_schedule
from bellringer.cli.groups import Command, fail
from bellringer.cli.output import ONE, as_json, clean, output_option, short_json
from bellringer.cli.times import clock_time

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import DryRun

_NOTHING: Final = "none"  # the word that takes a value away


@click.command(
    cls=Command,
    examples="""
    bellringer jobs update nightly --cron '0 4 * * *' --dry-run
    bellringer jobs update nightly --tz Europe/Berlin --timeout 20m
    bellringer jobs update nightly --jitter none --disable
    """,
)
@click.argument("job")
@definition_options
@argument_options
@click.option("--enable/--disable", "enabled", default=None, help="Whether it fires at all.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would change, fire by fire.")
@click.option("--days", type=click.IntRange(1, 366), help="How far --dry-run looks.  [default: 7]")
@output_option(*ONE)
@with_client
def update(client: Client, /, *, job: str, dry_run: bool, days: int | None, output: str, **given: Any) -> None:
    """Change what the options name of JOB; the rest stays as it is. The word `none` takes a value away."""
    from bellringer.cli.jobs import print_job

    patch = read_patch(given)
    if not patch:
        fail("nothing is to be changed", "name it, such as --cron '0 4 * * *'")
    if days is not None and not dry_run:
        fail("--days goes with --dry-run")
    if not dry_run:
        print_job(client.patch_job(job, patch), output)
        return
    found = client.dry_run(job, patch, days=days)
    if output == "json":
        click.echo(as_json(found))
        return
    for line in differences(found):
        click.echo(clean(line))


def read_patch(given: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that the options stand for."""
    patch = {name: given[name] for name in (*PLAIN, "enabled") if given[name] is not None}
    patch = {name: None if value == _NOTHING else value for name, value in patch.items()}
    if given["attempts"] is not None:
        patch["retry"] = {"attempts": given["attempts"]}
    if given["tags"]:
        patch["tags"] = list(given["tags"])
    args, kwargs = read_arguments(given["named"], given["args_json"])
    patch |= {name: value for name, value in (("args", args), ("kwargs", kwargs)) if value is not None}
    schedule = _read_schedule(given)
    return patch if schedule is None else {**patch, "schedule": schedule}


def _read_schedule(given: dict[str, Any]) -> dict[str, Any] | None:
    """A schedule of its own, or other options for the one that the job has."""
    options = {name: given[name] for name in OF_SCHEDULE if given[name]}
    if any(given[kind] is not None for kind in KINDS):
        return read_schedule(given)
    return {name: None if value == _NOTHING else value for name, value in options.items()} or None


def differences(found: DryRun) -> Iterator[str]:
    """What would change: the fields, then the fires, those that go with - and those that come with +."""
    if not found.changes:
        yield "nothing would change"
        return
    for change in found.changes:
        yield f"{change.field}: {short_json(change.before)} → {short_json(change.after)}"
    fires = found.fires
    yield f"fires up to {clock_time(fires.end)}: {fires.before:,} → {fires.after:,}, {fires.kept:,} of them stay"
    for sign, at in merge(_signed("-", fires.removed), _signed("+", fires.added), key=lambda pair: pair[1]):
        yield f"{sign} {at:%a} {clock_time(at)}"
    if fires.truncated:
        yield "… and more: this list is not whole"
    yield f"next: {clock_time(found.next_before)} → {clock_time(found.next_after)}"
    for warning in found.warnings:
        yield f"warning: {warning.text}"


def _signed(sign: str, instants: Sequence[datetime]) -> Iterator[tuple[str, datetime]]:
    return ((sign, at) for at in instants)
