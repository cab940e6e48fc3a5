"""`bellringer restore`: prepares a database that was restored from a backup for its processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bellringer.cli.command_groups import CommandGroup
from bellringer.cli.options import load_config
from bellringer.cli.output import output_option

if TYPE_CHECKING:
    from datetime import datetime

    from bellringer.store.restores import RestoreRow

T = TypeVar("T")
MAX_LISTED: Final = 100


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer restore finish
    bellringer restore finish --recovered-to 2026-12-01T09:30:00Z --note 'disk failure'
    bellringer restore list
    """,
)
def restore() -> None:
    """Prepare a database that was restored from a backup or a dump, and list earlier restores."""


dsn_option = click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")


@restore.command(
    "finish",
    examples="""
    bellringer restore finish
    bellringer restore finish --recovered-to 2026-12-01T09:30:00Z --note 'disk failure'
    """,
)
@click.option(
    "--recovered-to",
    metavar="TIME",
    help="Instant whose state was restored (RFC 3339).  [default: the last heartbeat in the database]",
)
@click.option("--note", default="", metavar="TEXT", help="Reason, for the audit log.")
@click.option("--force", is_flag=True, help="Continue although programs are connected to the database.")
@output_option("text", "json")
@dsn_option
def finish(recovered_to: str | None, note: str, force: bool, output: str, dsn: str | None) -> None:
    """Prepare a restored database, after `bellringer migrate` and before any process starts.

    Skips all numbers that the lost database may have given out after the recovery point: fencing tokens, ids of
    workers, events and deliveries, and commit positions, which a dump does not carry over to a new server. Records the
    restore, so that `bellringer why` and `bellringer verify` can say which runs may have run before. A repeated call
    changes nothing.
    """
    from bellringer.schedule.instants import read_instant

    moment = None if recovered_to is None else read_instant(recovered_to, what="--recovered-to")
    found = asyncio.run(_finish(load_config(dsn=dsn).require_dsn(), moment, note, force=force))
    _print([found], output)


@restore.command("list", examples="bellringer restore list -o json")
@output_option("text", "json")
@dsn_option
def list_restores(output: str, dsn: str | None) -> None:
    """List the restores of this database, the newest first."""
    from bellringer.store import restores

    _print(asyncio.run(_connected(_address(dsn), lambda connection: restores.newest(connection, MAX_LISTED))), output)


def _address(dsn: str | None) -> str:
    return load_config(dsn=dsn).require_dsn()


async def _finish(dsn: str, recovered_to: datetime | None, note: str, *, force: bool) -> RestoreRow:
    from bellringer.errors import Conflict
    from bellringer.store import restores

    async def act(connection: Any) -> RestoreRow:
        if (sessions := await restores.find_sessions(connection)) and not force:
            raise Conflict(
                f"programs are connected to the database: {', '.join(sessions)}",
                hint="stop all servers, schedulers and workers first; --force continues",
            )
        return await restores.finish(connection, recovered_to, who="command line", note=note)

    return await _connected(dsn, act)


async def _connected(dsn: str, act: Callable[[Any], Awaitable[T]]) -> T:
    """Calls `act` with a connection. Requires the schema, but not that stored positions are repaired."""
    from bellringer.errors import SchemaMismatch
    from bellringer.store.connection_pool import connect
    from bellringer.store.migrate import status

    connection = await connect(dsn, name="bellringer restore")
    try:
        if not (await status(connection)).usable:
            raise SchemaMismatch("the database has another schema than this program", hint="run `bellringer migrate`")
        return await act(connection)
    finally:
        await connection.close()


def _print(found: list[RestoreRow], output: str) -> None:
    from bellringer.cli.output import print_fields, to_compact_json

    if not found and output == "text":
        click.echo("This database was never restored.")
    for row in found:
        document = row.document()
        if output == "json":
            click.echo(to_compact_json(document))
            continue
        document["positions"] = "rebased: they were ahead" if document.pop("positions_were_ahead") else "advanced"
        document["unfinished"] = f"{row.unfinished:,} runs, {row.held:,} of them claimed or sent"
        document.pop("held")
        print_fields({key.replace("_", " "): str(value) for key, value in document.items()})
