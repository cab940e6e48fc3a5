"""What watches over runs, seen from workflows: slow, late, failing, learned, and what was seen of a schedule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.integration.workflow.test_workflows import Nodes, failed, start
from tests.support.engine_harness import EngineHarness

from bellringer.core.runs import State
from bellringer.engine import monitor, workflow_commands
from bellringer.engine.monitor import report_recoveries
from bellringer.schedule import every
from bellringer.store import queue

WAITS: Nodes = [{"name": "a"}, {"name": "go", "signal": {}, "after": ["a"]}]


async def kinds(harness: EngineHarness) -> list[tuple[str, str]]:
    rows = await harness.sql("select e.kind, j.name from events e left join jobs j using (job_id) order by e.event_id")
    return [(row["kind"], row["name"]) for row in rows]


async def compare(harness: EngineHarness) -> monitor.SlowRunPass:
    return await monitor.report_slow_runs(harness.store, harness.catalog, await harness.now())


async def test_a_workflow_run_takes_as_long_as_its_nodes_and_is_slow_by_that(harness: EngineHarness) -> None:
    play, key = await start(harness, WAITS)
    for took in (2, 2, 2, 2, 6):
        await play.all()
        await harness.pass_time(took)
        await workflow_commands.send_signal(harness.store, key, "go", None, tenant_id=1)
        assert await harness.state(key) is State.SUCCEEDED
        key = await harness.trigger(key.job_id)
    usual = await monitor.load_baseline(harness.store, harness.catalog, key.job_id, await harness.now(), tenant_id=1)
    assert usual is not None
    assert (usual.runs, usual.median, usual.longest) == (5, timedelta(seconds=2), timedelta(seconds=6))
    await play.all()
    await harness.pass_time(12)
    assert (await compare(harness)).slow == 0
    await harness.pass_time(1)
    assert (await compare(harness)).slow == 1
    assert (await compare(harness)).slow == 0
    assert await kinds(harness) == [("slow", "flow")]


async def test_the_run_of_a_node_is_never_slow_or_late(harness: EngineHarness) -> None:
    play, _ = await start(harness, [{"name": "a"}, {"name": "b"}])
    await play.step()
    await harness.claim(play.seat, 1)
    await harness.pass_time(86_400)
    assert await compare(harness) == monitor.SlowRunPass(slow=0, outgrown=0)
    told = await monitor.report_late_runs(harness.store, await harness.now())
    assert (told.waiting, told.not_created) == (0, 0)
    assert await kinds(harness) == []


async def test_a_workflow_run_that_has_begun_is_not_late(harness: EngineHarness) -> None:
    document = {"nodes": [{"name": "a", "task": "greet"}]}
    more: dict[str, Any] = {"task": "workflow", "workflow": document, "late_after": timedelta(seconds=3)}
    await harness.job("flow", every("10s"), **more)
    seat = await harness.join_worker("greet", "workflow")
    await harness.set_clock(harness.after(10))
    assert await harness.tick_all() == 1
    [root] = await harness.claim(seat)
    await harness.end(seat, root, opened=True)
    await harness.pass_time(5)
    assert (
        await monitor.report_late_runs(harness.store, await harness.now())
    ).waiting == 0  # its node waits, and is nobody's time
    assert await harness.verify(harness.after(10)) == []


async def test_a_workflow_in_trouble_recovers_when_its_nodes_are_run_again(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "a"}, {"name": "b"}], {"a": failed(), "b": failed()})
    await play.all()
    await report_recoveries(harness.store)
    assert [tuple(row) for row in await harness.sql("select job_id, kind from troubles")] == [(key.job_id, "dead")]
    play.acts = {}
    await harness.pass_time(1)
    await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    await play.all()
    await report_recoveries(harness.store)
    assert await harness.sql("select 1 from troubles") == []
    assert await kinds(harness) == [("dead", "flow"), ("recovered", "flow")]


async def test_the_queue_is_reported_with_what_is_opened_as_running(harness: EngineHarness) -> None:
    play, key = await start(harness, WAITS)
    await play.step()

    async def depth() -> tuple[int, int, int]:
        row = next(row for row in await queue.depths(harness.store) if row["pool"] == "short")
        return row["ready"], row["running"], row["blocked"]

    assert await depth() == (1, 1, 0)  # its first node waits for a worker
    await harness.pause(key.job_id)
    assert await depth() == (0, 1, 1)
    await harness.resume(key.job_id)
    await play.all()
    assert await depth() == (0, 1, 0)
