"""The judgements of `bellringer doctor` on facts that no test server can be brought to, and on their limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

import pytest

from bellringer.doctor import judge
from bellringer.doctor.facts import (
    CheckpointFacts,
    ClockFacts,
    ConnectionFacts,
    FreezeFacts,
    LockWait,
    PartitionFacts,
    PreparedTransaction,
    ProcessFacts,
    ReplicationSlot,
    SchemaFacts,
    ServerFacts,
    ServerSetting,
    SessionFacts,
    TableFacts,
    TransactionFacts,
    expected_session_settings,
)
from bellringer.doctor.results import CheckResult

GB = 1 << 30
# value, unit, context
GOOD = {
    "autovacuum": ("on", None, "sighup"),
    "fsync": ("on", None, "sighup"),
    "full_page_writes": ("on", None, "sighup"),
    "jit": ("off", None, "user"),
    "max_wal_size": ("4096", "MB", "sighup"),
    "shared_buffers": ("131072", "8kB", "postmaster"),  # 1 GB
    "synchronous_commit": ("on", None, "user"),
    "synchronous_standby_names": ("", None, "sighup"),
    "track_counts": ("on", None, "superuser"),
}


def server(source: str = "configuration file", version: int = 18, /, **values: str) -> ServerFacts:
    settings = {
        name: ServerSetting(
            name=name,
            value=values.get(name, value),
            shown=values.get(name, value),
            unit=unit,
            source=source,
            context=context,
        )
        for name, (value, unit, context) in GOOD.items()
    }
    return ServerFacts(
        version=version,
        version_shown=f"PostgreSQL {version}.1",
        database="Shop",
        role="owner",
        settings=settings,
        ours=expected_session_settings(),
    )


def table(name: str = "queue", **facts: object) -> TableFacts:
    tuned = {"autovacuum_vacuum_scale_factor": "0"}
    fresh = TableFacts(name=name, live=100, dead=0, bytes=8192, options=tuned, vacuumed_seconds_ago=60.0)
    return replace(fresh, **facts)  # type: ignore[arg-type]


def session(**facts: object) -> TransactionFacts:
    calm = SessionFacts(pid=7, role="app", application="psql", state="active", transaction_seconds=1.0, xmin_age=3)
    return TransactionFacts(role="owner", sessions=[replace(calm, **facts)], hidden=0)  # type: ignore[arg-type]


def connections(**facts: int) -> ConnectionFacts:
    calm = ConnectionFacts(maximum=100, capacity=97, used=10, ours=8, schedulers=1, workers=2)
    return replace(calm, **facts)


CLOCK = ClockFacts(skew_seconds=0.01, uncertainty_seconds=0.001, nodes={})
SLOT = ReplicationSlot(name="standby", is_active=True, xmin_age=None, retained_bytes=1 << 20)
FREEZE = FreezeFacts(database="shop", age=1_000, multixact_age=5, freeze_max_age=200_000_000)
TODAY, TOMORROW = date(2026, 11, 17), date(2026, 11, 18)
PREPARED = PreparedTransaction(name="it's", database="shop", seconds=3600.0, xmin_age=9)


@pytest.mark.parametrize(
    ("severity", "results"),
    [
        ("ok", judge.judge_version(server("default", 14))),
        ("ok", judge.judge_version(server("default", 18))),
        ("problem", judge.judge_version(server("default", 13))),
        ("warn", judge.judge_version(server("default", 19))),
        ("ok", judge.judge_session_settings(server())),
        ("problem", judge.judge_session_settings(replace(server(), ours={**expected_session_settings(), "jit": "on"}))),
        ("ok", judge.judge_jit(server())),
        ("warn", judge.judge_jit(server(jit="on"))),
        ("ok", judge.judge_synchronous_commit(server())),
        ("ok", judge.judge_synchronous_commit(server(synchronous_commit="remote_apply"))),
        ("ok", judge.judge_synchronous_commit(server(synchronous_commit="local"))),
        ("warn", judge.judge_synchronous_commit(server(synchronous_commit="local", synchronous_standby_names="*"))),
        ("problem", judge.judge_synchronous_commit(server(synchronous_commit="off"))),
        ("ok", judge.judge_crash_safety(server())),
        ("problem", judge.judge_crash_safety(server(fsync="off"))),
        ("problem", judge.judge_crash_safety(server(full_page_writes="off"))),
        ("ok", judge.judge_shared_buffers((server(), GB // 2))),
        ("warn", judge.judge_shared_buffers((server(), GB // 2 + 1))),
        ("warn", judge.judge_shared_buffers((server(shared_buffers="16384"), 0))),  # 128 MB
        ("ok", judge.judge_checkpoints((server(), CheckpointFacts(timed=900, requested=100, hours=2.0)))),
        ("ok", judge.judge_checkpoints((server(), CheckpointFacts(timed=0, requested=9, hours=0.1)))),
        ("ok", judge.judge_checkpoints((server(), CheckpointFacts(timed=10, requested=90, hours=100.0)))),
        ("warn", judge.judge_checkpoints((server(), CheckpointFacts(timed=10, requested=90, hours=10.0)))),
        (
            "warn",
            judge.judge_checkpoints((server(max_wal_size="1024"), CheckpointFacts(timed=9, requested=0, hours=1))),
        ),
        ("ok", judge.judge_autovacuum((server(), [table()]))),
        ("problem", judge.judge_autovacuum((server(autovacuum="off"), []))),
        ("problem", judge.judge_autovacuum((server(track_counts="off"), []))),
        ("problem", judge.judge_autovacuum((server(), [table("jobs", options={"autovacuum_enabled": "false"})]))),
        ("warn", judge.judge_autovacuum((server(), [table(options={})]))),
        ("ok", judge.judge_autovacuum((server(), [table("timers", options={})]))),
        ("ok", judge.judge_bloat([table(dead=60_000)])),
        ("ok", judge.judge_bloat([table(dead=70_000, live=10_000_000)])),
        ("warn", judge.judge_bloat([table(dead=70_000, vacuumed_seconds_ago=None)])),
        ("problem", judge.judge_bloat([table(dead=2_000_000)])),
        ("warn", judge.judge_bloat([table(bytes=300 << 20, live=50)])),
        ("ok", judge.judge_bloat([table(bytes=300 << 20, live=1_000_000)])),
        ("ok", judge.judge_transaction_id_age(FREEZE)),
        ("warn", judge.judge_transaction_id_age(replace(FREEZE, age=310_000_000))),
        ("problem", judge.judge_transaction_id_age(replace(FREEZE, multixact_age=1_300_000_000))),
        ("ok", judge.judge_transactions(session())),
        ("ok", judge.judge_transactions(session(state="idle in transaction", transaction_seconds=9.0))),
        ("warn", judge.judge_transactions(session(state="idle in transaction", transaction_seconds=11.0))),
        ("ok", judge.judge_transactions(session(transaction_seconds=59.0))),
        ("warn", judge.judge_transactions(session(transaction_seconds=61.0))),
        ("problem", judge.judge_transactions(session(transaction_seconds=601.0))),
        ("ok", judge.judge_transactions(session(state="", transaction_seconds=None, xmin_age=1_000))),
        ("warn", judge.judge_transactions(session(state="", transaction_seconds=None, xmin_age=2_000_000))),
        ("ok", judge.judge_lock_waits([])),
        ("warn", judge.judge_lock_waits([LockWait(pid=7, seconds=2.0, lock="relation", blockers=[8])])),
        ("problem", judge.judge_lock_waits([LockWait(pid=7, seconds=20.0, lock="relation", blockers=[8])])),
        ("ok", judge.judge_prepared([replace(PREPARED, seconds=1.0)])),
        ("problem", judge.judge_prepared([PREPARED])),
        ("ok", judge.judge_slots([])),
        ("ok", judge.judge_slots([SLOT])),
        ("warn", judge.judge_slots([replace(SLOT, is_active=False)])),
        ("problem", judge.judge_slots([replace(SLOT, retained_bytes=11 * GB)])),
        ("problem", judge.judge_slots([replace(SLOT, xmin_age=2_000_000)])),
        ("ok", judge.judge_connections(connections())),
        ("warn", judge.judge_connections(connections(used=73, ours=60))),
        ("problem", judge.judge_connections(connections(used=88))),
        ("warn", judge.judge_connections(connections(workers=11))),  # 11 workers with 9 connections each
        ("warn", judge.judge_connections(connections(used=70, ours=0, workers=3))),
        ("ok", judge.judge_clocks(CLOCK)),
        ("ok", judge.judge_clocks(replace(CLOCK, skew_seconds=1.5, uncertainty_seconds=0.6))),
        ("warn", judge.judge_clocks(replace(CLOCK, skew_seconds=-1.5))),
        ("problem", judge.judge_clocks(replace(CLOCK, skew_seconds=90.0))),
        ("warn", judge.judge_clocks(replace(CLOCK, nodes={"a": 0.1, "b": 2.0}))),
        ("ok", judge.judge_schema(SchemaFacts(error=None))),
        ("problem", judge.judge_schema(SchemaFacts(error="old", hint="run `bellringer migrate`"))),
        ("ok", judge.judge_partitions(PartitionFacts(today=TODAY, missing=[]))),
        ("warn", judge.judge_partitions(PartitionFacts(today=TODAY, missing=[TOMORROW]))),
        ("problem", judge.judge_partitions(PartitionFacts(today=TODAY, missing=[TODAY, TOMORROW]))),
        ("ok", judge.judge_processes(ProcessFacts(schedulers=1, workers=1, jobs=True, waiting=True))),
        ("warn", judge.judge_processes(ProcessFacts(schedulers=0, workers=1, jobs=False, waiting=False))),
        ("problem", judge.judge_processes(ProcessFacts(schedulers=0, workers=1, jobs=True, waiting=False))),
        ("warn", judge.judge_processes(ProcessFacts(schedulers=1, workers=0, jobs=True, waiting=False))),
        ("problem", judge.judge_processes(ProcessFacts(schedulers=1, workers=0, jobs=True, waiting=True))),
    ],
)
def test_severity(severity: str, results: Iterable[CheckResult]) -> None:
    found = list(results)
    assert [result.severity.value for result in found] == [severity], found
    assert all(result.found for result in found)
    assert all(severity == "ok" or (result.why.endswith(".") and result.fix) for result in found), found


@pytest.mark.parametrize(
    ("name", "source", "fix"),
    [
        ("synchronous_commit", "configuration file", ('alter database "Shop" set synchronous_commit = on;',)),
        ("synchronous_commit", "database", ('alter database "Shop" set synchronous_commit = on;',)),
        ("synchronous_commit", "user", ("alter role owner set synchronous_commit = on;",)),
        (
            "synchronous_commit",
            "database user",
            ('alter role owner in database "Shop" set synchronous_commit = on;',),
        ),
        ("synchronous_commit", "client", ("remove synchronous_commit from BELLRINGER_DSN and PGOPTIONS",)),
        ("fsync", "configuration file", ("alter system set fsync = on;", "select pg_reload_conf();")),
        ("fsync", "command line", ("change fsync to on on the command line of the server, and restart it",)),
    ],
)
def test_the_fix_changes_the_setting_where_it_is_set(name: str, source: str, fix: tuple[str, ...]) -> None:
    judges = {"synchronous_commit": judge.judge_synchronous_commit, "fsync": judge.judge_crash_safety}
    (result,) = judges[name](server(source, 18, **{name: "off"}))
    assert result.fix == fix


def test_names_in_fixes_are_quoted() -> None:
    (result,) = judge.judge_prepared([PREPARED])
    assert result.fix == ("rollback prepared 'it''s';",)


def test_hidden_sessions_are_mentioned() -> None:
    (result,) = judge.judge_transactions(TransactionFacts(role="Shop", sessions=[], hidden=3))
    assert "3 sessions of other roles" in result.found
    assert result.fix == ('grant pg_read_all_stats to "Shop";',)
