"""`bellringer migrate [status|plan]`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from bellringer.cli.command_groups import Command
from bellringer.cli.options import load_config
from bellringer.cli.output import output_option

if TYPE_CHECKING:
    from bellringer.store.migrate import Changes, RowSecurity, SchemaStatus, Upgrade
    from bellringer.store.migration_plan import FunctionChanges, MigrationPlan, PlannedMigration, PlannedStatement

T = TypeVar("T")


@click.command(
    cls=Command,
    examples="""
    BELLRINGER_DSN=postgresql://app@db/bellringer bellringer migrate
    bellringer migrate plan
    bellringer migrate --lock-timeout 500ms
    bellringer migrate --shards 256
    bellringer migrate status
    """,
)
@click.argument("what", type=click.Choice(["up", "plan", "status"]), default="up", metavar="[plan|status]")
@click.option(
    "--lock-timeout",
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="Maximum wait for the lock of a table; then the migration pauses and tries again.",
)
@click.option(
    "--give-up-after",
    metavar="DURATION",
    default="5m",
    show_default=True,
    help="Time after which a migration that cannot get its locks fails.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Number of shards, and so the maximum number of schedulers; only for a new installation.  [default: 64]",
)
@output_option("text", "json")
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def migrate(
    what: Literal["up", "plan", "status"],
    lock_timeout: str,
    give_up_after: str,
    shards: int | None,
    output: str,
    dsn: str | None,
) -> None:
    """Create or update the database schema. `plan` shows what that would do; `status` shows the version.

    Pending migrations and changed functions are applied in one transaction, under a lock: concurrent calls are safe.
    Programs of the previous release keep working, so migrate first, then replace the processes one by one.

    `plan` lists the locks of each statement, an estimate of their duration, the functions that change, and the running
    programs that keep working; it exits with code 1 if one of them would not. `status` exits with code 1 if something
    is pending, or if the schema is newer and incompatible. Both only read the database.
    """
    address = load_config(dsn=dsn).require_session_dsn()
    if what == "up":
        _migrate(address, lock_timeout, give_up_after, shards, output)
    elif what == "plan":
        _plan(address, output)
    else:
        _status(address, output)


# Apply


def _migrate(dsn: str, lock_timeout: str, give_up_after: str, shards: int | None, output: str) -> None:
    from bellringer.durations import parse_duration
    from bellringer.store.migrate import LockRetries, row_security, set_shard_count
    from bellringer.store.migrate import migrate as apply

    waits = LockRetries(
        timeout=parse_duration(lock_timeout),
        give_up_after=parse_duration(give_up_after),
        on_retry=lambda text: click.echo(text, err=True),
    )

    async def run(connection: Any) -> tuple[Changes, RowSecurity | None]:
        changes = await apply(connection, waits=waits)
        if shards is not None:
            await set_shard_count(connection, shards)
        return changes, await row_security(connection)

    changes, security = _with_connection(dsn, run)
    if output == "json":
        names = [migration.name for migration in changes.migrations]
        _print_json({"applied": names, "functions": changes.functions, "newer_program": changes.newer_program})
        return
    for migration in changes.migrations:
        click.echo(f"applied {migration.name}")
    if changes.functions:
        click.echo("updated the functions")
    count = len(changes.migrations)
    if changes.newer_program:
        click.echo(
            f"nothing changed: release {changes.newer_program} has migrated this database, and this program "
            f"({_program()}) works with it"
        )
    else:
        click.echo(f"{count} applied; the schema is current" if count else "the schema is current")
    _print_row_security(security)


def _print_row_security(found: RowSecurity | None) -> None:
    if found is None:
        return
    if found.is_on:
        click.echo(f"row-level security is on (role {found.role})")
        return
    click.echo("row-level security is off: only the program's own queries separate tenants")
    click.echo(f"  to turn it on, an administrator must run: {found.remedy}")
    click.echo("  then run `bellringer migrate` again")


# Status


def _status(dsn: str, output: str) -> None:
    from bellringer.store.migrate import row_security, status, upgrades

    async def run(connection: Any) -> tuple[SchemaStatus, RowSecurity | None, list[Upgrade]]:
        return await status(connection), await row_security(connection), await upgrades(connection)

    found, security, history = _with_connection(dsn, run)
    if output == "json":
        _print_json(_status_document(found, security, history))
    else:
        _print_status(found, security, history)
    if not found.usable:
        click.get_current_context().exit(1)


def _status_document(found: SchemaStatus, security: RowSecurity | None, history: Sequence[Upgrade]) -> dict[str, Any]:
    return {
        "program": _program(),
        "current": found.current,
        "wanted": found.wanted,
        "usable": found.usable,
        "applied": found.applied,
        "pending": [migration.name for migration in found.pending],
        "functions_pending": found.functions_pending,
        "row_security": security is not None and security.is_on,
        "upgrades": history,
    }


def _print_status(found: SchemaStatus, security: RowSecurity | None, history: Sequence[Upgrade]) -> None:
    for step in found.applied:
        click.echo(f"applied  {step.name}  {step.applied_at:%Y-%m-%d %H:%M} by {step.program}")
    for migration in found.pending:
        click.echo(f"pending  {migration.name}")
    if found.functions_pending:
        click.echo("pending  functions")
    if history:
        click.echo(f"last upgrade {history[-1].at:%Y-%m-%d %H:%M} by {history[-1].program}")
    newer = "; the newer schema is compatible" if found.current > found.wanted and found.usable else ""
    click.echo(f"schema {found.current}, this program needs {found.wanted}{newer}")
    _print_row_security(security)


# Plan


def _plan(dsn: str, output: str) -> None:
    from bellringer.store.migration_plan import plan

    found = _with_connection(dsn, plan)
    if output == "json":
        _print_json(_plan_document(found))
    else:
        _print_plan(found)
    if found.stops:
        click.get_current_context().exit(1)


def _plan_document(found: MigrationPlan) -> dict[str, Any]:
    import dataclasses

    locked = [{**dataclasses.asdict(lock), "seconds": seconds} for lock, seconds in found.locked_tables()]
    return {**dataclasses.asdict(found), "locked_tables": locked}


def _print_plan(found: MigrationPlan) -> None:
    if found.is_empty:
        newer = " (that of a newer release, which is compatible)" if found.current > found.wanted else ""
        click.echo(f"nothing is pending: schema {found.current}{newer}")
    else:
        click.echo(f"schema {found.current} to {found.wanted}, by release {found.program}")
    for migration in found.migrations:
        _print_migration(migration)
    if found.migrations and (locked := found.locked_tables()):
        click.echo("\ntables that are locked until the migration commits (estimates for a slow disk):")
        for lock, seconds in locked:
            click.echo(f"  {lock.table:<20} {lock.mode.value:<22} {_duration(seconds):>8}  {_size(lock.bytes)}")
    _print_functions(found.functions)
    _print_running(found)


def _print_migration(migration: PlannedMigration) -> None:
    since = migration.compatible_from
    kept = "not compatible with older programs" if since is None else f"compatible from schema {since}"
    how = "" if migration.in_transaction else ", without a transaction"
    click.echo(f"\n{migration.name}: {kept}{how}")
    for statement in migration.statements:
        click.echo(f"  {statement.sql}")
        click.echo(f"      {_describe(statement)}")


def _describe(statement: PlannedStatement) -> str:
    locks = ", ".join(f"{lock.mode.value} on {lock.table}" for lock in statement.locks)
    if not locks:
        locks = "locks unknown" if statement.seconds is None else "locks no existing table"
    contracts = f"; {statement.contracts}" if statement.contracts else ""
    return f"{locks}; {statement.work.value}, {_duration(statement.seconds)}{contracts}"


def _print_functions(changes: FunctionChanges) -> None:
    for verb, names in (("created", changes.created), ("replaced", changes.replaced), ("dropped", changes.dropped)):
        if names:
            click.echo(f"\nfunctions {verb}: {', '.join(names)}")


def _print_running(found: MigrationPlan) -> None:
    words = {True: "keep working", False: "STOP WORKING", None: "of a release that the database does not know"}
    if found.running:
        click.echo("\nrunning programs:")
    for program in found.running:
        noun = program.kind if program.processes == 1 else f"{program.kind}s"
        click.echo(f"  {program.processes} {noun} of {program.release}: {words[program.keeps_working]}")
    if found.stops:
        click.echo("stop these processes before you migrate")


def _duration(seconds: float | None) -> str:
    from bellringer.cli.output import format_seconds

    return "unknown" if seconds is None else f"~{format_seconds(seconds)}"


def _size(size: int) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}"
        size //= 1000
    raise AssertionError("unreachable")


def _print_json(document: Any) -> None:
    from bellringer.cli.output import to_json

    click.echo(to_json(document))


def _program() -> str:
    from importlib import metadata

    return metadata.version("bellringer")


def _with_connection(dsn: str, run: Callable[[Any], Awaitable[T]]) -> T:
    from bellringer.store.connection_pool import connect

    async def call() -> T:
        connection = await connect(dsn, name="bellringer migrate")
        try:
            return await run(connection)
        finally:
            await connection.close()

    return asyncio.run(call())
