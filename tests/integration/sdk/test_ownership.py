"""An app owns the jobs that it declares: versions, orphans, drift, and the decisions of operators that stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from bellringer import App, InvalidInput, after, at, every
from bellringer.core.policies import After
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import register
from bellringer.engine.drift import load_drifts
from bellringer.schedule import Schedule
from bellringer.store import apps, events, jobs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobFilter, JobRow

BOTH = ("report", "sync")


def app(dsn: str, *scheduled: str, version: str = "1", name: str | None = "billing", **options: Any) -> App:
    """An app with the tasks `report` and `sync`, which schedules some of them; `options` are those of the schedules."""
    given = {} if name is None else {"name": name, "version": version, "orphans": options.pop("orphans", "keep")}
    made = App(dsn, **given)
    for task in (*BOTH, *scheduled):
        if made.registry.get(task) is None:
            handle = made.task(name=task)(lambda: None)
            if task in scheduled:
                made.schedule(every("1h"), **options)(handle)
    return made


Declare = Callable[..., Coroutine[Any, Any, int]]


@pytest.fixture
def declare(store: Store) -> Declare:
    """Declare as a process of the app does when it starts, and stop."""

    async def declare(*scheduled: str, **more: Any) -> int:
        async with app(store.dsn, *scheduled, **more) as made:
            return await made.adeclare()

    return declare


async def job(store: Store, name: str) -> JobRow:
    found = await jobs.find(store, 1, name)
    assert found is not None
    row = await jobs.get(store, found[0], 1)
    assert row is not None
    return row


async def edit(store: Store, catalog: Catalog, name: str, who: str = "alice", **fields: Any) -> None:
    """Change a job as an operator does."""
    from dataclasses import replace

    row = await job(store, name)
    wanted = replace(row.definition(), **fields)
    await register.change(store, catalog, row.job_id, row.revision, wanted, tenant_id=1, who=who)


async def kinds(store: Store) -> list[tuple[str, str | None]]:
    """The events, oldest first, each with the name of its job."""
    return [(event.kind, event.job) for event in reversed(await events.newest(store, 1, None, 100))]


async def orphans(store: Store) -> list[str]:
    found, _ = await jobs.page(store, 1, JobFilter(orphaned=True), most=10)
    return [row.name for row in found]


async def declare_schedule(store: Store, schedule: Schedule | After, **options: Any) -> JobRow:
    """Declare the job `report` of the app with this schedule."""
    async with App(store.dsn, name="billing", version="1") as made:
        made.schedule(schedule, **options)(made.task(name="report")(lambda: None))
        await made.adeclare()
    return await job(store, "report")


async def test_a_change_of_another_field_keeps_the_start_of_a_repeat_count(store: Store) -> None:
    first = await declare_schedule(store, every("1s", times=1_000))
    await asyncio.sleep(1.1)  # the next occurrence would be the start of a new count
    second = await declare_schedule(store, every("1s", times=1_000), tags=["nightly"])
    assert (list(second.tags), second.revision) == (["nightly"], 2)
    assert second.schedules == first.schedules


async def test_an_upstream_job_may_be_declared_later_by_another_app(store: Store) -> None:
    declared = await declare_schedule(store, after("extract"))
    assert declared.after == After("extract")


# Identity


async def test_a_job_knows_the_app_and_the_version_that_declared_it(store: Store, declare: Declare) -> None:
    await declare("report", version="1.4.2")
    report = await job(store, "report")
    assert (report.app, report.app_version, report.declared_revision) == ("billing", "1.4.2", 1)
    assert await store.pool.fetchval("select who from jobs") == "app billing 1.4.2"
    [listed] = await apps.page(store, 1, None, 10)
    assert (listed.name, listed.version, listed.jobs, listed.orphans) == ("billing", "1.4.2", 1, 0)


async def test_processes_that_start_with_nothing_new_write_nothing(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    written = "select (select max(xmin::text::bigint) from jobs), (select max(xmin::text::bigint) from apps)"
    before = await store.pool.fetchrow(written)
    for _ in range(3):
        assert await declare(*BOTH) == 0
    assert await store.pool.fetchrow(written) == before


async def test_a_new_version_with_the_same_jobs_writes_no_job(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    before = await store.pool.fetchval("select max(xmin::text::bigint) from jobs")
    await declare(*BOTH, version="2")
    assert await store.pool.fetchval("select max(xmin::text::bigint) from jobs") == before
    assert (await job(store, "report")).app_version == "2"


async def test_the_version_is_that_of_the_environment_if_the_code_names_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BELLRINGER_APP_VERSION", "2026.11")
    assert App(store.dsn, name="billing").version == "2026.11"
    assert App(store.dsn, name="billing", version="1").version == "1"
    assert App(store.dsn).version == ""  # other programs may have the name of its module
    assert App(store.dsn).name == __name__


@pytest.mark.parametrize("option", [{"version": "1"}, {"orphans": "delete"}])
def test_versions_and_policies_need_a_name(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="needs a name of the app"):
        App(**option)


def test_an_unknown_orphan_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"orphans cannot be 'pauze'; did you mean 'pause'\?"):
        App(name="billing", orphans="pauze")


async def test_a_program_that_only_sends_is_no_app(store: Store) -> None:
    async with app(store.dsn) as made:
        report = made.task(name="send")(lambda: None)
        await report.asend()
    assert await apps.page(store, 1, None, 10) == []


# Orphans


async def test_a_schedule_that_is_removed_becomes_an_orphan_that_still_fires(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    with capture_logs() as lines:
        await declare("report", version="2")
    assert [line["jobs"] for line in lines if "no longer declared" in line["event"]] == [["sync"]]
    sync = await job(store, "sync")
    assert sync.orphaned_at is not None
    assert (sync.app, sync.app_version, sync.paused_at, sync.enabled) == ("billing", "1", None, True)
    assert await orphans(store) == ["sync"]
    assert await kinds(store) == [("orphaned", "sync")]
    [event] = await events.newest(store, 1, None, 1)
    assert event.run is None
    assert event.data == {
        "app": "billing", "version": "2", "by": "app billing 2", "last_version": "1", "policy": "keep",
    }  # fmt: skip


async def test_an_orphan_that_is_declared_again_is_adopted(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    await declare("report", version="2")
    await declare(*BOTH, version="3")
    assert (await job(store, "sync")).orphaned_at is None
    assert (await job(store, "sync")).app_version == "3"
    assert await kinds(store) == [("orphaned", "sync"), ("adopted", "sync")]
    assert await orphans(store) == []


async def test_within_one_version_the_latest_declaration_wins(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    await declare("report")
    assert await orphans(store) == ["sync"]
    await declare(*BOTH)
    assert await orphans(store) == []


async def test_a_paused_orphan_is_resumed_when_it_is_declared_again(store: Store, declare: Declare) -> None:
    await declare(*BOTH, orphans="pause")
    await declare("report", version="2", orphans="pause")
    sync = await job(store, "sync")
    assert sync.paused_by == "app billing 2"
    assert await store.pool.fetchval("select who from audit where action = 'job.paused'") == "app billing 2"
    await declare(*BOTH, version="3", orphans="pause")
    assert (await job(store, "sync")).paused_at is None
    assert await store.pool.fetchval("select who from audit where action = 'job.resumed'") == "app billing 3"


async def test_a_pause_by_an_operator_outlives_the_orphan(store: Store, declare: Declare) -> None:
    await declare(*BOTH, orphans="pause")
    await commands.pause(store, (await job(store, "sync")).job_id, tenant_id=1, who="alice", reason="INC-42")
    await declare("report", version="2", orphans="pause")
    await declare(*BOTH, version="3", orphans="pause")
    assert (await job(store, "sync")).paused_by == "alice"


async def test_a_pause_that_an_operator_takes_over_is_kept(store: Store, declare: Declare) -> None:
    await declare(*BOTH, orphans="pause")
    await declare("report", version="2", orphans="pause")
    await commands.pause(store, (await job(store, "sync")).job_id, tenant_id=1, who="alice", reason="keep it so")
    await declare(*BOTH, version="3", orphans="pause")
    assert (await job(store, "sync")).paused_by == "alice"


async def test_a_pause_that_an_operator_takes_over_while_the_app_starts_is_kept(store: Store, declare: Declare) -> None:
    """Between the read of the jobs and the resume. The trigger stands for an operator at that moment."""
    await declare(*BOTH, orphans="pause")
    await declare("report", version="2", orphans="pause")
    await store.pool.execute(
        "create function bellringer.take_over() returns trigger language plpgsql as $$ begin"
        " update bellringer.jobs set paused_by = 'alice', paused_reason = 'INC-42' where name = 'sync'; return null;"
        " end $$"
    )
    await store.pool.execute(
        "create trigger take_over after update on apps for each statement execute function bellringer.take_over()"
    )
    await declare(*BOTH, version="3", orphans="pause")
    sync = await job(store, "sync")
    assert (sync.paused_by, sync.paused_reason, sync.is_paused_as_orphan) == ("alice", "INC-42", False)
    assert sync.paused_at is not None
    assert await store.pool.fetchval("select count(*) from audit where action = 'job.resumed'") == 0


async def test_a_resume_can_be_limited_to_the_pause_of_one_caller(
    store: Store, catalog: Catalog, declare: Declare
) -> None:
    await declare(*BOTH)
    sync = await job(store, "sync")
    await commands.pause(store, sync.job_id, tenant_id=1, who="alice")
    kept = await register.resume(store, catalog, sync.job_id, tenant_id=1, who="bob", paused_by="app billing 2")
    assert (kept.since, (await job(store, "sync")).paused_by) == (None, "alice")
    ended = await register.resume(store, catalog, sync.job_id, tenant_id=1, who="bob", paused_by="alice")
    assert (ended.since is None, (await job(store, "sync")).paused_at) == (False, None)


async def test_a_resume_that_was_interrupted_is_repeated_at_the_next_start(store: Store, declare: Declare) -> None:
    await declare(*BOTH, orphans="pause")
    await declare("report", version="2", orphans="pause")
    await store.pool.execute(  # as if the process had been killed between the declaration and the resume
        "update jobs set orphaned_at = null, orphaned_version = null where name = 'sync'"
    )
    await declare(*BOTH, version="3", orphans="pause")
    assert (await job(store, "sync")).paused_at is None


async def test_orphans_are_deleted_if_the_app_says_so(store: Store, declare: Declare) -> None:
    await declare(*BOTH, orphans="delete")
    await declare("report", version="2", orphans="delete")
    assert await jobs.find(store, 1, "sync") is None
    assert await store.pool.fetchval("select who from audit where action = 'job.deleted'") == "app billing 2"
    assert await kinds(store) == [("orphaned", "sync")]
    await declare(*BOTH, version="3", orphans="delete")
    assert (await job(store, "sync")).revision == 1


async def test_a_new_policy_applies_to_earlier_orphans(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    await declare("report", version="2")
    await declare("report", version="3", orphans="pause")
    assert (await job(store, "sync")).paused_by == "app billing 3"


async def test_done_and_deleted_jobs_are_no_orphans(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    await store.pool.execute("update jobs set done_at = bellringer.now() where name = 'report'")
    await commands.delete_job(store, (await job(store, "sync")).job_id, tenant_id=1, who="alice")
    await declare(version="2")
    assert await kinds(store) == []


async def test_a_one_shot_whose_time_has_passed_is_still_declared(store: Store) -> None:
    moment = await store.now()
    for _ in range(2):
        made = App(store.dsn, name="billing", version="1")
        made.schedule(at(moment))(made.task(name="once")(lambda: None))
        async with made:
            await made.adeclare()
        await store.pool.execute("update jobs set once_at = once_at - interval '1 hour'")
    assert await orphans(store) == []


# Several apps, and apps without a name


async def test_apps_of_one_tenant_do_not_orphan_each_others_jobs(store: Store, declare: Declare) -> None:
    await declare("report")
    await declare("sync", name="mail")
    await declare("report", version="2")
    assert await orphans(store) == []
    assert (await job(store, "sync")).app == "mail"


async def test_an_app_that_declares_the_job_of_another_takes_it_over(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    await declare("sync", name="mail")
    assert (await job(store, "sync")).app == "mail"
    [event] = await events.newest(store, 1, None, 1)
    assert (event.kind, event.data["from_app"], event.data["app"]) == ("adopted", "billing", "mail")


async def test_an_app_without_a_name_leaves_jobs_alone_whose_task_a_worker_knows(
    store: Store, catalog: Catalog, declare: Declare
) -> None:
    await declare("shop.sync", name=None)
    task_ids = list((await catalog.task_ids(["shop.sync"])).values())
    await store.pool.execute(
        "insert into workers (name, host, pid, version, pools, task_ids, started_at, seen_at, state)"
        " values ('w', 'h', 1, '1', '{}', $1, pg_catalog.now(), pg_catalog.now(), 'live')",
        task_ids,
    )
    await declare("shop.report", name=None)
    assert await orphans(store) == []
    await store.pool.execute("delete from workers")
    await declare("shop.report", name=None)
    assert await orphans(store) == ["shop.sync"]


async def test_jobs_from_before_apps_were_recorded_are_adopted_or_become_orphans(
    store: Store, declare: Declare
) -> None:
    await declare(*BOTH)
    await store.pool.execute(
        "update jobs set app_id = null, declared_revision = null, declared_enabled = null; delete from app_versions;"
        " delete from apps"
    )
    await declare("report")
    assert (await job(store, "report")).app == "billing"
    sync = await job(store, "sync")
    assert (sync.app, sync.app_version, sync.orphaned_at is not None) == ("billing", None, True)


# Versions


async def test_an_old_process_that_starts_again_changes_nothing(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    await declare("report", version="2", tags=["new"])
    with capture_logs() as lines:
        assert await declare(*BOTH, version="1") == 0
    [line] = [line for line in lines if "newer version" in line["event"]]
    assert line["to_roll_back"] == "bellringer apps activate billing 1"
    assert await orphans(store) == ["sync"]
    assert (await job(store, "report")).tags == ("new",)


async def test_a_version_that_is_activated_again_is_current(store: Store, declare: Declare) -> None:
    await declare(*BOTH)
    await declare("report", version="2")
    assert await apps.activate(store, 1, "billing", "1", "alice")
    await declare("report", version="2")  # now this one is the old version
    assert await orphans(store) == ["sync"]
    await declare(*BOTH, version="1")
    assert await orphans(store) == []
    found = [(v.version, v.is_current, v.activated_by) for v in await apps.versions(store, 1, "billing")]
    assert found == [("1", True, "alice"), ("2", False, None)]
    assert not await apps.activate(store, 1, "billing", "7", "alice")
    assert not await apps.activate(store, 1, "mail", "1", "alice")


async def test_two_versions_that_start_at_once_end_as_the_newer_one_says(store: Store, declare: Declare) -> None:
    await declare(*BOTH, "old", version="1")
    starts = [declare(*BOTH, "old", version="1", tags=["old"]) for _ in range(6)]
    starts += [declare(*BOTH, "new", version="2", tags=["new"]) for _ in range(6)]
    await asyncio.gather(*(start for pair in zip(starts[:6], starts[6:], strict=True) for start in pair))
    rows = await store.pool.fetch("select name, tags[1] as tag from jobs where name <> 'old'")
    assert await orphans(store) == ["old"]
    assert {(row["name"], row["tag"]) for row in rows} == {("report", "new"), ("sync", "new"), ("new", "new")}
    assert await kinds(store) == [("orphaned", "old")]


async def test_a_declaration_that_waited_for_a_newer_version_writes_nothing(store: Store, declare: Declare) -> None:
    """The old process has read that it is current; then the new version declares, and the old one writes."""
    await declare(*BOTH)
    connection = await asyncpg.connect(store.dsn)
    try:
        async with connection.transaction():
            await connection.execute("select 1 from bellringer.apps for update")
            late = asyncio.create_task(declare(*BOTH, "old", version="1", tags=["old"]))
            waits = (
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%declare_app%'"
            )
            async with asyncio.timeout(10):
                while not await store.pool.fetchval(waits):  # noqa: ASYNC110 - locks tell nobody
                    await asyncio.sleep(0.01)
            await connection.execute(
                "insert into bellringer.app_versions select app_id, '2', tenant_id, 2, now() from bellringer.apps;"
                "update bellringer.apps set version = '2', number = 2"
            )
        assert await late == 0
    finally:
        await connection.close()
    assert await jobs.find(store, 1, "old") is None
    assert (await job(store, "report")).tags == ()


# Drift and decisions of operators


async def test_a_change_by_an_operator_is_drift_until_the_next_start(
    store: Store, catalog: Catalog, declare: Declare
) -> None:
    await declare(*BOTH)
    await edit(store, catalog, "sync", priority=9)
    sync = await job(store, "sync")
    drift = (await load_drifts(store, [sync], 1))[sync.job_id]
    assert (drift.revision, drift.by) == (1, "alice")
    assert [(one.field, one.declared, one.current) for one in drift.fields] == [("priority", 5, 9)]
    with capture_logs() as lines:
        assert await declare(*BOTH, version="2") == 1
    [line] = [line for line in lines if "overrides" in line["event"]]
    assert (line["job"], line["fields"], line["changed_by"]) == ("sync", ["priority"], "alice")
    sync = await job(store, "sync")
    assert (sync.priority, await load_drifts(store, [sync], 1)) == (5, {})
    [event] = await events.newest(store, 1, None, 1)
    assert (event.kind, event.data["fields"]) == ("overridden", [{"field": "priority", "before": 9, "after": 5}])
    assert (event.data["changed_by"], event.data["app"], event.data["version"]) == ("alice", "billing", "2")
    who = "select who from audit where action = 'job.changed' order by audit_id desc limit 1"
    assert await store.pool.fetchval(who) == "app billing 2"


async def test_a_change_that_the_code_makes_too_is_not_overridden(
    store: Store, catalog: Catalog, declare: Declare
) -> None:
    await declare("sync")
    await edit(store, catalog, "sync", tags=("slow",))
    await declare("sync", version="2", tags=["slow"])
    sync = await job(store, "sync")
    assert (await load_drifts(store, [sync], 1), await kinds(store)) == ({}, [])


async def test_a_pause_is_no_drift(store: Store, declare: Declare) -> None:
    await declare("sync")
    await commands.pause(store, (await job(store, "sync")).job_id, tenant_id=1, who="alice")
    sync = await job(store, "sync")
    assert (sync.revision, await load_drifts(store, [sync], 1)) == (2, {})


async def test_a_deploy_never_undoes_a_pause(store: Store, declare: Declare) -> None:
    await declare("sync")
    await commands.pause(store, (await job(store, "sync")).job_id, tenant_id=1, who="alice", reason="INC-42")
    await declare("sync", version="2", tags=["changed"])
    sync = await job(store, "sync")
    assert (sync.tags, sync.paused_by, sync.paused_reason) == (("changed",), "alice", "INC-42")


async def test_a_job_that_an_operator_disabled_stays_disabled(store: Store, catalog: Catalog, declare: Declare) -> None:
    await declare("sync")
    await edit(store, catalog, "sync", enabled=False)
    sync = await job(store, "sync")
    drift = (await load_drifts(store, [sync], 1))[sync.job_id]
    assert [(one.field, one.declared, one.current) for one in drift.fields] == [("enabled", True, False)]
    for version in ("2", "3"):
        await declare("sync", version=version, tags=[f"v{version}"])
        sync = await job(store, "sync")
        assert (sync.enabled, sync.tags) == (False, (f"v{version}",))
    assert [kind for kind, _ in await kinds(store)] == []


async def test_the_code_decides_about_enabled_when_it_changes_its_value(
    store: Store, catalog: Catalog, declare: Declare
) -> None:
    await declare("sync", enabled=False)
    await edit(store, catalog, "sync", enabled=True)
    await declare("sync", version="2", enabled=False)
    assert (await job(store, "sync")).enabled  # the code says the same as before, so the operator's value stays
    await declare("sync", version="3", enabled=True)
    await declare("sync", version="4", enabled=False)
    assert not (await job(store, "sync")).enabled


async def test_secrets_and_large_values_are_not_copied_to_events(
    store: Store, catalog: Catalog, declare: Declare
) -> None:
    await declare("sync")
    await edit(store, catalog, "sync", kwargs={"text": "x" * 5000})
    await declare("sync", version="2")
    [event] = await events.newest(store, 1, None, 1)
    assert "bytes" in event.data["fields"][0]["before"]
    assert len(json.dumps(event.data)) < 1000


# The records of apps


async def test_deployments_are_audited(store: Store, declare: Declare) -> None:
    await declare("report")
    await declare("report", version="2")
    await declare("report", version="2")
    rows = await store.pool.fetch("select action, who, after ->> 'version' from audit where kind = 'app' order by tx")
    assert [tuple(row) for row in rows] == [
        ("app.created", "app billing 1", "1"), ("app.changed", "app billing 2", "2"),
    ]  # fmt: skip
