"""Arguments of nodes that are too large to travel: read once for all that want them, and each gets its own."""

from __future__ import annotations

import pytest
from tests.lifecycle.conftest import Bench
from tests.lifecycle.test_workflows import Nodes, ok, start

from bellringer.lifecycle.fill import fill

COUNTED = """
    create sequence bellringer.reads;
    alter function bellringer.value_of(flows, jsonb, jsonb, integer) rename to plain_value_of;
    create function bellringer.value_of(f bellringer.flows, ref jsonb, item jsonb, place integer) returns jsonb
    language sql as $$ select bellringer.plain_value_of(f, ref, item, place) from nextval('bellringer.reads') $$"""
NODES: Nodes = [
    {"name": "many", "over": {"value": list(range(101))}, "takes": {"x": {"item": True}}},
    {"name": "each", "over": {"value": [1, 2, 3]}, "takes": {"x": {"item": True}, "all": {"node": "many"}}},
]


async def test_what_many_take_is_read_once_and_nobody_shares_it(bench: Bench) -> None:
    play, _ = await start(bench, NODES, {"many": lambda c: ok([c.spec.kwargs["x"]])})
    assert [await play.step(200) for _ in range(2)] == [1, 101]
    taken = await bench.claim(play.seat)
    await bench.store.pool.execute(COUNTED)
    filled = await fill(bench.store, taken)
    lists = [claimed.spec.kwargs["all"] for claimed in filled]
    assert lists == [[[n] for n in range(101)]] * 3
    assert await bench.value("select last_value from bellringer.reads") == 1
    lists[0][0].append("mine")
    assert lists[1][0] == [0]


async def test_of_a_workflow_run_that_is_gone_nothing_is_read(bench: Bench) -> None:
    play, _ = await start(bench, NODES)
    for _ in range(2):
        await play.step(200)
    taken = await bench.claim(play.seat)
    await bench.sql("delete from flows")
    with pytest.raises(ValueError, match="shorter"):
        await fill(bench.store, taken)
