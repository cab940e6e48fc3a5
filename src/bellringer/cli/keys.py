"""`bellringer keys`, `bellringer whoami` and `bellringer limits`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import Command, CommandGroup, fail
from bellringer.cli.connect import find_key, find_url, with_client
from bellringer.cli.options import fetch_pages, limit_option, load_config
from bellringer.cli.output import LIST, format_local, output_option, print_fields, print_list, print_table, to_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.access import NewApiKey

ROLES: Final = ("viewer", "operator", "editor", "admin")
NEW: Final = ("table", "json", "key")


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer keys create deploy --role editor
    bellringer keys create first --role admin --dsn postgresql://app@db/bellringer
    bellringer keys rotate k3v9x2ab --grace 1d
    """,
)
def keys() -> None:
    """Manage API keys, by which programs and people authenticate."""


everywhere_option = click.option(
    "--everywhere", is_flag=True, help="Manage installation keys, which are valid for all tenants."
)


@keys.command("list", examples="bellringer keys list -o json")
@everywhere_option
@limit_option
@output_option(*LIST)
@with_client
def list_keys(client: Client, *, everywhere: bool, limit: int, output: str) -> None:
    """List keys, including expired and revoked ones. Secrets are not shown."""
    print_list(
        output,
        fetch_pages(client.installation_keys if everywhere else client.api_keys, limit, output=output),
        head=("ID", "NAME", "STATE", "ROLE", "SCOPES", "LAST USED", "EXPIRES", "CREATED BY"),
        row=lambda key: (
            key.key_id,
            key.name,
            key.state,
            key.role,
            ", ".join(key.scopes) or "all",
            format_local(key.last_used_at),
            format_local(key.expires_at),
            key.created_by,
        ),
        name=lambda key: key.key_id,
        empty="no keys",
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
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of the key.")
@click.option(
    "--scope", "scopes", multiple=True, help="Restrict the key to this kind of resource, such as jobs. Repeatable."
)
@click.option(
    "--expires", metavar="TIME", help="Expiry: an RFC 3339 instant, or a duration such as 90d.  [default: never]"
)
@everywhere_option
@click.option(
    "--dsn", metavar="URL", help="Write the key directly to this database; for the first key of an installation."
)
@click.option(
    "--url", metavar="URL", help="URL of the server.  [default: BELLRINGER_URL, or a `bellringer dev` nearby]"
)
@click.option("--key", metavar="KEY", help="API key to authenticate with.  [default: BELLRINGER_KEY]")
@click.option("--tenant", metavar="NAME", help="Tenant of the new key.  [default: the tenant of --key, or default]")
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
    """Create a key. Its secret is shown only once."""
    if dsn is not None:
        if scopes or expires:
            fail(
                "--scope and --expires cannot be combined with --dsn",
                "create the first key without them, then use it to create others",
            )
        address = load_config(dsn=dsn).require_dsn()
        made = asyncio.run(_first(address, name, role, None if everywhere else tenant or "default"))
        click.echo(made if output == "key" else to_json({"name": name, "role": role, "key": made}))
        return
    from bellringer.client import Client

    with Client(find_url(url), token=find_key(key), tenant=tenant) as client:
        ask = client.create_installation_key if everywhere else client.create_api_key
        _print(ask(name, role, scopes=scopes, expires=expires), output)


async def _first(dsn: str, name: str, role: str, tenant: str | None) -> str:
    """Create a key directly in the database, because no request can authenticate without a key."""
    from bellringer.access.api_keys import generate_api_key
    from bellringer.core.jobs import check_name
    from bellringer.store import api_keys as stored
    from bellringer.store.connection_pool import Store
    from bellringer.store.interned_names import Catalog

    store = await Store.open(dsn, size=1, name="bellringer keys")
    try:
        made = generate_api_key()
        tenant_id = None if tenant is None else await Catalog(store).tenant_id(tenant)
        await stored.add(store, made, tenant_id=tenant_id, name=check_name(name), role=role, who="command line")
        return made.text
    finally:
        await store.close()


@keys.command("rotate", examples="bellringer keys rotate k3v9x2ab --grace 1d")
@click.argument("key_id", metavar="ID")
@click.option(
    "--grace", metavar="TIME", default="1h", show_default=True, help="Time for which the old key stays valid."
)
@click.option("--expires", metavar="TIME", help="Expiry of the new key.  [default: never]")
@everywhere_option
@output_option(*NEW)
@with_client
def rotate(client: Client, *, key_id: str, grace: str, expires: str | None, everywhere: bool, output: str) -> None:
    """Replace a key. The old key stays valid for the grace period."""
    ask = client.rotate_installation_key if everywhere else client.rotate_api_key
    _print(ask(key_id, grace=grace, expires=expires), output)


@keys.command("revoke", examples="bellringer keys revoke k3v9x2ab")
@click.argument("key_id", metavar="ID")
@everywhere_option
@with_client
def revoke(client: Client, *, key_id: str, everywhere: bool) -> None:
    """Revoke a key. All servers reject it within five seconds."""
    (client.revoke_installation_key if everywhere else client.revoke_api_key)(key_id)
    click.echo(f"revoked {key_id}")


@click.command(cls=Command, examples="bellringer whoami")
@output_option("table", "json")
@with_client
def whoami(client: Client, *, output: str) -> None:
    """Show your identity, role and tenant."""
    seen = client.whoami()
    if output == "json":
        click.echo(to_json(seen))
        return
    print_fields(
        {
            "who": seen.who,
            "role": seen.role,
            "tenant": f"{seen.tenant} (--tenant selects others)" if seen.everywhere else seen.tenant,
            "scopes": ", ".join(seen.scopes) or "all",
            "from": seen.origin or "",
        }
    )


@click.command(cls=Command, examples="bellringer limits")
@output_option("table", "json")
@with_client
def limits(client: Client, *, output: str) -> None:
    """Show the quotas of your tenant and their use, and the limits of the server."""
    found = client.limits()
    if output == "json":
        click.echo(to_json(found))
        return
    print_table(("QUOTA", "USED", "MOST"), [(q.name, number(q.used), number(q.most)) for q in found.quotas])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.10g}"


def _print(made: NewApiKey, output: str) -> None:
    if output == "json":
        click.echo(to_json(made))
    elif output == "key":
        click.echo(made.key)
    else:
        facts: dict[str, Any] = {"id": made.key_id, "name": made.name, "role": made.role, "key": made.key}
        print_fields(facts)
        click.echo("store the key now: it is not shown again", err=True)
