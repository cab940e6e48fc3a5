"""`bellringer roles`: prints the SQL for database roles with least privilege."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from bellringer.cli.command_groups import CommandGroup
from bellringer.cli.options import load_config

if TYPE_CHECKING:
    from bellringer.store.service_roles import RoleTarget


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer roles sql | psql --single-transaction postgresql://postgres@db/bellringer
    bellringer roles settings app
    """,
)
def roles() -> None:
    """Print SQL that creates database roles. An administrator runs it; this command changes nothing."""


@roles.command(
    "sql",
    examples="""
    bellringer roles sql
    bellringer roles sql --prefix staging
    """,
)
@click.option(
    "--prefix", default="bellringer", show_default=True, metavar="NAME", help="How the names of the roles begin."
)
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def sql(prefix: str, dsn: str | None) -> None:
    """Print the SQL that creates the owner and one role each for API servers, schedulers and workers.

    The owner runs migrations. The other roles own nothing: `bellringer migrate` grants each what its processes need.
    """
    from bellringer.store.service_roles import roles_sql

    click.echo(roles_sql(_read_target(dsn), prefix))


@roles.command("settings", examples="bellringer roles settings app")
@click.argument("role")
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def settings(role: str, dsn: str | None) -> None:
    """Print the SQL that gives a role the settings that Bellringer's sessions need, for use through PgBouncer.

    Without a pooler, every session sets them itself.
    """
    from bellringer.store.service_roles import settings_sql

    click.echo(settings_sql(_read_target(dsn), role))


def _read_target(dsn: str | None) -> RoleTarget:
    from bellringer.store.connection_pool import connect
    from bellringer.store.service_roles import read_role_target

    address = load_config(dsn=dsn).require_dsn()

    async def read() -> RoleTarget:
        connection = await connect(address, name="bellringer roles")
        try:
            return await read_role_target(connection)
        finally:
            await connection.close()

    return asyncio.run(read())
