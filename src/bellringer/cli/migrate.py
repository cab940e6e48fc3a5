"""`bellringer migrate [status]`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import click

from bellringer.cli.groups import Command
from bellringer.cli.options import load_config

if TYPE_CHECKING:
    from bellringer.store.migrate import Migration, Status


@click.command(
    cls=Command,
    examples="""
    BELLRINGER_DSN=postgresql://app@db/bellringer bellringer migrate
    bellringer migrate status
    """,
)
@click.argument("what", type=click.Choice(["up", "status"]), default="up", metavar="[status]")
@click.option("--dsn", metavar="URL", help="The database.  [default: BELLRINGER_DSN]")
def migrate(what: Literal["up", "status"], dsn: str | None) -> None:
    """Bring the database to this program's schema; with `status`, only say where it stands.

    Migrations are applied in order, under a lock, each in a transaction: several at once do no harm. The exit
    code of `status` is 1 while something is pending.
    """
    address = load_config(dsn=dsn).require_dsn()
    if what == "up":
        applied: list[Migration] = asyncio.run(_migrate(address))
        for migration in applied:
            click.echo(f"applied {migration.name}")
        click.echo(f"{len(applied)} applied; the schema is current" if applied else "the schema is current")
        return
    status: Status = asyncio.run(_status(address))
    for step in status.applied:
        click.echo(f"applied  {step.name}  {step.applied_at:%Y-%m-%d %H:%M} by {step.program}")
    for migration in status.pending:
        click.echo(f"pending  {migration.name}")
    click.echo(f"schema {status.current}, this program wants {status.wanted}")
    if status.current != status.wanted:
        click.get_current_context().exit(1)


async def _migrate(dsn: str) -> Any:
    from bellringer.store.migrate import migrate as apply
    from bellringer.store.pool import connect

    connection = await connect(dsn, name="bellringer migrate")
    try:
        return await apply(connection)
    finally:
        await connection.close()


async def _status(dsn: str) -> Any:
    from bellringer.store.migrate import status
    from bellringer.store.pool import connect

    connection = await connect(dsn, name="bellringer migrate")
    try:
        return await status(connection)
    finally:
        await connection.close()
