"""`bellringer jobs import | skip | unskip | revisions | rollback`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Command, fail
from bellringer.cli.output import LIST, output_option, print_list, short_json
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time

if TYPE_CHECKING:
    from bellringer.client import Client

BATCH: Final = 5_000  # jobs in one request, which must stay below 16 MiB


@click.command(
    cls=Command,
    examples="""
    bellringer jobs import jobs.ndjson
    generate-jobs | bellringer jobs import -
    """,
)
@click.argument("file", type=click.File("rb"), metavar="FILE.ndjson")
@click.option("--each", is_flag=True, help="Make those that can be made; without it, all of a request or none.")
@with_client
def import_jobs(client: Client, *, file: IO[bytes], each: bool) -> None:
    """Create jobs of a file that has one as JSON on each line, 5,000 in a request."""
    made = failed = start = 0
    for batch in _batches(file):
        done = client.create_jobs(batch, atomic=not each)
        made, failed = made + done.created, failed + done.failed
        for item in done.items if isinstance(done.items, list) else ():
            if item.status >= 400:
                click.echo(f"line {start + item.index + 1}: {item.detail}", err=True)
        start += len(batch)
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
            fail(f"line {number} is not JSON: {error}", "write each job on a line of its own")
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@click.command(cls=Command, examples="bellringer jobs skip nightly 2026-12-25T02:30:00Z --reason 'a release'")
@click.argument("job")
@click.argument("at", metavar="TIME")
@click.option("--reason", help="Why; the run that is skipped says it.")
@with_client
def skip(client: Client, *, job: str, at: str, reason: str | None) -> None:
    """Let one coming occurrence of JOB not run."""
    done = client.skip(job, at, reason=reason)
    click.echo(f"{job} will not run at {clock_time(done.at)}")


@click.command(cls=Command, examples="bellringer jobs unskip nightly 2026-12-25T02:30:00Z")
@click.argument("job")
@click.argument("at", metavar="TIME")
@with_client
def unskip(client: Client, *, job: str, at: str) -> None:
    """Let an occurrence of JOB that was skipped run after all."""
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
@click.option("--show", type=click.IntRange(min=1), metavar="N", help="What revision N changed.")
@limit_option
@output_option(*LIST)
@with_client
def revisions(client: Client, *, job: str, show: int | None, limit: int, output: str) -> None:
    """The changes of JOB, newest first, or what one of them changed."""
    if show is not None:
        print_list(
            output,
            client.revision(job, show).changes,
            head=("FIELD", "BEFORE", "AFTER"),
            row=lambda c: (c.field, short_json(c.before), short_json(c.after)),
            name=lambda c: str(c.field),
            nothing="it changed nothing of the definition",
        )
        return
    print_list(
        output,
        gather(lambda **page: client.revisions(job, **page), limit, output=output),
        head=("REVISION", "AT", "WHAT", "BY", "WHY"),
        row=lambda r: (str(r.revision), clock_time(r.at), r.what, r.by, r.why or ""),
        name=lambda r: str(r.revision),
        nothing="no revisions",
    )


@click.command(cls=Command, examples="bellringer jobs rollback nightly 3")
@click.argument("job")
@click.argument("revision", type=click.IntRange(min=1))
@with_client
def rollback(client: Client, *, job: str, revision: int) -> None:
    """Let the definition that JOB had at REVISION hold again."""
    done = client.rollback(job, revision)
    click.echo(f"{done.name} is as it was at revision {revision}; this is revision {done.revision}")
