"""Seal: the audit is chained behind its writers, and a check finds the first seal that does not hold."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from bellringer.core.jobs import Definition
from bellringer.engine.audit_seal import ChainPosition, seal_entries, verify_chain, verify_next_seals
from bellringer.engine.job_and_run_commands import pause
from bellringer.engine.prune import Retention, prune
from bellringer.engine.register import create
from bellringer.schedule import parse_schedule
from bellringer.store import audit
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog


async def changes(store: Store, catalog: Catalog, count: int, prefix: str = "bell") -> None:
    definitions = [
        Definition(name=f"{prefix} {n}", task="demo", schedules=(parse_schedule({"every": "1h"}),))
        for n in range(count)
    ]
    await create(store, catalog, definitions, tenant_id=1, who="me")


async def pause_all(store: Store) -> None:
    for row in await store.pool.fetch("select job_id from jobs"):
        await pause(store, row["job_id"], tenant_id=1, who="me", reason="rest", until=None)


async def seal_all(store: Store, most: int = 10) -> int:
    total = 0
    while count := await seal_entries(store, most):
        total += count
    return total


async def test_entries_are_sealed_in_batches_and_the_chain_holds(store: Store, catalog: Catalog) -> None:
    await changes(store, catalog, 25)
    sealed = await seal_all(store)
    found = await verify_chain(store)
    assert sealed >= 25
    assert (found.entries, found.unsealed, found.broken, found.first) == (sealed, 0, None, 1)
    assert found.seals == -(-sealed // 10)
    assert await seal_entries(store) == 0
    chain = await audit.seals_after(store, 0, 100)
    assert [after.prev_hash for after in chain[1:]] == [before.hash for before in chain[:-1]]
    await changes(store, catalog, 1, "later")
    assert (await verify_chain(store)).unsealed == 1


async def test_an_empty_audit_is_whole(store: Store) -> None:
    await seal_all(store)
    found = await verify_chain(store)
    assert found.broken is None


ONE = "(select audit_id from audit where kind = 'job' order by 1 limit 1 offset 15)"
TAMPERINGS = {
    f"update audit set who = 'nobody' where audit_id = {ONE}": "changed",
    "update audit set at = at + interval '1 s' where kind = 'job' and audit_id % 7 = 0": "changed",
    f"delete from audit where audit_id = {ONE}": "there are",
    "insert into audit (tx, at, tenant_id, who, action, kind, target)"
    " values ('3', now(), 1, 'x', 'x', 'x', 'x')": "more",
    "update jobs set priority = 9 where job_id = (select target::uuid from audit"
    f" where audit_id = {ONE})": "definition",
    "update job_revisions set definition = jsonb_set(definition, '{priority}', '9')": "definition",
    "update audit_seals set hash = prev_hash where seal_id = 2": "changed",
    "update audit_seals set prev_hash = hash where seal_id = 2": "previous hash",
    "delete from audit_seals where seal_id = 2": "previous hash",
}


@pytest.mark.parametrize(("tampering", "words"), TAMPERINGS.items())
async def test_tampering_is_found_and_the_first_seal_is_named(
    store: Store, catalog: Catalog, tampering: str, words: str
) -> None:
    await changes(store, catalog, 25)
    await pause_all(store)
    await seal_all(store)
    connection = await connect(store.dsn)
    for table in ("audit", "audit_seals", "jobs", "job_revisions"):  # an owner can switch the triggers off
        await connection.execute(f"alter table {table} disable trigger user")
    assert not (await connection.execute(tampering)).endswith(" 0")
    await connection.close()
    found = await verify_chain(store)
    assert found.broken in (1, 2, 3, 4, 5)
    assert words in found.why


async def test_what_a_job_was_is_sealed_the_same_before_and_after_it_is_changed(store: Store, catalog: Catalog) -> None:
    """While it is the job, and when it has become a revision; wherever whoever changes it is."""
    await changes(store, catalog, 5)
    await store.pool.execute("update jobs set jitter = interval '1 day 2 hours'")  # no revision, so no entry
    await pause_all(store)  # since a time
    await seal_all(store)
    far = await asyncpg.connect(store.dsn, server_settings={"search_path": "bellringer"})
    await far.execute("set timezone = 'Asia/Tokyo'; set intervalstyle = 'iso_8601'")
    await far.execute("update jobs set priority = 7, revision = revision + 1")
    await far.close()
    kept = await store.pool.fetchval("select definition::text from job_revisions where revision = 2 limit 1")
    assert '+00:00"' in kept
    assert '"1 day 02:00:00"' in kept
    assert (await verify_chain(store)).broken is None
    await seal_all(store)
    found = await verify_chain(store)
    assert (found.broken, found.unsealed) == (None, 0)


async def test_an_entry_that_commits_late_is_not_passed_over(store: Store, catalog: Catalog) -> None:
    late = await connect(store.dsn)
    transaction = late.transaction()
    await transaction.start()
    await late.execute("insert into tenants (name) values ('late')")  # it has its number, but is not committed
    await changes(store, catalog, 3)
    before = await seal_all(store)
    assert (await verify_chain(store)).broken is None
    await transaction.commit()
    await late.close()
    assert await seal_all(store) >= 4
    found = await verify_chain(store)
    assert (found.unsealed, found.broken) == (0, None)
    assert found.entries == await store.pool.fetchval("select count(*) from audit") >= before + 4


async def test_two_nodes_make_one_chain(store: Store, catalog: Catalog) -> None:
    for round_ in range(5):
        await asyncio.gather(changes(store, catalog, 20, f"bell {round_}"), *(seal_entries(store, 5) for _ in range(6)))
    await seal_all(store)
    found = await verify_chain(store)
    assert (found.broken, found.unsealed) == (None, 0)
    assert found.entries == await store.pool.fetchval("select count(*) from audit")


async def test_what_is_past_retention_goes_by_whole_seals_and_the_rest_still_holds(
    store: Store, catalog: Catalog
) -> None:
    await changes(store, catalog, 25)
    await seal_all(store)
    total = (await verify_chain(store)).seals
    connection = await connect(store.dsn)
    for table in ("audit", "audit_seals", "jobs", "job_revisions"):  # an owner can switch the triggers off
        await connection.execute(f"alter table {table} disable trigger user")
    await connection.execute("update audit_seals set sealed_at = sealed_at - interval '400 days' where seal_id <= 2")
    await connection.close()
    await prune(store, await store.now(), Retention())
    found = await verify_chain(store)
    assert (found.first, found.seals, found.broken) == (3, total - 2, None)
    assert found.entries == await store.pool.fetchval("select count(*) from audit")
    await prune(store, await store.now() + timedelta(days=800), Retention())
    assert (await verify_chain(store)).seals == 1  # the last one stays: the next builds on it
    await changes(store, catalog, 3, "later")
    await seal_all(store)
    assert (await verify_chain(store)).broken is None


async def test_the_gradual_check_stays_at_a_broken_seal_and_starts_again_at_the_end(
    store: Store, catalog: Catalog
) -> None:
    await changes(store, catalog, 25)
    await seal_all(store)
    position = await verify_next_seals(store, ChainPosition(), max_entries=10)
    assert position.last is not None
    assert (position.last.seal_id, position.broken) == (1, None)
    chain = await audit.seals_after(store, 0, 100)
    await store.pool.execute("alter table audit_seals disable trigger user")
    await store.pool.execute("update audit_seals set hash = sha256(hash) where seal_id = $1", chain[1].seal_id)
    for _ in range(2):
        position = await verify_next_seals(store, position)
        assert position.broken == chain[1].seal_id
    await store.pool.execute(
        "update audit_seals set hash = $2 where seal_id = $1", chain[1].seal_id, bytes(chain[1].hash)
    )
    position = await verify_next_seals(store, position)
    assert position.broken is None
    assert position.last == chain[-1]
    assert (await verify_next_seals(store, position, max_entries=1)).last == chain[0]
