"""Which shards a node should hold where shards belong to regions; and how regions are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.core.shard_balance import (
    Peer,
    Rebalance,
    Want,
    divide_shards,
    format_shards,
    parse_shards,
    plan_rebalance,
)
from bellringer.errors import InvalidInput

REGIONS = ("eu", "us", "ap")
some_region = st.sampled_from((None, *REGIONS))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, dict[int, str], list[Peer]]:
    shards = draw(st.integers(1, 40))
    of = {s: region for s in range(shards) if (region := draw(some_region)) is not None}
    peers = [Peer(UUID(int=n + 1), draw(some_region)) for n in range(draw(st.integers(1, 6)))]
    return shards, of, peers


def settle(shards: int, of: Mapping[int, str], peers: Sequence[Peer], owners: dict[int, Peer]) -> dict[int, Peer]:
    """Nodes act one after another, and take only what is free."""
    for _ in range(3):
        for me in peers:
            held = {s for s, owner in owners.items() if owner == me}
            wanted = plan_rebalance(me, peers, shards, of, held)
            for shard in wanted.drop:
                assert owners.pop(shard) == me, "only what is held is dropped"
            for want in wanted.wants:
                for shard in [s for s in want.among if s not in owners][: want.count]:
                    owners[shard] = me
    return owners


@given(clusters(), st.data())
def test_nodes_reach_a_state_in_which_every_shard_is_held_where_it_belongs(
    cluster: tuple[int, dict[int, str], list[Peer]], data: st.DataObject
) -> None:
    shards, of, peers = cluster
    before = {s: data.draw(st.sampled_from(peers)) for s in range(shards) if data.draw(st.booleans())}
    owners = settle(shards, of, peers, before)
    assert owners.keys() == set(range(shards))
    staffed = {peer.region for peer in peers}
    for shard, owner in owners.items():
        if of.get(shard) in staffed - {None}:
            assert owner.region == of[shard]
    for region in REGIONS:
        group = [s for s in range(shards) if of.get(s) == region]
        if region in staffed:
            parts = [sum(owners[s] == peer for s in group) for peer in peers if peer.region == region]
            assert max(parts) - min(parts) <= 1
    common = [s for s in range(shards) if of.get(s) is None or of[s] not in staffed]
    parts = [sum(owners[s] == peer for s in common) for peer in peers]
    assert max(parts) - min(parts) <= 1
    assert all(
        plan_rebalance(me, peers, shards, of, {s for s in owners if owners[s] == me}) == Rebalance() for me in peers
    ), "and rest"


def test_without_regions_a_node_takes_its_part_of_all() -> None:
    me, other = Peer(UUID(int=1)), Peer(UUID(int=2))
    assert plan_rebalance(me, [me, other], 4, {}, {0, 1, 2}) == Rebalance(drop=(2,))
    assert plan_rebalance(other, [me, other], 4, {}, {3}) == Rebalance(wants=(Want(1, (0, 1, 2)),))


def test_a_node_that_is_not_among_the_living_yet_counts_itself() -> None:
    assert plan_rebalance(Peer(UUID(int=9)), [Peer(UUID(int=1))], 4, {}, ()) == Rebalance(
        wants=(Want(2, (0, 1, 2, 3)),)
    )


def test_a_region_is_taken_over_only_while_none_of_its_nodes_lives() -> None:
    eu, us, of = Peer(UUID(int=1), "eu"), Peer(UUID(int=2), "us"), {0: "eu", 1: "eu", 2: "us", 3: "us"}
    assert plan_rebalance(us, [us], 4, of, {2, 3}) == Rebalance(wants=(Want(2, (0, 1)),))
    assert plan_rebalance(us, [eu, us], 4, of, {2, 3}) == Rebalance()
    assert plan_rebalance(us, [eu, us], 4, of, {0, 1, 2, 3}) == Rebalance(drop=(0, 1))
    assert plan_rebalance(eu, [eu, us], 4, of, ()) == Rebalance(wants=(Want(2, (0, 1)),))


def test_a_node_without_a_region_holds_no_shard_of_a_region_that_lives() -> None:
    nomad, eu = Peer(UUID(int=1)), Peer(UUID(int=2), "eu")
    assert plan_rebalance(nomad, [nomad, eu], 3, {0: "eu", 1: "eu"}, {0}) == Rebalance(
        drop=(0,), wants=(Want(1, (2,)),)
    )


@given(st.integers(1, 1024), st.integers(1, 5))
def test_regions_without_shards_are_given_even_parts(shards: int, count: int) -> None:
    parts = list(divide_shards([f"r{n}" for n in range(count)], shards).values())
    assert sorted(shard for part in parts for shard in part) == list(range(shards))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.sets(st.integers(0, 63), min_size=1))
def test_shards_are_read_as_they_are_written(shards: set[int]) -> None:
    assert parse_shards(format_shards(shards), 64) == sorted(shards)


def test_shards_are_written_as_stretches() -> None:
    assert format_shards([3, 0, 1, 2, 7, 9, 10]) == "0-3,7,9-10"
    assert format_shards([]) == ""
    assert parse_shards(" 4 , 1-2", 8) == [1, 2, 4]


@pytest.mark.parametrize("text", ["", "8", "0-8", "3-1", "-1", "a", "1,,2", "1-", "٣", "0-7;1"])
def test_what_names_no_shard_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(InvalidInput, match="valid numbers are 0 to 7"):
        parse_shards(text, 8, pointer="/regions")
