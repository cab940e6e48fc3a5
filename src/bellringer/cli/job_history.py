"""`bellringer jobs import | skip | unskip | revisions | rollback`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import Command, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import LIST, format_local, output_option, print_list, print_warnings, to_compact_json
from bellringer.cli.progress import show_progress

if TYPE_CHECKING:
    from bellringer.client import Client

BATCH: Final = 5_000  # jobs per request; a request must stay below 16 MiB


@click.command(
    cls=Command,
    examples="""
    bellringer jobs import jobs.ndjson
    generate-jobs | bellringer jobs import -
    """,
)
@click.argument("file", type=click.File("rb"), metavar="FILE.ndjson")
@click.option("--each", is_flag=True, help="Create all valid jobs; by default, one invalid job rejects its request.")
@with_client
def import_jobs(client: Client, *, file: IO[bytes], each: bool) -> None:
    """Create jobs from a file with one JSON document per line."""
    made = failed = start = 0
    with show_progress("importing", "jobs") as progress:
        for batch in _batches(file):
            done = client.create_jobs(batch, atomic=not each)
            made, failed = made + done.created, failed + done.failed
            for item in done.items if isinstance(done.items, list) else ():
                if item.status >= 400:
                    click.echo(f"line {start + item.index + 1}: {item.detail}", err=True)
            print_warnings(done.warnings)
            start += len(batch)
            progress.advance(len(batch))
    click.echo(f"created {made:,} jobs" + (f", {failed:,} failed" if failed else ""))
    if failed:
        click.get_current_context().exit(1)


def _batches(file: IO[bytes]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            batch.append(json.loads(line))
        except ValueError as error:
            fail(f"line {number} is not JSON: {error}", "write one JSON document per line")
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@click.command(cls=Command, examples="bellringer jobs skip nightly 2026-12-25T02:30:00Z --reason 'a release'")
@click.argument("job")
@click.argument("at", metavar="TIME")
@click.option("--reason", help="Reason, stored with the skipped run.")
@with_client
def skip(client: Client, *, job: str, at: str, reason: str | None) -> None:
    """Skip one future occurrence of JOB."""
    done = client.skip(job, at, reason=reason)
    click.echo(f"{job} will not run at {format_local(done.at)}")


@click.command(cls=Command, examples="bellringer jobs unskip nightly 2026-12-25T02:30:00Z")
@click.argument("job")
@click.argument("at", metavar="TIME")
@with_client
def unskip(client: Client, *, job: str, at: str) -> None:
    """Remove the skip of a future occurrence of JOB."""
    client.unskip(job, at)
    click.echo(f"{job} will run at {at}")


@click.command(
    cls=Command,
    examples="""
    bellringer jobs revisions nightly
    bellringer jobs revisions nightly --show 3
    """,
)
@click.argument("job")
@click.option("--show", type=click.IntRange(min=1), metavar="N", help="Show what revision N changed.")
@limit_option
@output_option(*LIST)
@with_client
def revisions(client: Client, *, job: str, show: int | None, limit: int, output: str) -> None:
    """List the revisions of JOB, newest first, or show one of them."""
    if show is not None:
        print_list(
            output,
            client.revision(job, show).changes,
            head=("FIELD", "BEFORE", "AFTER"),
            row=lambda c: (c.field, to_compact_json(c.before), to_compact_json(c.after)),
            name=lambda c: str(c.field),
            empty="the definition did not change",
        )
        return
    print_list(
        output,
        fetch_pages(lambda **page: client.revisions(job, **page), limit, output=output),
        head=("REVISION", "AT", "WHAT", "BY", "WHY"),
        row=lambda r: (str(r.revision), format_local(r.at), r.what, r.by, r.why or ""),
        name=lambda r: str(r.revision),
        empty="no revisions",
    )


@click.command(cls=Command, examples="bellringer jobs rollback nightly 3")
@click.argument("job")
@click.argument("revision", type=click.IntRange(min=1))
@with_client
def rollback(client: Client, *, job: str, revision: int) -> None:
    """Restore the definition that JOB had at REVISION."""
    done = client.rollback(job, revision)
    click.echo(f"{done.name} is as it was at revision {revision}; this is revision {done.revision}")
