"""`bellringer audit`: who changed what, and a check that nobody has rewritten it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group
from bellringer.cli.options import load_config
from bellringer.cli.output import LIST, output_option, print_list
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import from_now

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.lifecycle.seal import Verdict
    from bellringer.wire.audit import AuditEntry


@click.group(
    cls=Group,
    examples="""
    bellringer audit list --kind job
    bellringer audit export --from 2026-12-01T00:00:00Z > december.ndjson
    bellringer audit verify
    """,
)
def audit() -> None:
    """The audit: every change, by whom and from where, chained by hashes."""


def filters(function: Any) -> Any:
    """What both lists can keep to."""
    for option in (
        click.option("--installation", is_flag=True, help="What is of the whole installation."),
        click.option("--to", "end", metavar="TIME", help="Only what was done before then, RFC 3339."),
        click.option("--from", "start", metavar="TIME", help="Only what was done then or later, RFC 3339."),
        click.option("--target", help="Only what was done to this, by its id."),
        click.option("--kind", help="Only what was done to these, as job, run, freeze."),
        click.option("--action", help="Only this, as job.changed."),
        click.option("--who", help="Only what this one did."),
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
@filters
@limit_option
@output_option(*LIST)
@with_client
def list_audit(client: Client, /, *, limit: int, output: str, **wanted: Any) -> None:
    """List changes, the newest first."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        gather(client.audit, limit, output=output, **wanted),
        head=("WHEN", "WHO", "FROM", "ACTION", "TARGET", "CHANGED"),
        row=lambda entry: (
            from_now(entry.at, now),
            entry.who,
            entry.origin or "–",
            entry.action,
            entry.name or entry.target,
            _changed(entry),
        ),
        name=lambda entry: str(entry.audit_id),
        nothing="nothing was changed",
    )


def _changed(entry: AuditEntry) -> str:
    return ", ".join(name for name in entry.changed if name != "updated_at") or "–"


@audit.command("export", examples="bellringer audit export --kind job > jobs.ndjson")
@filters
@with_client
def export(client: Client, /, **wanted: Any) -> None:
    """Write all changes as lines of JSON, oldest first."""
    from bellringer.cli.output import short_json

    for entry in client.audit_export(**wanted):
        click.echo(short_json(entry))


@audit.command("verify", examples="bellringer audit verify --dsn postgresql://user@host/database")
@click.option("--dsn", metavar="URL", help="The database.  [default: BELLRINGER_DSN]")
def verify(*, dsn: str | None) -> None:
    """Compute the chain of hashes anew; the first seal that does not hold is named."""
    from bellringer.cli.output import print_facts

    found = asyncio.run(_verify(load_config(dsn=dsn).require_dsn()))
    facts = {"seals": f"{found.seals:,}", "entries": f"{found.entries:,}", "unsealed": f"{found.unsealed:,}"}
    if found.first is not None and found.first > 1:
        facts["begins with"] = f"seal {found.first}; those before it are past retention"
    if found.broken is None:
        print_facts({**facts, "verdict": "whole"})
        return
    print_facts({**facts, "verdict": f"broken at seal {found.broken}: {found.why}"})
    click.get_current_context().exit(1)


async def _verify(dsn: str) -> Verdict:
    from bellringer.lifecycle.seal import verify as check
    from bellringer.store.pool import Store

    store = await Store.open(dsn, size=1, name="bellringer audit")
    try:
        return await check(store)
    finally:
        await store.close()
