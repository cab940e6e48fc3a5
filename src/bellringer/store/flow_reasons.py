"""What a node of a workflow run waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("flow_reasons")


@dataclass(frozen=True, slots=True)
class MapRow:
    """A map that has been opened: its elements, those that have not ended, and those that did not go well."""

    size: int
    unended: int
    broken: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a node only waits for room, and how many node runs are under way in its flow."""

    is_ready: bool
    busy: int


async def maps(store: Store, flow_id: UUID, graph_id: int) -> Mapping[int, MapRow]:
    """The maps of a flow that have been opened, by their numbers."""
    rows = await store.pool.fetch(_SQL.maps, flow_id, graph_id)
    return {row["node"]: MapRow(row["size"], row["unended"], row["broken"]) for row in rows}


async def standing(store: Store, tenant_id: int, flow_id: UUID, node: int) -> Standing | None:
    row = await store.pool.fetchrow(_SQL.standing, flow_id, node, tenant_id)
    return None if row is None else Standing(row["ready"], row["busy"])


async def met(store: Store, tenant_id: int, flow_id: UUID, node: int) -> set[int]:
    """Those before a node that returned what it wants of them; only where it wants something."""
    return {row["parent"] for row in await store.pool.fetch(_SQL.met, flow_id, node, tenant_id)}
