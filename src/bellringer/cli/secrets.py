"""`bellringer secrets`: values that arguments and HTTP targets refer to by name."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option, load_config
from bellringer.cli.output import LIST, ONE, format_local, output_option, print_fields, print_list, to_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.engine.named_secrets import KeyRotation
    from bellringer.wire.secrets import Secret


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer secrets set stripe-key --from-file stripe.txt --task charge
    bellringer secrets list
    bellringer secrets rotate-keys
    """,
)
def secrets() -> None:
    """Manage secrets: values that arguments refer to as {"$secret": "name"}. No command shows a value."""


@secrets.command(
    "set",
    examples="""
    bellringer secrets set stripe-key --from-file stripe.txt
    vault read -field=key stripe | bellringer secrets set stripe-key --value-stdin --task charge
    bellringer secrets set hook-token --from-file token.txt --origin https://api.example.com
    """,
)
@click.argument("name")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the value from this file. One line break at its end is removed.",
)
@click.option("--value-stdin", is_flag=True, help="Read the value from standard input.")
@click.option("--task", "tasks", multiple=True, help="Allow only runs of this task. Repeatable.  [default: all tasks]")
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Allow HTTP targets to send the secret to this origin. Repeatable.  [default: none]",
)
@click.option("--note", help="Note, shown in lists.")
@output_option(*ONE)
@with_client
def set_secret(
    client: Client,
    *,
    name: str,
    from_file: Path | None,
    value_stdin: bool,
    tasks: tuple[str, ...],
    origins: tuple[str, ...],
    note: str | None,
    output: str,
) -> None:
    """Create or replace a secret. Without --from-file or --value-stdin, the value is asked for and not shown."""
    if from_file is not None and value_stdin:
        fail("--from-file and --value-stdin are both given", "give one")
    value = _read_value(from_file, value_stdin=value_stdin)
    stored = client.put_secret(name, value, tasks=tasks or None, origins=origins or None, note=note)
    _print(stored, output)


def _read_value(path: Path | None, *, value_stdin: bool) -> str:
    try:
        if path is not None:
            text = path.read_text(encoding="utf-8")
        elif value_stdin or not sys.stdin.isatty():
            text = sys.stdin.buffer.read().decode("utf-8")
        else:
            return str(click.prompt("Value", hide_input=True, confirmation_prompt=True))
    except UnicodeDecodeError:
        fail("the value is not UTF-8 text", "encode binary data, for example with base64")
    return text.removesuffix("\n").removesuffix("\r")


@secrets.command("list", examples="bellringer secrets list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_secrets(client: Client, *, limit: int, output: str) -> None:
    """List secrets by name, without their values."""
    print_list(
        output,
        fetch_pages(client.secrets, limit, output=output),
        head=("NAME", "VERSION", "TASKS", "ORIGINS", "KEY", "CHANGED", "CHANGED BY", "NOTE"),
        row=lambda secret: (
            secret.name,
            str(secret.version),
            ", ".join(secret.tasks) or "all",
            ", ".join(secret.origins) or "none",
            secret.key,
            format_local(secret.changed_at),
            secret.changed_by,
            secret.note or "–",
        ),
        name=lambda secret: secret.name,
        empty="no secrets",
    )


@secrets.command("delete", examples="bellringer secrets delete stripe-key")
@click.argument("name")
@with_client
def delete(client: Client, *, name: str) -> None:
    """Delete a secret. Attempts that refer to it fail with secret_missing."""
    client.delete_secret(name)
    click.echo(f"deleted {name}")


@secrets.command("rotate-keys", examples="bellringer secrets rotate-keys --dsn postgresql://app@db/bellringer")
@click.option("--dsn", metavar="URL", help="Database of the installation.  [default: BELLRINGER_DSN]")
@output_option(*ONE)
def rotate_keys(*, dsn: str | None, output: str) -> None:
    """Encrypt all stored secrets with the newest key of secret_keys, and show which keys are still in use.

    Put the new key in front of the setting secret_keys of all servers and workers first. The command needs the
    database and the keys. If it is interrupted, run it again.
    """
    from bellringer.egress.secret_box import parse_secret_keys

    config = load_config(dsn=dsn)
    box = parse_secret_keys(config.secret_keys)
    if box is None:
        fail("no encryption key is configured", "set BELLRINGER_SECRET_KEYS, newest first")
    done = asyncio.run(_rotate(config.require_dsn(), box))
    _print_rotation(done, output)
    if done.failed:
        sys.exit(1)


async def _rotate(dsn: str, box: Any) -> KeyRotation:
    from bellringer.engine.named_secrets import rotate_keys as rotate
    from bellringer.store.connection_pool import Store
    from bellringer.store.migrate import require_current

    store = await Store.open(dsn, size=1, name="bellringer secrets")
    try:
        async with store.pool.acquire() as connection:
            await require_current(connection)
        return await rotate(store, box)
    finally:
        await store.close()


def _print_rotation(done: KeyRotation, output: str) -> None:
    uses = [{"what": use.place, "key": use.key_id, "count": use.uses} for use in done.uses]
    if output == "json":
        click.echo(
            to_json(
                {
                    "key": done.key_id,
                    "secrets": done.secrets,
                    "signing_secrets": done.signing_secrets,
                    "failed": done.failed,
                    "in_use": uses,
                }
            )
        )
        return
    click.echo(f"encrypted with {done.key_id}: {done.secrets} secrets, {done.signing_secrets} signing secrets")
    for problem in done.failed:
        click.echo(f"not rotated: {problem}", err=True)
    for use in done.uses:
        old = use.key_id != done.key_id
        hint = "; store these jobs again to encrypt them with the new key" if old and use.place == "HTTP job" else ""
        click.echo(f"key {use.key_id} is in use by {use.uses} {use.place}{'s' if use.uses != 1 else ''}{hint}")
    if not any(use.key_id != done.key_id for use in done.uses):
        click.echo("keys other than the newest can be removed from secret_keys")


def _print(secret: Secret, output: str) -> None:
    if output == "json":
        click.echo(to_json(secret))
        return
    print_fields(
        {
            "name": secret.name,
            "version": str(secret.version),
            "tasks": ", ".join(secret.tasks) or "all",
            "origins": ", ".join(secret.origins) or "none",
            "key": secret.key,
            "changed": f"{format_local(secret.changed_at)} by {secret.changed_by}",
        }
    )
