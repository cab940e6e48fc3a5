"""Arguments of nodes that are too large to travel: read once for all that want them, and each gets its own."""

from __future__ import annotations

import pytest
from tests.integration.workflow.test_workflows import Nodes, ok, start
from tests.support.engine_harness import EngineHarness

from bellringer.store.workflows import load_node_arguments

COUNTED = """
    create sequence bellringer.reads;
    alter function bellringer.value_of(flows, jsonb, jsonb, integer) rename to plain_value_of;
    create function bellringer.value_of(f bellringer.flows, ref jsonb, item jsonb, place integer) returns jsonb
    language sql as $$ select bellringer.plain_value_of(f, ref, item, place) from nextval('bellringer.reads') $$"""
NODES: Nodes = [
    {"name": "many", "over": {"value": list(range(101))}, "takes": {"x": {"item": True}}},
    {"name": "each", "over": {"value": [1, 2, 3]}, "takes": {"x": {"item": True}, "all": {"node": "many"}}},
]


async def test_what_many_take_is_read_once_and_no_one_shares_it(harness: EngineHarness) -> None:
    play, _ = await start(harness, NODES, {"many": lambda c: ok([c.spec.kwargs["x"]])})
    assert [await play.step(200) for _ in range(2)] == [1, 101]
    taken = await harness.claim(play.seat)
    await harness.store.pool.execute(COUNTED)
    filled = await load_node_arguments(harness.store, taken)
    lists = [claimed.spec.kwargs["all"] for claimed in filled]
    assert lists == [[[n] for n in range(101)]] * 3
    assert await harness.value("select last_value from bellringer.reads") == 1
    lists[0][0].append("mine")
    assert lists[1][0] == [0]


async def test_of_a_workflow_run_that_is_gone_nothing_is_read(harness: EngineHarness) -> None:
    play, _ = await start(harness, NODES)
    for _ in range(2):
        await play.step(200)
    taken = await harness.claim(play.seat)
    await harness.sql("delete from flows")
    with pytest.raises(ValueError, match="shorter"):
        await load_node_arguments(harness.store, taken)
