"""Advice on memory, autovacuum, poolers, TLS and replication."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.pooled_server import PooledTestServer

from bellringer.clock import SystemClock
from bellringer.doctor import examine, sizing
from bellringer.doctor.checks import CHECKS
from bellringer.doctor.sizing import PathFacts, ReplicationFacts, SizeFacts, StandbyFacts
from bellringer.errors import ConfigError

GIB = 1 << 30
NUMBERS = {
    "shared_buffers": 4 * GIB,
    "work_mem": 4 << 20,
    "max_connections": 200,
    "autovacuum_max_workers": 3,
    "autovacuum_naptime": 60,
    "autovacuum_vacuum_cost_limit": -1,
    "vacuum_cost_limit": 200,
    "max_slot_wal_keep_size": -1,
}
SIZES = SizeFacts(numbers=NUMBERS, memory=16 * GIB)
PATH = PathFacts(
    where="db:5432", is_declared=False, is_pooler=False, wrong={}, role="app", is_local=False, is_encrypted=True
)
STANDBY = StandbyFacts(name="b", state="streaming", is_synchronous=False, lag_bytes=0, lag_seconds=None)
REPLICATION = ReplicationFacts(standbys=[STANDBY], slots=0, kept_bytes=-1, lost_slots=[])


def numbers(**changed: int) -> SizeFacts:
    return SizeFacts(numbers={**NUMBERS, **changed}, memory=SIZES.memory)


@pytest.mark.parametrize(
    ("judge", "facts", "severity", "fix"),
    [
        (sizing.judge_memory, SIZES, "ok", ""),
        (sizing.judge_memory, SizeFacts(numbers=NUMBERS, memory=None), "ok", ""),
        (sizing.judge_memory, numbers(shared_buffers=8 * GIB), "warn", "shared_buffers = '4096MB'"),
        (sizing.judge_memory, numbers(work_mem=64 << 20), "warn", "work_mem = '4MB'"),
        (sizing.judge_autovacuum_capacity, SIZES, "ok", ""),
        (sizing.judge_autovacuum_capacity, numbers(autovacuum_max_workers=1), "warn", "autovacuum_max_workers = 3"),
        (sizing.judge_autovacuum_capacity, numbers(autovacuum_naptime=600), "warn", "autovacuum_naptime = 15"),
        (sizing.judge_pooler, PATH, "ok", ""),
        (sizing.judge_pooler, replace(PATH, is_pooler=True), "problem", "pgbouncer=true"),
        (sizing.judge_pooler, replace(PATH, is_declared=True), "warn", "remove pgbouncer=true"),
        (
            sizing.judge_pooler,
            replace(PATH, is_declared=True, is_pooler=True, wrong={"jit": "on"}),
            "problem",
            "bellringer roles settings app",
        ),
        (sizing.judge_tls, PATH, "ok", ""),
        (sizing.judge_tls, replace(PATH, is_encrypted=False), "warn", "sslmode=verify-full"),
        (sizing.judge_tls, replace(PATH, is_encrypted=False, is_local=True), "ok", ""),
        (sizing.judge_replication, REPLICATION, "ok", ""),
        (
            sizing.judge_replication,
            replace(REPLICATION, standbys=[replace(STANDBY, lag_bytes=GIB)]),
            "warn",
            "log of the standby",
        ),
        (sizing.judge_replication, replace(REPLICATION, slots=1), "warn", "max_slot_wal_keep_size"),
        (sizing.judge_replication, replace(REPLICATION, lost_slots=["b"]), "problem", "pg_drop_replication_slot('b')"),
    ],
)
def test_advice(judge: Any, facts: Any, severity: str, fix: str) -> None:
    (result,) = judge(facts)
    assert result.severity.value == severity
    assert fix in " ".join(result.fix)


async def test_all_checks_can_be_read_through_a_pooler(pooled_server: PooledTestServer) -> None:
    async with pooled_server.database() as dsn:
        results = await examine(dsn, SystemClock())
        with pytest.raises(ConfigError, match=r"add pgbouncer=true to the DSN"):
            await examine(dsn.replace("pgbouncer=true&", ""), SystemClock())
    assert {result.check for result in results} == {check.name for check in CHECKS}
    assert [result.found for result in results if "could not be checked" in result.found] == []
    assert [(r.severity.value, r.found) for r in results if r.check == "pooler"] == [
        ("ok", "a pooler in transaction mode")
    ]
