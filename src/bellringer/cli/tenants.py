"""`bellringer tenants suspend|unsuspend`: by the database, as `bellringer migrate`."""

from __future__ import annotations

import asyncio

import click

from bellringer.cli.groups import Group
from bellringer.cli.options import load_config


@click.group(
    cls=Group,
    examples="""
    bellringer tenants suspend acme
    bellringer tenants unsuspend acme
    """,
)
def tenants() -> None:
    """Tenants: let one rest altogether, and go on."""


@tenants.command("suspend", examples="bellringer tenants suspend acme")
@click.argument("name")
@click.option("--dsn", metavar="URL", help="The database.  [default: BELLRINGER_DSN]")
def suspend(name: str, dsn: str | None) -> None:
    """Let a tenant rest: what is due is recorded as skipped, what waits is not claimed, what runs finishes."""
    changed = asyncio.run(_suspend(name, load_config(dsn=dsn).require_dsn(), rest=True))
    click.echo(f"suspended {name}" if changed else f"{name} is suspended already")


@tenants.command("unsuspend", examples="bellringer tenants unsuspend acme")
@click.argument("name")
@click.option("--dsn", metavar="URL", help="The database.  [default: BELLRINGER_DSN]")
def unsuspend(name: str, dsn: str | None) -> None:
    """Let a tenant go on from now; what waited runs, what was skipped stays so."""
    changed = asyncio.run(_suspend(name, load_config(dsn=dsn).require_dsn(), rest=False))
    click.echo(f"{name} goes on" if changed else f"{name} is not suspended")


async def _suspend(name: str, dsn: str, *, rest: bool) -> bool:
    from bellringer.lifecycle import freeze
    from bellringer.store.names import Names
    from bellringer.store.pool import Store

    store = await Store.open(dsn, size=1, name="bellringer tenants")
    try:
        tenant_id = await Names(store).tenant_id(name)
        return await (freeze.suspend if rest else freeze.unsuspend)(store, tenant_id)
    finally:
        await store.close()
