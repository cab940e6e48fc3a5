"""Workflows in the database: versions of graphs, and workflow runs from inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from bellringer.runs import RunKey, State
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("flows")
_JSON = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A graph as it is stored: its document, and the rows that the engine works with."""

    digest: str
    document: Mapping[str, Any]
    params: Mapping[str, Any]
    output: int | None
    max_parallel: int | None
    nodes: Sequence[Mapping[str, Any]]
    edges: Sequence[Mapping[str, Any]]


async def intern(store: Store, tenant_id: int, version: Version) -> int:
    """The number of a graph; equal ones have one."""
    number: int = await store.pool.fetchval(
        _SQL.intern,
        tenant_id,
        version.digest,
        _JSON.encode(version.document).decode(),
        _JSON.encode(version.params).decode(),
        version.output,
        version.max_parallel,
        _JSON.encode(version.nodes).decode(),
        _JSON.encode(version.edges).decode(),
    )
    return number


async def document(store: Store, tenant_id: int, number: int) -> dict[str, Any] | None:
    """What the author of a version wrote."""
    text = await store.pool.fetchval(_SQL.document, number, tenant_id)
    return None if text is None else msgspec.json.decode(text)


async def version_of(store: Store, tenant_id: int, job: str) -> int | None:
    """The present version of another workflow, by the name of its job."""
    number: int | None = await store.pool.fetchval(_SQL.version_of, tenant_id, job)
    return number


async def known_tasks(store: Store, names: Collection[str]) -> set[str]:
    return {row["name"] for row in await store.pool.fetch(_SQL.known_tasks, list(names))}


async def values(store: Store, wanted: Sequence[tuple[UUID, Mapping[str, Any]]]) -> list[Any]:
    """Results of nodes, as references name them: what many want is read once, and each gets a copy of its own."""
    keys = [(flow_id, _JSON.encode(ref).decode()) for flow_id, ref in wanted]
    once = list(dict.fromkeys(keys))
    rows = await store.pool.fetch(_SQL.values, [flow_id for flow_id, _ in once], [ref for _, ref in once])
    texts = {key: row[0] for key, row in zip(once, rows, strict=True)}  # of a flow that is gone there is no row
    return [None if texts[key] is None else msgspec.json.decode(texts[key]) for key in keys]


@dataclass(frozen=True, slots=True)
class ToStop:
    """A flow that is to stop, why, and what its run ends as."""

    flow_id: UUID
    reason: str
    ends_as: State


async def to_stop(store: Store, most: int) -> list[ToStop]:
    rows = await store.pool.fetch(_SQL.to_stop, most)
    return [ToStop(row["flow_id"], row["reason"], State(row["ends_as"])) for row in rows]


async def stop(store: Store, flow: ToStop) -> bool:
    """Start nothing more in it; False: it had stopped already."""
    stopped: bool = await store.pool.fetchval(_SQL.stop, flow.flow_id, flow.reason, flow.ends_as)
    return stopped


async def retry(
    store: Store, key: RunKey, tenant_id: int, nodes: Sequence[tuple[str, int | None]] | None
) -> str | None:
    """Put nodes, and all after them, back to their beginning; a word tells what is in the way."""
    named = ([name for name, _ in nodes], [place for _, place in nodes]) if nodes is not None else (None, None)
    trouble: str | None = await store.pool.fetchval(
        _SQL.retry, tenant_id, key.job_id, key.scheduled_for, key.slot, *named
    )
    return trouble


async def mark(
    store: Store,
    key: RunKey,
    tenant_id: int,
    node: tuple[str, int | None],
    state: State,
    *,
    result: Any = None,
    reason: str,
) -> str | None:
    """Say how a node has ended; a word tells what is in the way."""
    text = None if result is None else _JSON.encode(result).decode()
    trouble: str | None = await store.pool.fetchval(
        _SQL.mark, tenant_id, key.job_id, key.scheduled_for, key.slot, *node, state, text, reason
    )
    return trouble


async def signal(store: Store, key: RunKey, tenant_id: int, name: str, payload: Any) -> str | None:
    """Tell a workflow run of something; `kept` where nobody waits for it yet, or a word for what is in the way."""
    text = _JSON.encode(payload).decode()
    answer: str | None = await store.pool.fetchval(
        _SQL.signal, tenant_id, key.job_id, key.scheduled_for, key.slot, name, text
    )
    return answer


async def signals(store: Store, key: RunKey, tenant_id: int) -> list[str]:
    """What a workflow run can be told."""
    rows = await store.pool.fetch(_SQL.signals, key.job_id, key.scheduled_for, key.slot, tenant_id)
    return [row[0] for row in rows]


async def forget(store: Store, before: datetime, most: int = 1_000) -> int:
    """Forget flows whose runs are older; answers how many."""
    gone = 0
    while forgotten := await store.pool.fetchval(_SQL.forget, before, most):
        gone += forgotten
    return gone
