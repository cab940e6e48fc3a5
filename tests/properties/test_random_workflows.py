"""Random workflows on the real engine, with failures, lost workers and concurrent settlements, against a reference.

`BELLRINGER_EXAMPLES=2000 pytest tests/properties/test_random_workflows.py` runs it for longer, with new
examples every time.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, event, given, reject, settings
from hypothesis import strategies as st
from tests.properties.conftest import prepare
from tests.properties.workflow_player import NODES, Play, span
from tests.properties.workflow_reference import Path, Script, Told, edges, failed, interpret

from bellringer.core.jobs import WORKFLOW_TASK
from bellringer.errors import InvalidInput
from bellringer.store.connection_pool import Store
from bellringer.testing.postgres import TestServer

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

EXAMPLES: Final = int(os.environ.get("BELLRINGER_EXAMPLES", "0"))
TABLES: Final = "queue timers attempts runs flow_nodes flows signals dead_letters events workers job_revisions jobs"
LEFT: Final = """
    select 'busy or unfinished: ' || f from flows f where busy <> 0 or unfinished <> 0 or finished_at is null
    union all select 'in the queue: ' || q from queue q union all select 'a timer: ' || t from timers t
    union all select 'a signal: ' || s from signals s
    union all select 'has ended twice: ' || min(job_id::text) from attempts where ends_as is not null
              group by job_id, scheduled_for, slot having count(*) > 1"""
RULES: Final = ("all_success", "all_success", "none_failed", "all_done", "one_failed")
RETRIES: Final = (
    {"attempts": 1},
    {"attempts": 2, "delays": ["1s"], "jitter": 0},
    {"attempts": 3, "delays": ["1s", "2m"], "jitter": 0},
)


@st.composite
def documents(draw: st.DrawFn, most: int = 15, nested: int = 0) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, most))):
        before = [node["name"] for node in nodes]
        node = {"name": f"n{number}"} | draw(st.sampled_from(KINDS[: 6 - 2 * nested]))(draw, before, nested)
        parents = draw(st.lists(st.sampled_from(before), max_size=3, unique=True)) if before else []
        wanted = st.sampled_from([None, None, None, {"is": "a"}, {"is": "b"}, {"is": None}])
        after = [name if (want := draw(wanted)) is None else {"node": name, **want} for name in parents]
        referred = edges({"nodes": [*nodes, node]})[node["name"]]
        if after or referred:
            # What begins at the first failure has nothing of those under way yet: how a map ends would be chance.
            sure = referred and ("over" in node or "workflow" in node)
            node |= {"after": after, "when": draw(st.sampled_from(RULES[:-1] if sure else RULES))}
        nodes.append(node)
    doable = [node["name"] for node in nodes if "task" in node or "workflow" in node]
    for number, name in enumerate(draw(st.lists(st.sampled_from(doable), max_size=2, unique=True)) if doable else []):
        undo = {"name": f"u{number}", "task": "greet", "undoes": name, "takes": {"x": {"node": name}}}
        nodes.append({**undo, "retry": draw(st.sampled_from(RETRIES))})
    return {
        "nodes": nodes,
        "params": {"p": {"default": {"value": draw(st.sampled_from([[], [1, 2], ["a"] * 4, 7]))}}},
        "max_parallel": draw(st.sampled_from([None, None, 1, 2, 3])),
        "output": draw(st.sampled_from([None, nodes[0]["name"]])),
    }


def source(draw: st.DrawFn, before: list[str]) -> dict[str, Any]:
    refs = [{"param": "p"}, {"value": ["v", "w"]}, *({"node": name} for name in before)]
    ref: dict[str, Any] = draw(st.sampled_from(refs))
    return ref


def task(draw: st.DrawFn, before: list[str], _nested: int) -> dict[str, Any]:
    node: dict[str, Any] = {"task": "greet", "retry": draw(st.sampled_from(RETRIES)), "kwargs": {"k": 1}}
    if draw(st.integers(0, 3)) == 0:
        node["takes"] = {"x": source(draw, before)}
    if draw(st.integers(0, 5)) == 0:
        node["delivery"] = "at_most_once"
    return node


def mapped(draw: st.DrawFn, before: list[str], nested: int) -> dict[str, Any]:
    node = task(draw, [], nested) | {"over": source(draw, before), "takes": {"x": {"item": True}, "i": {"index": True}}}
    return node | draw(st.sampled_from([{}, {"max_parallel": 1}, {"max_parallel": 2}, {"max_items": 3}]))


def wait(draw: st.DrawFn, _before: list[str], _nested: int) -> dict[str, Any]:
    return {"wait": {"for": draw(st.sampled_from(["1s", "30s", "5m"]))}}


def signal(draw: st.DrawFn, _before: list[str], _nested: int) -> dict[str, Any]:
    lengths = [{}, {"timeout": "20s"}, {"timeout": "10m"}, {"timeout": "10m", "default": {"value": "b"}}]
    return {"signal": draw(st.sampled_from(lengths))}


def inner(draw: st.DrawFn, before: list[str], nested: int) -> dict[str, Any]:
    node = {"workflow": draw(documents(most=4, nested=nested + 1))}
    if draw(st.booleans()):
        return node | {"over": source(draw, before), "takes": {"p": {"item": True}}}
    return node | {"takes": {"p": source(draw, before)}}


KINDS: Final = (task, task, mapped, signal, wait, inner)


class Stage:
    """A database that histories use one after the other."""

    def __init__(self, runner: asyncio.Runner, harness: EngineHarness) -> None:
        self.runner, self.harness = runner, harness

    def play(
        self, document: dict[str, Any], script: Script, seed: int
    ) -> tuple[Play, dict[Path, tuple[str, str | None]]]:
        return self.runner.run(self._play(document, script, seed))

    async def _play(
        self, document: dict[str, Any], script: Script, seed: int
    ) -> tuple[Play, dict[Path, tuple[str, str | None]]]:
        await self.harness.store.pool.execute(";".join(f"delete from {table}" for table in TABLES.split()))
        await self.harness.set_clock(self.harness.noon)
        try:
            job_id = await self.harness.job("flow", task=WORKFLOW_TASK, workflow=document)
        except InvalidInput as fault:
            if fault.code != "unreachable":
                raise
            reject()  # arms of a branch that exclude each other
        play = Play(self.harness, script, random.Random(seed), job_id)
        await play.run()
        play.breaches += [row[0] for row in await self.harness.sql(LEFT)]
        paths = await play.paths()
        rows = await self.harness.sql(NODES, job_id)
        ends = {paths[row["flow_id"], row["node"]]: (row["state"], row["reason"]) for row in rows}
        ended = await self.harness.sql(
            "select ends_as::text from attempts where job_id = $1 and ends_as is not null", job_id
        )
        assert len(ended) == 1, f"the workflow run has ended {len(ended)} times; {play.breaches}"
        ends[()] = (ended[0][0], None)
        return play, ends


@pytest.fixture(scope="module")
def stage(bellringer_server: TestServer) -> Iterator[Stage]:
    with bellringer_server.plain_database() as dsn, asyncio.Runner() as runner:

        async def begin() -> EngineHarness:
            return await prepare(await Store.open(dsn))

        made = Stage(runner, runner.run(begin()))
        yield made
        runner.run(made.harness.store.close())


@settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
@given(document=documents(), seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.1, 0.3, 0.6]))
def test_every_node_ends_as_the_rules_say_whatever_happens(
    stage: Stage, document: dict[str, Any], seed: int, trouble: float
) -> None:
    script = Script(seed, trouble)
    told = interpret(document, script)
    play, ends = stage.play(document, script, seed)
    event(f"it ends {ends[()][0]}")
    assert play.breaches == []
    assert ends == {path: (ended.state, ended.reason) for path, ended in told.ends.items()}
    assert play.attempts == told.executions()
    for path, ended in told.ends.items():
        if ended.given is not None and ended.attempts:
            assert play.given[path] == ended.given, path
    assert list(out_of_turn(document, (), told, play)) == []


def out_of_turn(document: dict[str, Any], path: Path, told: Told, play: Play) -> Iterator[str]:
    """Returns nodes that started before their parents had ended."""
    if path not in play.starts or told.ends[path].attempts[-1] != "ok":
        return
    before = edges(document)
    for node in document["nodes"]:
        here = (*path, node["name"])
        if "workflow" in node:
            places = [p for p in told.ends if p[:-1] == here and isinstance(p[-1], int)] if "over" in node else [here]
            for place in places:
                yield from out_of_turn(node["workflow"], place, told, play)
        if not (starts := span(play.starts, here)):
            continue
        parents = [(*path, name) for name in before[node["name"]]]
        waited = [all(end < min(starts) for end in span(play.ends, parent)) for parent in parents]
        if node.get("when") == "one_failed":
            waited = [any(w for w, parent in zip(waited, parents, strict=True) if failed(told.ends[parent]))]
        if not all(waited):
            yield f"{here} began at {min(starts)}: {[span(play.ends, parent) for parent in parents]}"
    yield from undone_out_of_turn(document, path, told, play)


def undone_out_of_turn(document: dict[str, Any], path: Path, told: Told, play: Play) -> Iterator[str]:
    done = [(*path, node["name"]) for node in document["nodes"] if "undoes" not in node]
    latest = max((end for here in done for end in span(play.ends, here)), default=0)
    for name in told.undone[path]:
        if min(span(play.starts, (*path, name))) < latest:
            yield f"{name} undoes too early"
        latest = max(span(play.ends, (*path, name)))
