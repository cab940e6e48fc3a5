"""How equal nodes share the shards without talking to each other."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from bellringer.core.leases import Holding
from bellringer.core.shard_balance import fair_share

clusters = st.tuples(st.integers(1, 128), st.integers(1, 12))


@given(clusters)
def test_the_shares_of_all_ranks_are_even_and_add_up_to_all_shards(cluster: tuple[int, int]) -> None:
    shards, nodes = cluster
    shares = [fair_share(0, shards, nodes, rank).take for rank in range(nodes)]
    assert sum(shares) == shards
    assert max(shares) - min(shares) <= 1


@given(clusters, st.integers(0, 128), st.data())
def test_a_node_takes_or_drops_but_never_both(cluster: tuple[int, int], held: int, data: st.DataObject) -> None:
    shards, nodes = cluster
    share = fair_share(held, shards, nodes, data.draw(st.integers(0, nodes - 1)))
    assert min(share.take, share.drop) == 0
    assert share.drop <= held


@given(clusters, st.data())
def test_nodes_that_act_one_after_another_reach_an_even_share(cluster: tuple[int, int], data: st.DataObject) -> None:
    shards, nodes = cluster
    owners = [data.draw(st.integers(-1, nodes - 1)) for _ in range(shards)]  # -1: free
    for _ in range(2):
        for rank in range(nodes):
            held = [s for s in range(shards) if owners[s] == rank]
            share = fair_share(len(held), shards, nodes, rank)
            for shard in held[len(held) - share.drop :]:
                owners[shard] = -1
            for shard in [s for s in range(shards) if owners[s] == -1][: share.take]:
                owners[shard] = rank
    counts = [owners.count(rank) for rank in range(nodes)]
    assert sum(counts) == shards
    assert max(counts) - min(counts) <= 1
    assert not any(fair_share(counts[rank], shards, nodes, rank).take for rank in range(nodes))


def test_a_node_that_is_alone_takes_everything() -> None:
    assert fair_share(0, 64, 1, 0).take == 64
    assert fair_share(0, 64, 0, 0).take == 64


def test_nodes_beyond_the_number_of_shards_get_none() -> None:
    assert [fair_share(0, 2, 4, rank).take for rank in range(4)] == [1, 1, 0, 0]


def test_a_holding_answers_only_for_shards_that_it_holds_in_order() -> None:
    holding = Holding(uuid4(), {3: 30, 1: 10})
    assert holding.tokens_for([3, 2, 1, 3]) == ([1, 3], [10, 30])
    assert holding.tokens_for([]) == ([], [])
