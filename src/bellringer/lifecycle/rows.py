"""Definitions as the rows that registration takes: names become numbers, and what many have in common is made once."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from bellringer.jobs import OWN_KEY, Definition, shard_of
from bellringer.payload import check_payload
from bellringer.policies import Limit, jitter_by
from bellringer.schedule import Row as ScheduleRow
from bellringer.schedule import to_document, to_row
from bellringer.store.names import Names


class Own(msgspec.Struct, frozen=True, array_like=True):
    """What a job has to itself, in the order in which registration is sent it."""

    job_id: UUID
    shard: int
    name: str
    spec: msgspec.Raw


class Row(msgspec.Struct, frozen=True):
    """One job; what it shares with others that are alike stands beside its kind, and is sent once."""

    own: Own
    common: Mapping[str, Any]
    region: str | None  # whose shard it is in


class Judged(NamedTuple):
    """A definition as it would be stored, and what was worked out to judge it."""

    definition: Definition
    kind: Hashable  # the same for those that are alike, of one judging
    arguments: bytes  # as JSON


async def rows_of(names: Names, checked: Sequence[tuple[UUID, int, Judged]], tenant_id: int) -> list[Row]:
    """One row for each id, expected revision and definition."""
    shards, regions = await names.shards(), await names.regions()
    firsts = {judged.kind: judged.definition for _, _, judged in checked}.values()
    pools = await names.pool_ids(d.pool for d in firsts)
    tasks = await names.task_ids((d.task for d in firsts), tenant_id)
    schedules = await names.schedule_ids(s for d in firsts for s in d.recurring)
    limits: dict[UUID, Limit] = {}
    if any(d.limit is not None or d.max_concurrency is not None for d in firsts):
        limits = {job_id: limit for job_id, _, (d, _, _) in checked if (limit := _limit(job_id, d)) is not None}
    keys = await names.key_ids(tenant_id, limits.values())
    known: dict[Hashable, tuple[Mapping[str, Any], bytes]] = {}
    rows: list[Row] = []
    for place, (job_id, revision, (d, kind, arguments)) in enumerate(checked):
        if place % 250 == 249:
            await asyncio.sleep(0)  # others have their turn meanwhile
        if kind not in known:
            made: Mapping[str, Any] = {"task_id": tasks[d.task], "pool_id": pools[d.pool], **_columns(d, schedules)}
            known[kind] = ({**made, "tenant_id": tenant_id, "expected": 0, "jitter_by": 0.0}, _terms(d))
        common, terms = known[kind]
        limit = limits.get(job_id)
        if revision or limit or d.jitter:  # such a job is like no other
            common = {
                **common,
                "expected": revision,
                "key_id": keys[limit.key] if limit else None,
                "key_most": limit.most if limit else None,
                "jitter_by": jitter_by(f"{tenant_id}:{d.name}", d.jitter).total_seconds() if d.jitter else 0.0,
            }
        own = Own(job_id, shard_of(job_id, shards), d.name, msgspec.Raw(_joined(arguments, terms)))
        rows.append(Row(own, common, regions.get(own.shard)))
    return rows


def written(rows: Sequence[Row]) -> bytes:
    """Rows as registration is sent them: by kind, and what a kind has in common once."""
    kinds: dict[int, tuple[Mapping[str, Any], list[Own]]] = {}
    for row in rows:
        kinds.setdefault(id(row.common), (row.common, []))[1].append(row.own)
    return msgspec.json.encode([{**common, "jobs": those} for common, those in kinds.values()])


def shards_of(rows: Sequence[Row]) -> list[int]:
    return sorted({row.own.shard for row in rows})


def spec_of(d: Definition) -> bytes:
    """A spec as it is stored: plain JSON, whatever types the arguments had."""
    return _joined(_arguments(d), _terms(d))


def _arguments(d: Definition) -> bytes:
    return check_payload({"args": list(d.args), "kwargs": dict(d.kwargs)})


def _joined(arguments: bytes, terms: bytes) -> bytes:
    return arguments[:-1] + b"," + terms[1:]


def _terms(d: Definition) -> bytes:
    """What a spec says beside the arguments."""
    spec = d.spec()
    terms = {"timeout": spec.timeout, "heartbeat": spec.heartbeat, "retry": spec.retry, "delivery": d.delivery.value}
    return msgspec.json.encode(terms if d.graph is None else {**terms, "graph": d.graph})


def _limit(job_id: UUID, d: Definition) -> Limit | None:
    """The limit that a job's runs are claimed under; a cap of its own is a key that no other job has."""
    if d.limit is not None or d.max_concurrency is None:
        return d.limit
    return Limit(f"{OWN_KEY}{job_id}", d.max_concurrency)


def _columns(d: Definition, schedules: Mapping[ScheduleRow, int]) -> Mapping[str, Any]:
    return {
        "schedules": [to_document(s) for s in d.schedules],
        "schedule_ids": sorted({schedules[to_row(s)] for s in d.recurring}),
        "once_at": d.once_at,
        "delay": d.delay.total_seconds() if d.delay else None,
        "priority": d.priority,
        "misfire": d.misfire,
        "catchup": d.catchup.to_document(),
        "overlap": d.overlap,
        "cap": d.max_concurrency,
        "jitter": d.jitter.total_seconds() if d.jitter else None,
        "late_after": d.late_after.total_seconds() if d.late_after else None,
        "starts_at": d.starts_at,
        "ends_at": d.ends_at,
        "enabled": d.enabled,
        "owner": d.owner,
        "tags": list(d.tags),
        "expected_duration": d.expected_duration.total_seconds() if d.expected_duration else None,
        "routed": d.routed,
    }
