"""`bellringer tenants`: by the server; suspend and unsuspend by the database, as `bellringer migrate`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group, fail
from bellringer.cli.keys import number
from bellringer.cli.options import load_config
from bellringer.cli.output import LIST, ONE, as_json, output_option, print_facts, print_list, print_table
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.access import Tenant

QUOTAS: Final = ("jobs", "fires_per_minute", "in_flight", "payload_bytes", "api_per_minute")


@click.group(
    cls=Group,
    examples="""
    bellringer tenants create acme --quota jobs=1000 --quota fires_per_minute=600
    bellringer tenants usage acme
    bellringer tenants suspend acme
    """,
)
def tenants() -> None:
    """Tenants: their shares and quotas; let one rest altogether, and go on."""


@tenants.command("list", examples="bellringer tenants list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_tenants(client: Client, *, limit: int, output: str) -> None:
    """List tenants."""
    print_list(
        output,
        gather(client.tenants, limit, output=output),
        head=("NAME", "STATE", "WEIGHT", "QUOTAS", "SINCE"),
        row=lambda t: (t.name, _state(t), f"{t.weight:g}", _quotas(t) or "none", clock_time(t.created_at)),
        name=lambda t: t.name,
        nothing="there are no tenants",
    )


def _read_quotas(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, float | None]:
    quotas: dict[str, float | None] = {}
    for text in given:
        name, _, most = text.partition("=")
        try:
            quotas[name] = None if most == "none" else float(most)
        except ValueError:
            name = ""
        if name not in QUOTAS:
            fail(
                f"--quota {text!r} cannot be read", f"write it like jobs=1000 or jobs=none: one of {', '.join(QUOTAS)}"
            )
    return quotas


quota_option = click.option(
    "--quota", "quotas", multiple=True, callback=_read_quotas, metavar="NAME=MOST", help="What it may have at most."
)
weight_option = click.option("--weight", type=float, help="Its share of the claims beside others'.")


@tenants.command("create", examples="bellringer tenants create acme --quota jobs=1000")
@click.argument("name")
@weight_option
@quota_option
@output_option(*ONE)
@with_client
def create(client: Client, *, name: str, weight: float | None, quotas: dict[str, Any], output: str) -> None:
    """Make a tenant; then make its first key: `bellringer keys create NAME --role admin --tenant NAME`."""
    _print(client.create_tenant(name, weight=weight, quotas=quotas), output)


@tenants.command("set", examples="bellringer tenants set acme --weight 2 --quota jobs=none")
@click.argument("name")
@weight_option
@quota_option
@output_option(*ONE)
@with_client
def change(client: Client, *, name: str, weight: float | None, quotas: dict[str, Any], output: str) -> None:
    """Give a tenant another weight or quotas; a quota of none is taken away."""
    patch = {**({} if weight is None else {"weight": weight}), **({"quotas": quotas} if quotas else {})}
    if not patch:
        fail("nothing is to be changed", "give --weight or --quota")
    _print(client.patch_tenant(name, patch), output)


@tenants.command("usage", examples="bellringer tenants usage acme")
@click.argument("name")
@output_option("table", "json")
@with_client
def usage(client: Client, *, name: str, output: str) -> None:
    """What a tenant has, against its quotas."""
    found = client.tenant_usage(name)
    if output == "json":
        click.echo(as_json(found))
        return
    print_table(("QUOTA", "USED", "MOST"), [(q.name, number(q.used), number(q.most)) for q in found.items])


def _state(tenant: Tenant) -> str:
    return "suspended" if tenant.suspended_at else "active"


def _quotas(tenant: Tenant) -> str:
    named = {name: getattr(tenant.quotas, name) for name in QUOTAS}
    return ", ".join(f"{name} {number(most)}" for name, most in named.items() if most is not None)


def _print(tenant: Tenant, output: str) -> None:
    if output == "json":
        click.echo(as_json(tenant))
    elif output == "name":
        click.echo(tenant.name)
    else:
        facts = {
            "tenant": tenant.name,
            "state": _state(tenant),
            "weight": f"{tenant.weight:g}",
            "quotas": _quotas(tenant),
        }
        print_facts(facts)


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
