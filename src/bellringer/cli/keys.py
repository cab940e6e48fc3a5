"""`bellringer keys`, `bellringer whoami` and `bellringer limits`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.connect import find_key, find_url, with_client
from bellringer.cli.groups import Command, Group, fail
from bellringer.cli.options import load_config
from bellringer.cli.output import LIST, as_json, output_option, print_facts, print_list, print_table
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import clock_time

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.access import NewApiKey

ROLES: Final = ("viewer", "operator", "editor", "admin")
NEW: Final = ("table", "json", "key")


@click.group(
    cls=Group,
    examples="""
    bellringer keys create deploy --role editor
    bellringer keys create first --role admin --dsn postgresql://app@db/bellringer
    bellringer keys rotate k3v9x2ab --grace 1d
    """,
)
def keys() -> None:
    """API keys: what programs and people log in by."""


everywhere_option = click.option("--everywhere", is_flag=True, help="Keys of the whole installation, not of a tenant.")


@keys.command("list", examples="bellringer keys list -o json")
@everywhere_option
@limit_option
@output_option(*LIST)
@with_client
def list_keys(client: Client, *, everywhere: bool, limit: int, output: str) -> None:
    """List keys, also those that are good no more; secrets are never shown again."""
    print_list(
        output,
        gather(client.installation_keys if everywhere else client.api_keys, limit, output=output),
        head=("ID", "NAME", "STATE", "ROLE", "SCOPES", "LAST USED", "EXPIRES", "MADE BY"),
        row=lambda key: (
            key.key_id,
            key.name,
            key.state,
            key.role,
            ", ".join(key.scopes) or "all",
            clock_time(key.last_used_at),
            clock_time(key.expires_at),
            key.created_by,
        ),
        name=lambda key: key.key_id,
        nothing="there are no keys",
    )


@keys.command(
    "create",
    examples="""
    bellringer keys create deploy --role editor --expires 90d
    bellringer keys create scraper --role viewer --scope service --everywhere
    bellringer keys create first --role admin --dsn postgresql://app@db/bellringer
    """,
)
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="The most that it may do.")
@click.option("--scope", "scopes", multiple=True, help="Only for this kind of things; may be repeated.")
@click.option("--expires", metavar="TIME", help="When it ends: a time, or a length such as 90d.  [default: never]")
@everywhere_option
@click.option("--dsn", metavar="URL", help="Write it straight to this database: the first key, that none can ask for.")
@click.option("--url", metavar="URL", help="The server.  [default: BELLRINGER_URL, or the one nearby]")
@click.option("--key", metavar="KEY", help="What to log in by.  [default: BELLRINGER_KEY]")
@click.option("--tenant", metavar="NAME", help="Whose it is.  [default: that of the key, or default]")
@output_option(*NEW)
def create(
    *,
    name: str,
    role: str,
    scopes: tuple[str, ...],
    expires: str | None,
    everywhere: bool,
    dsn: str | None,
    url: str | None,
    key: str | None,
    tenant: str | None,
    output: str,
) -> None:
    """Make a key. Its secret is shown now and never again."""
    if dsn is not None:
        if scopes or expires:
            fail("--scope and --expires go to a server, not to a database", "make the first key, then others by it")
        address = load_config(dsn=dsn).require_dsn()
        made = asyncio.run(_first(address, name, role, None if everywhere else tenant or "default"))
        click.echo(made if output == "key" else as_json({"name": name, "role": role, "key": made}))
        return
    from bellringer.client import Client

    with Client(find_url(url), token=find_key(key), tenant=tenant) as client:
        ask = client.create_installation_key if everywhere else client.create_api_key
        _print(ask(name, role, scopes=scopes, expires=expires), output)


async def _first(dsn: str, name: str, role: str, tenant: str | None) -> str:
    """A key that is written by who has the database, before there is one to ask by."""
    from bellringer.access.keys import make_key
    from bellringer.jobs import check_name
    from bellringer.store import keys as stored
    from bellringer.store.names import Names
    from bellringer.store.pool import Store

    store = await Store.open(dsn, size=1, name="bellringer keys")
    try:
        made = make_key()
        tenant_id = None if tenant is None else await Names(store).tenant_id(tenant)
        await stored.add(store, made, tenant_id=tenant_id, name=check_name(name), role=role, who="command line")
        return made.text
    finally:
        await store.close()


@keys.command("rotate", examples="bellringer keys rotate k3v9x2ab --grace 1d")
@click.argument("key_id", metavar="ID")
@click.option("--grace", metavar="TIME", default="1h", show_default=True, help="How long the old one stays good.")
@click.option("--expires", metavar="TIME", help="When the new one ends.  [default: never]")
@everywhere_option
@output_option(*NEW)
@with_client
def rotate(client: Client, *, key_id: str, grace: str, expires: str | None, everywhere: bool, output: str) -> None:
    """Put a new key in the place of one, which stays good for a while."""
    ask = client.rotate_installation_key if everywhere else client.rotate_api_key
    _print(ask(key_id, grace=grace, expires=expires), output)


@keys.command("revoke", examples="bellringer keys revoke k3v9x2ab")
@click.argument("key_id", metavar="ID")
@everywhere_option
@with_client
def revoke(client: Client, *, key_id: str, everywhere: bool) -> None:
    """End a key; within five seconds no server takes it any more."""
    (client.revoke_installation_key if everywhere else client.revoke_api_key)(key_id)
    click.echo(f"revoked {key_id}")


@click.command(cls=Command, examples="bellringer whoami")
@output_option("table", "json")
@with_client
def whoami(client: Client, *, output: str) -> None:
    """As whom the server sees you."""
    seen = client.whoami()
    if output == "json":
        click.echo(as_json(seen))
        return
    print_facts(
        {
            "who": seen.who,
            "role": seen.role,
            "tenant": f"{seen.tenant} (you may name any)" if seen.everywhere else seen.tenant,
            "scopes": ", ".join(seen.scopes) or "all",
            "from": seen.origin or "",
        }
    )


@click.command(cls=Command, examples="bellringer limits")
@output_option("table", "json")
@with_client
def limits(client: Client, *, output: str) -> None:
    """What your tenant may have, and what it has."""
    found = client.limits()
    if output == "json":
        click.echo(as_json(found))
        return
    print_table(("QUOTA", "USED", "MOST"), [(q.name, number(q.used), number(q.most)) for q in found.quotas])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.10g}"


def _print(made: NewApiKey, output: str) -> None:
    if output == "json":
        click.echo(as_json(made))
    elif output == "key":
        click.echo(made.key)
    else:
        facts: dict[str, Any] = {"id": made.key_id, "name": made.name, "role": made.role, "key": made.key}
        print_facts(facts)
        click.echo("keep the key now: it is not shown again", err=True)
