"""What watches over runs, seen from workflows: slow, late, failing, learned, and what was seen of a schedule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.lifecycle.conftest import Bench
from tests.lifecycle.test_workflows import Nodes, failed, start

from bellringer.lifecycle import flow, watch
from bellringer.lifecycle.recover import recover
from bellringer.runs import State
from bellringer.schedule import every
from bellringer.store import queue

WAITS: Nodes = [{"name": "a"}, {"name": "go", "signal": {}, "after": ["a"]}]


async def kinds(bench: Bench) -> list[tuple[str, str]]:
    rows = await bench.sql("select e.kind, j.name from events e left join jobs j using (job_id) order by e.event_id")
    return [(row["kind"], row["name"]) for row in rows]


async def compare(bench: Bench) -> watch.Compared:
    return await watch.compare(bench.store, bench.names, await bench.now())


async def test_a_workflow_run_takes_as_long_as_its_nodes_and_is_slow_by_that(bench: Bench) -> None:
    play, key = await start(bench, WAITS)
    for took in (2, 2, 2, 2, 6):
        await play.all()
        await bench.pass_time(took)
        await flow.signal(bench.store, key, "go", None, tenant_id=1)
        assert await bench.state(key) is State.SUCCEEDED
        key = await bench.trigger(key.job_id)
    usual = await watch.baseline(bench.store, bench.names, key.job_id, await bench.now(), tenant_id=1)
    assert usual is not None
    assert (usual.runs, usual.median, usual.longest) == (5, timedelta(seconds=2), timedelta(seconds=6))
    await play.all()
    await bench.pass_time(12)
    assert (await compare(bench)).slow == 0
    await bench.pass_time(1)
    assert (await compare(bench)).slow == 1
    assert (await compare(bench)).slow == 0
    assert await kinds(bench) == [("slow", "flow")]


async def test_the_run_of_a_node_is_never_slow_or_late(bench: Bench) -> None:
    play, _ = await start(bench, [{"name": "a"}, {"name": "b"}])
    await play.step()
    await bench.claim(play.seat, 1)
    await bench.pass_time(86_400)
    assert await compare(bench) == watch.Compared(slow=0, outgrown=0)
    told = await watch.watch(bench.store, await bench.now())
    assert (told.waiting, told.unborn) == (0, 0)
    assert await kinds(bench) == []


async def test_a_workflow_run_that_has_begun_is_not_late(bench: Bench) -> None:
    document = {"nodes": [{"name": "a", "task": "greet"}]}
    more: dict[str, Any] = {"task": "workflow", "workflow": document, "late_after": timedelta(seconds=3)}
    await bench.job("flow", every("10s"), **more)
    seat = await bench.seat("greet", "workflow")
    await bench.set_clock(bench.after(10))
    assert await bench.tick_all() == 1
    [root] = await bench.claim(seat)
    await bench.end(seat, root, opened=True)
    await bench.pass_time(5)
    assert (await watch.watch(bench.store, await bench.now())).waiting == 0  # its node waits, and is nobody's time
    assert await bench.verify(bench.after(10)) == []


async def test_a_workflow_in_trouble_recovers_when_its_nodes_are_run_again(bench: Bench) -> None:
    play, key = await start(bench, [{"name": "a"}, {"name": "b"}], {"a": failed(), "b": failed()})
    await play.all()
    await recover(bench.store)
    assert [tuple(row) for row in await bench.sql("select job_id, kind from troubles")] == [(key.job_id, "dead")]
    play.acts = {}
    await bench.pass_time(1)
    await flow.retry_nodes(bench.store, key, None, tenant_id=1)
    await play.all()
    await recover(bench.store)
    assert await bench.sql("select 1 from troubles") == []
    assert await kinds(bench) == [("dead", "flow"), ("recovered", "flow")]


async def test_the_queue_is_told_with_what_is_opened_as_running(bench: Bench) -> None:
    play, key = await start(bench, WAITS)
    await play.step()

    async def depth() -> tuple[int, int, int]:
        row = next(row for row in await queue.depths(bench.store) if row["pool"] == "short")
        return row["ready"], row["running"], row["blocked"]

    assert await depth() == (1, 1, 0)  # its first node waits for a worker
    await bench.pause(key.job_id)
    assert await depth() == (0, 1, 1)
    await bench.resume(key.job_id)
    await play.all()
    assert await depth() == (0, 1, 0)
