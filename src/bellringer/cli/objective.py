"""`bellringer objective`: how many runs start in time, how fast the error budget burns, and what was in the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Command
from bellringer.cli.output import as_json, clean, output_option

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.fairness import LateMinute, Objective, PoolUse


@click.command(
    cls=Command,
    examples="""
    bellringer objective
    bellringer objective --window 24h -o json
    """,
)
@click.option("--window", metavar="TIME", help="How far to look back, like 24h.  [default: 30d]")
@output_option("table", "json")
@with_client
def objective(client: Client, *, window: str | None, output: str) -> None:
    """Say which part of the tenant's runs started in time, and who used the capacity when they did not.

    Times are UTC. A run counts for the minute in which it was due.
    """
    found = client.objective(window=window)
    if output == "json":
        click.echo(as_json(found))
        return
    for text in (*_summary(found), *_worst(found.worst)):
        click.echo(clean(text))


def _summary(found: Objective) -> Iterator[str]:
    yield f"objective: {found.target:.4%} of the runs of {found.tenant} start within {found.within}"
    span = f"{found.start:%Y-%m-%d %H:%M} to {found.end:%Y-%m-%d %H:%M} UTC"
    if found.compliance is None:
        yield f"no run was due from {span}"
        return
    yield f"{found.compliance:.4%} did: {found.late:,} of {found.started:,} were late from {span}"
    verdict = "missed" if found.budget_left < 0 else "kept"
    yield f"{verdict}: {found.budget_left:.1%} of the error budget is left"
    for burn in found.burns:
        yield f"  burn over {burn.over:>3}: {burn.rate:8.2f}   {burn.late:,} of {burn.started:,} late"


def _worst(minutes: list[LateMinute]) -> Iterator[str]:
    if minutes:
        yield "the worst minutes:"
    for minute in minutes:
        yield f"  {minute.at:%Y-%m-%d %H:%M}  {minute.late:,} of {minute.started:,} late"
        for use in minute.pools:
            yield f"    pool {use.pool}: {_told(use)}"


def _told(use: PoolUse) -> str:
    if use.cause == "no_worker" or use.saturation is None:
        return "no worker"
    whose = f"{use.own:.0%} of it own work, {use.others:.0%} of others"
    named = ", ".join(f"{name} {part:.0%}" for name, part in use.named.items())
    return f"{use.saturation:.0%} of the slots busy, {whose}{f' ({named})' if named else ''}"
