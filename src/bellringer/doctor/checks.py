"""The list of checks. A check is a reader of facts and a function that judges them; add one by adding a line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import asyncpg

from bellringer.clock import Clock
from bellringer.doctor import facts, judge, sizing
from bellringer.doctor.facts import Connections
from bellringer.doctor.results import CheckResult, Severity, warn
from bellringer.store.connection_pool import connect, unreachable

Reader = Callable[[Connections], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Check:
    """`judge` gets the facts of the reader, or a tuple if there are several readers."""

    name: str
    judge: Callable[[Any], Iterable[CheckResult]]
    readers: tuple[Reader, ...]
    needs_schema: bool = False


CHECKS: Final[Sequence[Check]] = (
    Check("server version", judge.judge_version, (facts.read_server,)),
    Check("schema", judge.judge_schema, (facts.read_schema,)),
    Check("row security", judge.judge_row_security, (facts.read_row_security,), needs_schema=True),
    Check("processes", judge.judge_processes, (facts.read_processes,), needs_schema=True),
    Check("partitions", judge.judge_partitions, (facts.read_partitions,), needs_schema=True),
    Check("archive", judge.judge_archive, (facts.read_archive,), needs_schema=True),
    Check("session settings", judge.judge_session_settings, (facts.read_server,)),
    Check("synchronous_commit", judge.judge_synchronous_commit, (facts.read_server,)),
    Check("crash safety", judge.judge_crash_safety, (facts.read_server,)),
    Check("jit", judge.judge_jit, (facts.read_server,)),
    Check("shared_buffers", judge.judge_shared_buffers, (facts.read_server, facts.read_hot_bytes)),
    Check("checkpoints", judge.judge_checkpoints, (facts.read_server, facts.read_checkpoints)),
    Check("autovacuum", judge.judge_autovacuum, (facts.read_server, facts.read_tables)),
    Check("bloat", judge.judge_bloat, (facts.read_tables,), needs_schema=True),
    Check("transaction ids", judge.judge_transaction_id_age, (facts.read_freeze,)),
    Check("transactions", judge.judge_transactions, (facts.read_transactions,)),
    Check("vacuum horizon", judge.judge_horizon, (facts.read_horizon,)),
    Check("lock waits", judge.judge_lock_waits, (facts.read_lock_waits,)),
    Check("prepared", judge.judge_prepared, (facts.read_prepared,)),
    Check("replication slots", judge.judge_slots, (facts.read_slots,)),
    Check("connections", judge.judge_connections, (facts.read_connections,), needs_schema=True),
    Check("pooler", sizing.judge_pooler, (sizing.read_path,)),
    Check("tls", sizing.judge_tls, (sizing.read_path,)),
    Check("memory", sizing.judge_memory, (sizing.read_sizes,)),
    Check("autovacuum capacity", sizing.judge_autovacuum_capacity, (sizing.read_sizes,)),
    Check("replication", sizing.judge_replication, (sizing.read_replication,)),
    Check("clock", judge.judge_clocks, (facts.read_clocks,)),
)


async def examine(dsn: str, clock: Clock, checks: Sequence[Check] = CHECKS) -> list[CheckResult]:
    """Runs the checks on a database and returns their results, worst first. Only reads."""
    ours = await connect(dsn, name="bellringer doctor")
    try:
        plain = await facts.open_plain(dsn)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        await ours.close()
        raise unreachable(dsn, error) from error
    try:
        results = await _run(Connections(dsn, ours, plain, clock), checks)
    finally:
        await ours.close()
        await plain.close()
    order = list(Severity)
    return sorted(results, key=lambda result: order.index(result.severity))


async def _run(connections: Connections, checks: Sequence[Check]) -> list[CheckResult]:
    schema = await facts.read_schema(connections)
    known: dict[Reader, Any] = {facts.read_schema: schema}
    results: list[CheckResult] = []
    for check in checks:
        if check.needs_schema and schema.error is not None:
            continue
        try:
            for reader in check.readers:
                if reader not in known:
                    known[reader] = await reader(connections)
        except asyncpg.PostgresError as error:
            found = [_unreadable(error)]
        else:
            read = [known[reader] for reader in check.readers]
            found = list(check.judge(read[0] if len(read) == 1 else tuple(read)))
        results += [replace(result, check=check.name) for result in found]
    return results


def _unreadable(error: asyncpg.PostgresError) -> CheckResult:
    fix = ("grant pg_monitor to the role of the DSN",) if isinstance(error, asyncpg.InsufficientPrivilegeError) else ()
    return warn(f"could not be checked: {error}", "The role of the DSN cannot read what this check needs.", *fix)
