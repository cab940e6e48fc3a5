"""The audit: every change leaves one entry, in its own transaction, and none of them can be changed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from bellringer.core.jobs import Definition
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import register, send
from bellringer.schedule import parse_schedule
from bellringer.store import audit, calendars, freezes
from bellringer.store.audit import AuditFilter, AuditRow
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenant_scope import ScopedStore

ACTOR = '{"who": "key:deploy", "origin": "192.0.2.7", "request_id": "req1"}'
LAST = 1 << 62

# Tables that people change. What is done to runs is noted where it is done.
AUDITED = {"jobs", "tenants", "pools", "calendars", "freezes", "api_keys", "secrets", "webhook_endpoints"}
AUDITED |= {"backfills", "operations", "workers", "apps"}
AUDITED |= {"notification_channels", "notification_routes", "checkins", "named_secrets"}


def definition(name: str = "bell", **more: Any) -> Definition:
    return Definition(name=name, task="demo", schedules=(parse_schedule({"every": "1h"}),), **more)


async def entries(store: Store, tenant_id: int = 1, **wanted: Any) -> list[AuditRow]:
    """All that fit, oldest first."""
    return (await audit.newest_before(store, tenant_id, LAST, AuditFilter(**wanted), 1000)).entries[::-1]


@pytest.fixture
def scoped(tenants: Store) -> ScopedStore:
    return ScopedStore(tenants, 1, ACTOR)


async def test_what_people_change_is_audited(store: Store) -> None:
    rows = await store.pool.fetch(
        "select distinct c.relname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where t.tgname like 'audited%'"
    )
    assert {row["relname"] for row in rows} == AUDITED


async def test_a_job_leaves_an_entry_for_each_revision_with_before_and_after(
    scoped: ScopedStore, store: Store, catalog: Catalog
) -> None:
    [made] = await register.create(scoped, catalog, [definition()], tenant_id=1, who="somebody")
    await register.change(scoped, catalog, made.job_id, 1, definition(priority=7), tenant_id=1, who="somebody")
    await commands.pause(scoped, made.job_id, tenant_id=1, who="somebody", reason="rest", until=None)
    await commands.delete_job(scoped, made.job_id, tenant_id=1, who="somebody")
    found = await entries(store, kind="job")
    assert [e.action for e in found] == ["job.created", "job.changed", "job.paused", "job.deleted"]
    assert {(e.who, e.origin, e.request_id) for e in found} == {("key:deploy", "192.0.2.7", "req1")}
    assert {(e.target, e.name) for e in found} == {(str(made.job_id), "bell")}
    created, changed, paused, _ = found
    assert (created.before, (created.after or {})["name"]) == (None, "bell")
    assert ((changed.before or {})["priority"], (changed.after or {})["priority"]) == (5, 7)
    assert ((paused.before or {}).get("paused_at"), (paused.after or {})["paused_reason"]) == (None, "rest")


async def test_without_a_caller_the_entry_names_who_the_change_names(store: Store, catalog: Catalog) -> None:
    await register.create(store, catalog, [definition()], tenant_id=1, who="app worker")
    [entry] = await entries(store, kind="job")
    assert (entry.who, entry.origin, entry.request_id) == ("app worker", None, None)


async def test_many_jobs_at_once_leave_an_entry_each(scoped: ScopedStore, store: Store, catalog: Catalog) -> None:
    await register.create(scoped, catalog, [definition(f"bell {n}") for n in range(500)], tenant_id=1, who="me")
    assert len(await entries(store, action="job.created")) == 500


async def test_what_is_rolled_back_leaves_nothing(scoped: ScopedStore, store: Store, catalog: Catalog) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await _half(scoped, catalog)
    assert await entries(store, kind="job") == []


async def _half(scoped: ScopedStore, catalog: Catalog) -> None:
    async with scoped.transaction():
        await register.create(scoped, catalog, [definition()], tenant_id=1, who="me")
        assert len(await entries(scoped, kind="job")) == 1
        await scoped.pool.execute("select 1 / 0")


async def test_what_somebody_does_to_runs_is_noted(scoped: ScopedStore, store: Store, catalog: Catalog) -> None:
    [made] = await register.create(scoped, catalog, [definition()], tenant_id=1, who="me")
    key = await send.trigger(scoped, made.job_id, tenant_id=1)
    await commands.cancel(scoped, key, tenant_id=1, reason="not now")
    dead = await send.trigger(scoped, made.job_id, tenant_id=1)
    for action in (commands.redrive, commands.discard):
        await store.pool.execute("delete from queue where job_id = $1", made.job_id)
        await store.pool.execute(
            "insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason,"
            " fingerprint) values ($1, $2, $3, 1, 1, 3, now(), 'dead', 'x')",
            dead.job_id,
            dead.scheduled_for,
            dead.slot,
        )
        assert await action(scoped, [dead, key], tenant_id=1) == 1
    found = await entries(store, kind="run")
    assert [e.action.removeprefix("run.") for e in found] == [
        "triggered", "cancelled", "triggered", "redriven", "discarded"
    ]  # fmt: skip
    micros = int(key.scheduled_for.timestamp()) * 1_000_000 + key.scheduled_for.microsecond
    assert found[1].target == f"{key.job_id} {micros} {key.slot}"
    assert (found[1].after or {})["reason"] == "not now"


async def test_what_the_engine_does_to_runs_is_not_noted(store: Store, catalog: Catalog) -> None:
    [made] = await register.create(store, catalog, [definition()], tenant_id=1, who="me")
    key = await send.trigger(store, made.job_id, tenant_id=1)
    await commands.cancel(store, key, tenant_id=1, reason="no")
    assert await entries(store, kind="run") == []


async def test_a_calendar_changes_by_versions(scoped: ScopedStore, store: Store) -> None:
    for digest in ("one", "one", "two"):
        await scoped.pool.fetchval("select store_calendar(1, 'office', $1, '{}', '{}', 'me')", digest)
    assert await calendars.delete_unused(scoped, 1, "office")
    found = await entries(store, kind="calendar")
    assert [e.action for e in found] == ["calendar.created", "calendar.changed", "calendar.deleted"]
    assert ((found[1].before or {})["digest"], (found[1].after or {})["digest"]) == ("one", "two")


async def test_a_freeze_that_is_made_and_lifted(scoped: ScopedStore, store: Store) -> None:
    now = await store.now()
    hour = timedelta(hours=1)
    values: tuple[Any, ...] = (1, "rest", now - hour, now + hour, "defer", [], None, "me", freezes.MAX_OPEN_FREEZES)
    made = await scoped.pool.fetchrow(freezes._SQL.add, *values)
    assert made is not None
    await scoped.pool.fetchval(freezes._SQL.end, 1, made["freeze_id"])
    assert [e.action for e in await entries(store, kind="freeze")] == ["freeze.created", "freeze.changed"]


async def test_secrets_are_hidden_but_a_change_of_them_is_seen(store: Store) -> None:
    await store.pool.execute(
        "insert into api_keys (key_id, tenant_id, name, hash, role, created_by)"
        " values ('k', 1, 'x', 'abc', 'viewer', 'ada')"
    )
    await store.pool.execute("update api_keys set last_used_at = now()")
    await store.pool.execute("update api_keys set hash = 'def'")
    created, changed = await entries(store, kind="api_key")
    assert (created.who, (created.after or {})["hash"]) == ("ada", "hidden")
    assert (changed.action, (changed.after or {})["hash"]) == ("api_key.changed", "hidden, changed")


async def test_only_the_beginning_and_the_end_of_a_backfill_are_reported(store: Store, catalog: Catalog) -> None:
    [made] = await register.create(store, catalog, [definition()], tenant_id=1, who="me")
    for cause in ("backfill", "catchup"):
        await store.pool.execute(
            "insert into backfills (tenant_id, job_id, shard, cause, from_at, to_at, parallelism, who, created_at)"
            " values (1, $1, 0, $2::text::cause, now(), now() + interval '1 h', 1, 'me', now())", made.job_id, cause,
        )  # fmt: skip
    await store.pool.execute("update backfills set cursor = now(), made = 3")
    await store.pool.execute("update backfills set state = 'done'")
    found = await entries(store, kind="backfill")
    assert [(e.action, e.who) for e in found] == [("backfill.created", "me"), ("backfill.changed", "bellringer")]


async def test_what_is_of_the_whole_installation_belongs_to_no_tenant(store: Store, catalog: Catalog) -> None:
    await catalog.pool_ids(["wide"])
    assert [e.target for e in await entries(store, 0, kind="pool")] == ["short", "long", "wide"][-1:]
    assert [e.action for e in await entries(store, 1, kind="pool")] == []


@pytest.mark.parametrize("change", ["update audit set who = 'nobody'", "delete from audit", "truncate audit"])
async def test_entries_are_never_changed(store: Store, catalog: Catalog, change: str) -> None:
    await register.create(store, catalog, [definition()], tenant_id=1, who="me")
    with pytest.raises(asyncpg.PostgresError) as refused:
        await store.pool.execute(change)
    assert refused.value.sqlstate == "BR005"
    assert len(await entries(store, kind="job")) == 1


async def test_a_tenant_reads_its_own_entries_and_writes_none(
    scoped: ScopedStore, tenants: Store, store: Store, catalog: Catalog
) -> None:
    await store.pool.execute("insert into tenants (name) values ('other')")
    await register.create(scoped, catalog, [definition()], tenant_id=1, who="me")
    assert len(await entries(scoped, kind="job")) == 1
    assert await entries(ScopedStore(tenants, 2, None), kind="job") == []
    for change in ("insert into audit default values", "update audit set who = 'x'", "delete from audit"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await scoped.pool.execute(change)


async def test_filters_and_looks(scoped: ScopedStore, store: Store, catalog: Catalog) -> None:
    await register.create(scoped, catalog, [definition(f"bell {n}") for n in range(10)], tenant_id=1, who="me")
    await register.create(store, catalog, [definition("other")], tenant_id=1, who="ada")
    now = await store.now()
    assert len(await entries(store, who="ada")) == 1
    assert len(await entries(store, who="key:deploy", kind="job", action="job.created")) == 10
    assert await entries(store, kind="job", start=now + timedelta(hours=1)) == []
    assert len(await entries(store, kind="job", end=now + timedelta(hours=1))) == 11
    one = (await entries(store, who="ada"))[0]
    assert [e.audit_id for e in await entries(store, target=one.target)] == [one.audit_id]
    # Looks of four entries: a filter that fits few goes on where the look before it ended.
    found: list[AuditRow] = []
    before, looks = LAST, 0
    while True:
        look = await audit.newest_before(store, 1, before, AuditFilter(kind="job", who="key:deploy"), 3, scan=4)
        found, looks = found + look.entries, looks + 1
        if look.stop is None:
            break
        before = look.stop
    assert (len(found), looks > 3) == (10, True)
    oldest = await audit.oldest_after(store, 1, 0, AuditFilter(kind="job"), 1000)
    assert [e.audit_id for e in oldest.entries] == [e.audit_id for e in await entries(store, kind="job")]
    assert oldest.stop is None


async def test_callers_do_not_lend_each_other_their_names(tenants: Store, store: Store, catalog: Catalog) -> None:
    async def make(n: int) -> None:
        mine = ScopedStore(tenants, 1, f'{{"who": "user:{n}"}}')
        await register.create(mine, catalog, [definition(f"bell {n}")], tenant_id=1, who=f"user:{n}")

    await asyncio.gather(*(make(n) for n in range(20)))
    assert {(e.name, e.who) for e in await entries(store, kind="job")} == {
        (f"bell {n}", f"user:{n}") for n in range(20)
    }
