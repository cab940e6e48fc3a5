"""`bellringer audit`: lists, exports and verifies the audit log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.command_groups import CommandGroup
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option, load_config
from bellringer.cli.output import LIST, format_relative, output_option, print_list
from bellringer.cli.progress import show_progress

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.engine.audit_seal import SealCheck
    from bellringer.wire.audit import AuditEntry


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer audit list --kind job
    bellringer audit export --from 2026-12-01T00:00:00Z > december.ndjson
    bellringer audit verify
    """,
)
def audit() -> None:
    """Read and verify the audit log: every change, its author and origin, chained by hashes."""


def filter_options(function: Any) -> Any:
    """The filters of `list` and `export`."""
    for option in (
        click.option(
            "--installation", is_flag=True, help="Changes that belong to no tenant; needs an installation key."
        ),
        click.option("--to", "end", metavar="TIME", help="Only changes before this RFC 3339 instant."),
        click.option("--from", "start", metavar="TIME", help="Only changes at or after this RFC 3339 instant."),
        click.option("--target", help="Only changes of the object with this id."),
        click.option("--kind", help="Only changes of this kind of object, such as job, run or freeze."),
        click.option("--action", help="Only this action, such as job.changed."),
        click.option("--who", help="Only changes by this user or key."),
    ):
        function = option(function)
    return function


@audit.command(
    "list",
    examples="""
    bellringer audit list --who user:ada
    bellringer audit list --action job.deleted -o json
    """,
)
@filter_options
@limit_option
@output_option(*LIST)
@with_client
def list_audit(client: Client, /, *, limit: int, output: str, **wanted: Any) -> None:
    """List changes, newest first."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.audit, limit, output=output, **wanted),
        head=("WHEN", "WHO", "FROM", "ACTION", "TARGET", "CHANGED"),
        row=lambda entry: (
            format_relative(entry.at, now),
            entry.who,
            entry.origin or "–",
            entry.action,
            entry.name or entry.target,
            _changed(entry),
        ),
        name=lambda entry: str(entry.audit_id),
        empty="no changes",
    )


def _changed(entry: AuditEntry) -> str:
    return ", ".join(name for name in entry.changed if name != "updated_at") or "–"


@audit.command("export", examples="bellringer audit export --kind job > jobs.ndjson")
@filter_options
@with_client
def export(client: Client, /, **wanted: Any) -> None:
    """Write all changes as JSON lines, oldest first."""
    from bellringer.cli.output import to_compact_json

    with show_progress("exporting", "changes") as progress:
        for entry in client.audit_export(**wanted):
            click.echo(to_compact_json(entry))
            progress.advance()


@audit.command("verify", examples="bellringer audit verify --dsn postgresql://user@host/database")
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def verify(*, dsn: str | None) -> None:
    """Verify the chain of hashes. The first seal that does not match is reported."""
    from bellringer.cli.output import print_fields

    found = asyncio.run(_verify(load_config(dsn=dsn).require_dsn()))
    facts = {"seals": f"{found.seals:,}", "entries": f"{found.entries:,}", "unsealed": f"{found.unsealed:,}"}
    if found.first is not None and found.first > 1:
        facts["first"] = f"seal {found.first}; earlier seals are past retention"
    if found.broken is None:
        print_fields({**facts, "verdict": "intact"})
        return
    print_fields({**facts, "verdict": f"broken at seal {found.broken}: {found.why}"})
    click.get_current_context().exit(1)


async def _verify(dsn: str) -> SealCheck:
    from bellringer.engine.audit_seal import verify_chain as check
    from bellringer.store.connection_pool import Store

    store = await Store.open(dsn, size=1, name="bellringer audit")
    try:
        return await check(store)
    finally:
        await store.close()
