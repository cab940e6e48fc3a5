"""Two hands on one workflow run at the same moment: nothing is lost, nothing is done twice, and it comes to its end."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from tests.integration.engine.test_overlap_races import meanwhile, unfinished
from tests.integration.workflow.test_workflows import Play, ok, start, states
from tests.support.engine_harness import EngineHarness

from bellringer.core.jobs import SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.engine import settle, workflow_commands
from bellringer.engine.claim import ClaimSpec
from bellringer.errors import Conflict, NotFound

EXAMPLES = int(os.environ.get("BELLRINGER_EXAMPLES", "0"))
LEFT = """
    select (select count(*) from queue) + (select count(*) from timers) + (select count(*) from signals)
         + (select count(*) from flows where finished_at is null or busy <> 0 or unfinished <> 0)"""
Nodes = list[dict[str, Any]]
DIAMOND: Nodes = [{"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a", "b"]}, {"name": "d", "after": ["c"]}]


async def ended(harness: EngineHarness, key: RunKey) -> State:
    """How the run has ended: once, and without anything left behind."""
    assert await harness.value(LEFT) == 0
    keys = (key.job_id, key.scheduled_for, key.slot)
    query = "select count(*) from attempts where (job_id, scheduled_for, slot) = ($1, $2, $3) and ends_as is not null"
    assert await harness.value(query, *keys) == 1
    return await harness.state(key)


async def under_way(harness: EngineHarness, nodes: Nodes, **more: Any) -> tuple[Play, RunKey, list[Any]]:
    """A workflow run whose first nodes a worker has claimed."""
    play, key = await start(harness, nodes, **more)
    await play.step()
    return play, key, sorted(await harness.claim(play.seat), key=lambda c: c.spec.node or "")


async def test_two_last_parents_end_at_once_and_their_child_begins_once(harness: EngineHarness) -> None:
    play, key, [a, b] = await under_way(harness, DIAMOND)
    async with unfinished(harness) as other:
        await other.end(play.seat, a)
        second = await meanwhile(harness.end(play.seat, b))
        assert not second.done(), "it waits for the flow"
    assert await second == 1
    await play.all()
    assert play.names == ["c", "d"]
    assert await ended(harness, key) is State.SUCCEEDED


@pytest.mark.parametrize("first", ["settle", "pause"])
async def test_what_begins_while_its_job_is_paused_is_held_and_goes_on_afterwards(
    harness: EngineHarness, first: str
) -> None:
    play, key, [a] = await under_way(harness, [{"name": "a"}, {"name": "b", "after": ["a"]}])
    async with unfinished(harness) as other:
        await (other.end(play.seat, a) if first == "settle" else other.pause(key.job_id))
        second = await meanwhile(harness.pause(key.job_id) if first == "settle" else harness.end(play.seat, a))
    await second
    assert await harness.claim(play.seat) == []
    await harness.resume(key.job_id)
    await play.all()
    assert play.names == ["b"]
    assert await ended(harness, key) is State.SUCCEEDED


async def test_what_begins_while_its_job_is_resumed_is_not_held_forever(harness: EngineHarness) -> None:
    play, key, [a] = await under_way(harness, [{"name": "a"}, {"name": "b", "after": ["a"]}])
    await harness.pause(key.job_id)
    async with unfinished(harness) as other:
        await other.end(play.seat, a)
        second = await meanwhile(harness.resume(key.job_id))
    await second
    await play.all()
    assert await ended(harness, key) is State.SUCCEEDED


@pytest.mark.parametrize("first", ["settle", "stop"])
async def test_a_cancel_meets_the_end_of_a_node(harness: EngineHarness, first: str) -> None:
    play, key, [a, b] = await under_way(harness, DIAMOND)
    assert await harness.cancel(key) is State.RUNNING
    async with unfinished(harness) as other:
        await (other.end(play.seat, a) if first == "settle" else workflow_commands.stop_workflow_runs(other.store))
        second = await meanwhile(
            workflow_commands.stop_workflow_runs(harness.store) if first == "settle" else harness.end(play.seat, a)
        )
    await second
    await harness.end(play.seat, b, outcome=Outcome.CANCELLED)
    assert await harness.claim(play.seat) == []
    assert await ended(harness, key) is State.CANCELLED
    assert (await states(harness, key))["c"] == "skipped stopped"


@pytest.mark.parametrize("first", ["open", "retire"])
async def test_a_job_is_deleted_while_a_run_of_it_is_opened(harness: EngineHarness, first: str) -> None:
    play, key = await start(harness, DIAMOND)
    root = await harness.claim_one(play.seat)

    async def opened(on: EngineHarness) -> int:
        return await on.end(play.seat, root, opened=True)

    async with unfinished(harness) as other:
        await (opened(other) if first == "open" else other.retire(key.job_id))
        second = await meanwhile(harness.retire(key.job_id) if first == "open" else opened(harness))
    await second
    await workflow_commands.stop_workflow_runs(harness.store)
    assert await ended(harness, key) is State.CANCELLED


async def test_a_job_is_deleted_while_nodes_run(harness: EngineHarness) -> None:
    play, key, [a, b] = await under_way(harness, DIAMOND)
    await harness.retire(key.job_id)
    await harness.end(play.seat, a)
    assert await workflow_commands.stop_workflow_runs(harness.store) == 1
    await harness.end(play.seat, b, outcome=Outcome.CANCELLED)
    assert await ended(harness, key) is State.CANCELLED


@pytest.mark.parametrize("first", ["ring", "signal"])
async def test_a_signal_comes_at_the_very_moment_of_its_timeout(harness: EngineHarness, first: str) -> None:
    play, key = await start(
        harness, [{"name": "s", "signal": {"timeout": "5m"}}, {"name": "t", "takes": {"x": {"node": "s"}}}]
    )
    await play.step()
    await harness.hold()
    await harness.pass_time(300)

    async def told(on: EngineHarness) -> bool:
        return await workflow_commands.send_signal(on.store, key, "s", 7, tenant_id=1)

    async with unfinished(harness) as other:
        await (other.ring() if first == "ring" else told(other))
        second = await meanwhile(told(harness) if first == "ring" else harness.ring())
    await second
    await play.all()
    assert play.seen == [("t", {"x": 7})]
    assert await ended(harness, key) is State.SUCCEEDED


async def test_a_signal_that_comes_while_a_worker_ends_the_waiting_is_too_late(harness: EngineHarness) -> None:
    play, key, [] = await under_way(
        harness, [{"name": "s", "signal": {"timeout": "5s", "default": {"value": 1}}}], output="s"
    )
    await harness.pass_time(5)
    waited = await harness.claim_one(play.seat)
    assert not await workflow_commands.send_signal(harness.store, key, "s", 7, tenant_id=1)
    await harness.end(play.seat, waited, result=1)
    assert await ended(harness, key) is State.SUCCEEDED
    assert (await harness.run(key)).result == 1


@pytest.mark.parametrize("step", ["mark", "stop"])
async def test_a_timer_fires_while_its_node_is_ended(harness: EngineHarness, step: str) -> None:
    play, key = await start(harness, [{"name": "w", "wait": {"for": "1h"}}])
    await play.step()
    await harness.hold()
    await harness.pass_time(3600)
    await harness.cancel(key) if step == "stop" else None

    async def ending() -> Any:
        if step == "stop":
            return await workflow_commands.stop_workflow_runs(harness.store)
        return await workflow_commands.mark_node(
            harness.store, key, ("w", None), State.SUCCEEDED, tenant_id=1, reason="enough"
        )

    async with unfinished(harness) as other:
        await other.ring()
        second = await meanwhile(ending())
    await second
    assert await ended(harness, key) is (State.CANCELLED if step == "stop" else State.SUCCEEDED)


async def test_an_opening_that_is_reported_twice_does_not_start_it_again(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "a"}])
    root = await harness.claim_one(play.seat)
    told = settle.decide(root, Ending(outcome=Outcome.OK, opened=True))
    assert (await settle.settle(harness.store, play.seat.worker_id, [told])).written == 1
    await play.all()
    assert (await settle.settle(harness.store, play.seat.worker_id, [told])).written == 0
    assert await harness.claim(play.seat) == []
    assert await ended(harness, key) is State.SUCCEEDED


async def test_inner_and_outer_nodes_that_end_together_do_not_wait_for_each_other(harness: EngineHarness) -> None:
    """One worker ends nodes of both in one call, while another ends the last of the inner one."""
    inner = {"nodes": [{"name": "x", "task": "greet"}, {"name": "y", "task": "greet"}]}
    nodes: Nodes = [
        *({"name": f"sub {n}", "workflow": inner} for n in range(6)),
        {"name": "a"},
        {"name": "b", "after": ["a"]},
    ]
    play, key = await start(harness, nodes)
    await play.step()
    [*subs] = await harness.claim(play.seat)
    await harness.end(play.seat, [c for c in subs if c.spec.graph], opened=True)
    inside = await harness.claim(play.seat)
    xs, ys = ([c for c in inside if c.spec.node == name] for name in "xy")
    outer = [c for c in subs if not c.spec.graph]
    await asyncio.gather(harness.end(play.seat, [*outer, *xs]), *(harness.end(play.seat, y) for y in ys))
    await play.all()
    assert await ended(harness, key) is State.SUCCEEDED


class Crowd:
    """Everybody at once: workers that claim and settle, and people who stop, retry, mark, signal and pause."""

    def __init__(self, harness: EngineHarness, keys: list[RunKey], seats: list[ClaimSpec], seed: int) -> None:
        self.harness, self.keys, self.seats, self.dice = harness, keys, seats, random.Random(seed)
        self.met: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    async def work(self, seat: ClaimSpec) -> int:
        taken = await self.harness.claim(seat, self.dice.choice([1, 3, 20]))
        self.dice.shuffle(taken)
        how = [settle.decide(c, self._end(c)) for c in taken]
        cut = self.dice.randrange(len(how) + 1)
        for batch in (how[:cut], how[cut:]):
            while batch and not await self._met("settle", settle.settle(self.harness.store, seat.worker_id, batch)):
                pass
        return len(taken)

    def _end(self, claimed: Any) -> Ending:
        if claimed.spec.graph is not None:
            return Ending(outcome=Outcome.OK, opened=True)
        if self.dice.random() < 0.15:
            error = {"type": "ValueError", "message": "no", "lineage": ["ValueError"]}
            return Ending(outcome=Outcome.FAILED, error=error, final="for good")
        return ok(["x", "y"])

    async def meddle(self) -> None:
        key, store, job = self.dice.choice(self.keys), self.harness.store, self.keys[0].job_id
        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "retry": lambda: workflow_commands.retry_nodes(store, key, None, tenant_id=1),
            "retry an element": lambda: workflow_commands.retry_nodes(store, key, [("m", 1)], tenant_id=1),
            "mark": lambda: workflow_commands.mark_node(store, key, ("m", 0), State.SUCCEEDED, tenant_id=1, reason="x"),
            "signal": lambda: workflow_commands.send_signal(store, key, "s", 1, tenant_id=1),
            "pause": lambda: self.harness.pause(job),
            "resume": lambda: self.harness.resume(job),
            "cancel": lambda: self.harness.cancel(key),
            "stop": lambda: workflow_commands.stop_workflow_runs(store),
            "redrive": lambda: self.harness.redrive(key),
        }
        name = self.dice.choices(list(acts), [3, 3, 3, 3, 1, 3, 1, 3, 3])[0]
        await self._met(name, acts[name]())

    async def _met(self, name: str, step: Awaitable[Any]) -> bool:
        try:
            with suppress(Conflict, NotFound):
                await step
                self.done[name] += 1
        except asyncpg.DeadlockDetectedError:
            self.met[name] += 1
            return False
        return True

    async def hands(self, steps: int, seat: ClaimSpec) -> None:
        for _ in range(steps):
            await (self.work(seat) if self.dice.random() < 0.5 else self.meddle())

    async def finish(self) -> None:
        """Nobody meddles any more: what is under way comes to its end."""
        await self.harness.resume(self.keys[0].job_id)
        for _ in range(500):
            for key in self.keys:
                with suppress(Conflict, NotFound):  # nobody waits any more; or it was cancelled before it was opened
                    await workflow_commands.send_signal(self.harness.store, key, "s", 1, tenant_id=1)
            if not sum(
                [
                    await workflow_commands.stop_workflow_runs(self.harness.store),
                    *[await self.work(seat) for seat in self.seats],
                ]
            ):
                return
        raise AssertionError("it never came to rest")


@pytest.mark.parametrize("seed", range(max(3, EXAMPLES // 20)))
async def test_in_a_crowd_every_run_comes_to_its_end_and_deadlocks_are_rare(harness: EngineHarness, seed: int) -> None:
    inner = {"nodes": [{"name": "x", "task": "greet"}, {"name": "y", "task": "greet", "after": ["x"]}]}
    nodes: Nodes = [
        {"name": "list"},
        {"name": "m", "over": {"node": "list"}, "max_parallel": 1, "after": ["list"]},
        {"name": "sub", "workflow": inner, "over": {"node": "list"}},
        {"name": "s", "signal": {}, "after": ["list"]},
        {"name": "end", "after": ["m", "sub", "s"], "when": "all_done"},
        *([{"name": "undo", "undoes": "list"}] if seed % 2 else []),
    ]
    play, key = await start(harness, nodes, max_parallel=3)
    keys = [key, *[await harness.trigger(key.job_id) for _ in range(5)]]
    seats = [play.seat, await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)]
    crowd = Crowd(harness, keys, seats, seed)
    await asyncio.gather(*(crowd.hands(200, seat) for seat in seats))
    await crowd.finish()
    assert await harness.value(LEFT) == 0
    ends = {await harness.state(run) for run in keys}
    assert ends <= {State.SUCCEEDED, State.DEAD, State.CANCELLED}
    assert crowd.done["settle"] > 20
    assert crowd.met.total() <= 4, crowd.met
