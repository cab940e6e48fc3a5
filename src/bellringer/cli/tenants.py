"""`bellringer tenants` and `bellringer objective`. Suspend and unsuspend write to the database directly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import Command, CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.keys import number
from bellringer.cli.options import fetch_pages, limit_option, load_config
from bellringer.cli.output import (
    LIST,
    ONE,
    format_local,
    format_seconds,
    output_option,
    print_fields,
    print_list,
    print_table,
    sanitize,
    to_json,
)

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.access import Burn, LateMinute, MissedObjective, Objective, PoolUse, Tenant


QUOTAS: Final = ("jobs", "fires_per_minute", "in_flight", "payload_bytes", "api_per_minute")


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer tenants create acme --quota jobs=1000 --quota fires_per_minute=600
    bellringer tenants usage acme
    bellringer tenants suspend acme
    """,
)
def tenants() -> None:
    """Manage tenants: their weights and quotas. Needs an installation key."""


@tenants.command("list", examples="bellringer tenants list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_tenants(client: Client, *, limit: int, output: str) -> None:
    """List tenants."""
    print_list(
        output,
        fetch_pages(client.tenants, limit, output=output),
        head=("NAME", "STATE", "WEIGHT", "QUOTAS", "SINCE"),
        row=lambda t: (t.name, _state(t), f"{t.weight:g}", _quotas(t) or "none", format_local(t.created_at)),
        name=lambda t: t.name,
        empty="no tenants",
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
    "--quota",
    "quotas",
    multiple=True,
    callback=_read_quotas,
    metavar="NAME=MOST",
    help="Quota, such as jobs=1000; none removes it. Repeatable.",
)
weight_option = click.option("--weight", type=float, help="Share of worker capacity relative to other tenants.")


@tenants.command("create", examples="bellringer tenants create acme --quota jobs=1000")
@click.argument("name")
@weight_option
@quota_option
@output_option(*ONE)
@with_client
def create(client: Client, *, name: str, weight: float | None, quotas: dict[str, Any], output: str) -> None:
    """Create a tenant. Create its first key with `bellringer keys create NAME --role admin --tenant TENANT`."""
    _print(client.create_tenant(name, weight=weight, quotas=quotas), output)


@tenants.command("set", examples="bellringer tenants set acme --weight 2 --quota jobs=none")
@click.argument("name")
@weight_option
@quota_option
@output_option(*ONE)
@with_client
def change(client: Client, *, name: str, weight: float | None, quotas: dict[str, Any], output: str) -> None:
    """Change the weight or quotas of a tenant."""
    patch = {**({} if weight is None else {"weight": weight}), **({"quotas": quotas} if quotas else {})}
    if not patch:
        fail("no options are given", "give --weight or --quota")
    _print(client.patch_tenant(name, patch), output)


@tenants.command("usage", examples="bellringer tenants usage acme")
@click.argument("name")
@output_option("table", "json")
@with_client
def usage(client: Client, *, name: str, output: str) -> None:
    """Show how much of its quotas a tenant uses, and how many of its runs wait, run and retry."""
    found = client.tenant_usage(name)
    if output == "json":
        click.echo(to_json(found))
        return
    print_table(("QUOTA", "USED", "MOST"), [(q.name, number(q.used), number(q.most)) for q in found.items])
    load = found.load
    click.echo()
    print_fields(
        {
            "ready": f"{load.ready:,}" + ("" if load.oldest is None else f", for {format_seconds(load.oldest)}"),
            "retrying": f"{load.retrying:,}",
            "running": f"{load.running:,}",
            "held": f"{load.held:,} by paused tasks" if load.held else "",
            "retried": f"{load.retried:,} of {load.started:,} attempts that started in the last hour",
        }
    )


def _state(tenant: Tenant) -> str:
    return "suspended" if tenant.suspended_at else "active"


def _quotas(tenant: Tenant) -> str:
    named = {name: getattr(tenant.quotas, name) for name in QUOTAS}
    return ", ".join(f"{name} {number(most)}" for name, most in named.items() if most is not None)


def _print(tenant: Tenant, output: str) -> None:
    if output == "json":
        click.echo(to_json(tenant))
    elif output == "name":
        click.echo(tenant.name)
    else:
        facts = {
            "tenant": tenant.name,
            "state": _state(tenant),
            "weight": f"{tenant.weight:g}",
            "quotas": _quotas(tenant),
        }
        print_fields(facts)


@tenants.command("suspend", examples="bellringer tenants suspend acme")
@click.argument("name")
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def suspend(name: str, dsn: str | None) -> None:
    """Suspend a tenant. Due occurrences are skipped, waiting runs are held, running runs finish."""
    changed = asyncio.run(_suspend(name, load_config(dsn=dsn).require_dsn(), rest=True))
    click.echo(f"suspended {name}" if changed else f"{name} is already suspended")


@tenants.command("unsuspend", examples="bellringer tenants unsuspend acme")
@click.argument("name")
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def unsuspend(name: str, dsn: str | None) -> None:
    """Resume a suspended tenant. Held runs start; skipped occurrences stay skipped."""
    changed = asyncio.run(_suspend(name, load_config(dsn=dsn).require_dsn(), rest=False))
    click.echo(f"unsuspended {name}" if changed else f"{name} is not suspended")


async def _suspend(name: str, dsn: str, *, rest: bool) -> bool:
    from bellringer.engine import freeze
    from bellringer.store.connection_pool import Store
    from bellringer.store.interned_names import Catalog

    store = await Store.open(dsn, size=1, name="bellringer tenants")
    try:
        tenant_id = await Catalog(store).tenant_id(name)
        return await (freeze.suspend if rest else freeze.unsuspend)(store, tenant_id)
    finally:
        await store.close()


@tenants.command(
    "retention",
    examples="""
    bellringer tenants retention acme
    bellringer tenants retention acme --keep runs=90d --keep succeeded=7d --keep dead=180d
    bellringer tenants retention acme --keep runs=90d --keep-job nightly:runs=365d
    bellringer tenants retention acme --clear
    """,
)
@click.argument("name")
@click.option("--keep", multiple=True, metavar="STATE=TIME", help="Retention of runs, or of runs that ended so.")
@click.option("--keep-job", multiple=True, metavar="JOB:STATE=TIME", help="Retention of the runs of one job.")
@click.option("--clear", is_flag=True, help="Remove all rules: the installation's retention applies.")
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def retention(name: str, keep: tuple[str, ...], keep_job: tuple[str, ...], clear: bool, dsn: str | None) -> None:
    """Show or replace how long the runs of a tenant are kept, by state and job.

    STATE is runs (all), succeeded, dead, cancelled or skipped. The rules that you give replace all earlier ones.
    """
    from bellringer.cli.retention_rules import apply_rules, format_rules, parse_rules

    rules = parse_rules(keep, keep_job) if keep or keep_job or clear else None
    found = asyncio.run(apply_rules(load_config(dsn=dsn).require_dsn(), name, rules))
    click.echo(format_rules(found) or "the retention of the installation applies")


@click.command(
    cls=Command,
    examples="""
    bellringer objective
    bellringer objective --window 24h -o json
    """,
)
@click.option("--window", metavar="TIME", help="Length of the window, such as 24h.  [default: 30d]")
@click.option(
    "--installation", is_flag=True, help="Of all tenants together, for 24h at most; needs an installation key."
)
@output_option("table", "json")
@with_client
def objective(client: Client, *, window: str | None, installation: bool, output: str) -> None:
    """Show the share of the tenant's runs that started in time, and of the occurrences that were missed.

    Also shows what used the capacity when runs were late. Times are UTC. A run counts for the minute in which it was
    due.
    """
    found = client.objective(window=window, scope="installation" if installation else None)
    if output == "json":
        click.echo(to_json(found))
        return
    for text in (*_summary(found), *_missed(found.occurrences), *_worst(found.worst)):
        click.echo(sanitize(text))


def _summary(found: Objective) -> Iterator[str]:
    yield f"objective: {found.target:.4%} of the runs of {found.tenant} start within {found.within} of their due time"
    span = f"{found.start:%Y-%m-%d %H:%M} to {found.end:%Y-%m-%d %H:%M} UTC"
    if found.compliance is None:
        yield f"no runs were due from {span}"
        return
    yield f"actual: {found.compliance:.4%}, {_late(found)} from {span}"
    yield _verdict(found.budget_left)
    for burn in found.burns:
        yield f"  last {burn.over:>3}: {_times(burn.rate):>6} times the allowed share   {_late(burn)}"


def _missed(found: MissedObjective) -> Iterator[str]:
    yield f"objective: at most {found.max_rate:.4%} of the occurrences are missed"
    if found.rate is None:
        yield "no occurrences were expected"
        return
    yield f"actual: {found.rate:.4%}, {found.missed:,} of {found.expected:,} missed"
    yield _verdict(found.budget_left)
    for burn in found.burns:
        share = f"{_times(burn.burn):>6} times the allowed share"
        yield f"  last {burn.over:>3}: {share}   {burn.missed:,} of {burn.expected:,} missed"


def _verdict(budget_left: float) -> str:
    if budget_left < 0:
        return f"violated: {_times(1 - budget_left)} times the error budget is used"
    return f"met: {budget_left:.1%} of the error budget is left"


def _times(factor: float) -> str:
    return f"{factor:,.2f}" if factor < 10 else f"{factor:,.0f}"


def _late(found: Objective | Burn | LateMinute) -> str:
    missed = f", {found.missed:,} missed" if found.missed else ""
    return f"{found.late:,} of {found.started:,} late{missed}"


def _worst(minutes: list[LateMinute]) -> Iterator[str]:
    if minutes:
        yield "worst minutes:"
    for minute in minutes:
        yield f"  {minute.at:%Y-%m-%d %H:%M}  {_late(minute)}"
        for use in minute.pools:
            yield f"    pool {use.pool}: {_describe_use(use)}"


def _describe_use(use: PoolUse) -> str:
    if use.cause == "no_worker" or use.saturation is None:
        return "no worker"
    whose = f"{use.own:.0%} by this tenant, {use.others:.0%} by others"
    named = ", ".join(f"{name} {part:.0%}" for name, part in use.named.items())
    return f"{use.saturation:.0%} of the slots busy, {whose}{f' ({named})' if named else ''}"
