"""`bellringer archive`: lists, verifies and prints archived runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bellringer.cli.command_groups import CommandGroup
from bellringer.cli.output import LIST, output_option, print_list
from bellringer.cli.progress import show_progress

if TYPE_CHECKING:
    from bellringer.core.archive import ObjectStore

T = TypeVar("T")


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer archive list
    bellringer archive verify
    bellringer archive cat 2026-11-18 --tenant acme | jq .run_id
    """,
)
def archive() -> None:
    """Read the archive of runs past retention. Needs no server and no database."""


location_option = click.option(
    "--archive", "location", metavar="URL", help="Address of the archive.  [default: BELLRINGER_ARCHIVE]"
)


class Day(click.ParamType[date]):
    """A day such as 2026-11-18."""

    name = "DAY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        try:
            return date.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a day; write it like 2026-11-18", param, ctx)


@archive.command("list", examples="bellringer archive list -o json")
@location_option
@output_option(*LIST)
def list_days(location: str | None, output: str) -> None:
    """List the archived days."""
    from bellringer.engine.read_archive import list_manifests

    found = _run(location, list_manifests)
    print_list(
        output,
        found,
        head=("DAY", "RUNS", "BYTES", "PARTS", "TENANTS", "BATCH"),
        row=lambda manifest: (
            manifest.day.isoformat(),
            f"{manifest.rows:,}",
            f"{manifest.bytes:,}",
            str(len(manifest.parts)),
            str(len({part.tenant for part in manifest.parts})),
            manifest.batch,
        ),
        name=lambda manifest: manifest.day.isoformat(),
        empty="nothing is archived",
    )


@archive.command("verify", examples="bellringer archive verify\nbellringer archive verify 2026-11-18")
@click.argument("day", type=Day(), required=False)
@location_option
def verify(day: date | None, location: str | None) -> None:
    """Read every part back, and compare its size, digest and number of rows with its manifest.

    The exit code is 1 if a part is missing or damaged.
    """
    from bellringer.engine.archive import ArchiveDamaged, verify_part
    from bellringer.engine.read_archive import list_manifests
    from bellringer.errors import NotFound

    async def check(source: ObjectStore) -> tuple[int, int, list[str]]:
        rows, parts, damaged = 0, 0, []
        manifests = await list_manifests(source, day)
        with show_progress("verifying", "runs", sum(manifest.rows for manifest in manifests)) as progress:
            for part in (part for manifest in manifests for part in manifest.parts):
                try:
                    await verify_part(source, part)
                    rows, parts = rows + part.rows, parts + 1
                except (ArchiveDamaged, NotFound) as error:
                    damaged.append(error.message)
                progress.advance(part.rows)
        return rows, parts, damaged

    rows, parts, damaged = _run(location, check)
    for problem in damaged:
        click.echo(f"damaged: {problem}")
    click.echo(f"{parts:,} parts with {rows:,} runs are intact, {len(damaged):,} are damaged")
    if damaged:
        click.get_current_context().exit(1)


@archive.command("cat", examples="bellringer archive cat 2026-11-18 --tenant acme > runs.ndjson")
@click.argument("day", type=Day())
@click.option("--tenant", metavar="NAME", help="Only runs of this tenant.")
@location_option
def cat(day: date, tenant: str | None, location: str | None) -> None:
    """Print the archived runs of a day as NDJSON, one run with its attempts per line."""
    from bellringer.engine.read_archive import list_manifests, read_lines
    from bellringer.errors import NotFound

    async def show(source: ObjectStore) -> int:
        manifests = await list_manifests(source, day)
        for manifest in manifests:
            async for line in read_lines(source, manifest, tenant):
                click.echo(line)
        return len(manifests)

    if not _run(location, show):
        raise NotFound(f"{day} is not in the archive", hint="`bellringer archive list` shows the days")


def _run(location: str | None, act: Callable[[ObjectStore], Coroutine[Any, Any, T]]) -> T:
    from bellringer.backend_factory import create_archive
    from bellringer.config import load_config
    from bellringer.errors import ConfigError

    source = create_archive(load_config({"archive": location}, environ=os.environ))
    if source is None:
        raise ConfigError(
            "no archive is configured", hint="set BELLRINGER_ARCHIVE=file:///folder or s3://bucket/prefix"
        )
    return asyncio.run(act(source))
