"""Encodes validated definitions as the JSON document that the SQL function `register` takes."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from bellringer.core.jobs import JOB_FIELDS, JOB_LIMIT_KEY_PREFIX, Definition, shard_of
from bellringer.core.payload import check_payload
from bellringer.core.policies import Limit, jitter_for
from bellringer.engine.validate import YIELD_EVERY, ValidDefinition
from bellringer.schedule import ScheduleRow, to_document, to_row
from bellringer.store.interned_names import Catalog


class JobRowPayload(msgspec.Struct, frozen=True, array_like=True):
    """The columns that are different for every job, in the order that `register` expects."""

    job_id: UUID
    shard: int
    name: str
    spec: msgspec.Raw


class JobPayload(msgspec.Struct, frozen=True):
    """One job. `template` holds all other columns; jobs with the same template object are sent in one batch."""

    row: JobRowPayload
    template: Mapping[str, Any]
    region: str | None  # the region of its shard
    jitter_by: timedelta


async def encode_jobs(
    catalog: Catalog, valid: Sequence[tuple[UUID, int, ValidDefinition]], tenant_id: int
) -> list[JobPayload]:
    """Encodes one payload for each id, expected revision and definition."""
    shards, regions = await catalog.shard_count(), await catalog.regions()
    definitions = {_template_key(job_id, result): result.definition for job_id, _, result in valid}.values()
    pools = await catalog.pool_ids(d.pool for d in definitions)
    tasks = await catalog.task_ids((d.task for d in definitions), tenant_id)
    schedules = await catalog.schedule_ids(s for d in definitions for s in d.recurring)
    limits: dict[UUID, Limit] = {}
    if any(d.limit is not None or d.max_concurrency is not None for d in definitions):
        limits = {job_id: limit for job_id, _, result in valid if (limit := _limit(job_id, result.definition))}
    keys = await catalog.key_ids(tenant_id, limits.values())
    templates: dict[Hashable, tuple[Mapping[str, Any], bytes]] = {}
    payloads: list[JobPayload] = []
    for index, (job_id, revision, result) in enumerate(valid):
        if index % YIELD_EVERY == YIELD_EVERY - 1:
            await asyncio.sleep(0)
        d, template_key = result.definition, _template_key(job_id, result)
        if template_key not in templates:
            columns: dict[str, Any] = {"tenant_id": tenant_id, "task_id": tasks[d.task], "pool_id": pools[d.pool]}
            columns |= {"expected": 0, "jitter_by": _to_json(timedelta(0)), **_columns(d, schedules)}
            templates[template_key] = columns, _encode_run_options(d)
        template, options = templates[template_key]
        limit, jitter_by = limits.get(job_id), jitter_for(f"{tenant_id}:{d.name}", d.jitter)
        if revision or limit or d.jitter:  # these columns are different for every job
            template = {
                **template,
                "expected": revision,
                "key_id": keys[limit.key] if limit else None,
                "key_most": limit.most if limit else None,
                "jitter_by": _to_json(jitter_by),
            }
        row = JobRowPayload(job_id, shard_of(job_id, shards), d.name, _join_spec(result.arguments, options))
        payloads.append(JobPayload(row, template, regions.get(row.shard), jitter_by))
    return payloads


def _template_key(job_id: UUID, result: ValidDefinition) -> Hashable:
    return job_id if result.template is None else result.template


def encode_batches(payloads: Sequence[JobPayload]) -> bytes:
    """Encodes jobs in batches: the columns of a shared template once, and the rows of its jobs beside them."""
    batches: dict[int, tuple[Mapping[str, Any], list[JobRowPayload]]] = {}
    for payload in payloads:
        batches.setdefault(id(payload.template), (payload.template, []))[1].append(payload.row)
    return msgspec.json.encode([{**template, "jobs": rows} for template, rows in batches.values()])


def encode_spec(d: Definition) -> bytes:
    """Encodes the column `spec`: the arguments and run options that a worker needs."""
    return bytes(_join_spec(check_payload({"args": list(d.args), "kwargs": dict(d.kwargs)}), _encode_run_options(d)))


def _join_spec(arguments: bytes, options: bytes) -> msgspec.Raw:
    """Joins two JSON objects: the arguments are different for every job, the options are part of the template."""
    return msgspec.Raw(arguments[:-1] + b"," + options[1:])


def _encode_run_options(d: Definition) -> bytes:
    spec = d.spec()
    options: dict[str, Any] = {
        "timeout": spec.timeout,
        "heartbeat": spec.heartbeat,
        "retry": spec.retry,
        "delivery": d.delivery.value,
    }
    if d.keep_result:
        options["keep_result"] = True
    if d.redact:
        options["redact"] = list(d.redact)
    return msgspec.json.encode(options if d.graph is None else {**options, "graph": d.graph})


def _limit(job_id: UUID, d: Definition) -> Limit | None:
    """Returns the limit under which a job's runs are claimed; `max_concurrency` is a limit with a key of this job."""
    if d.limit is not None or d.max_concurrency is None:
        return d.limit
    return Limit(f"{JOB_LIMIT_KEY_PREFIX}{job_id}", d.max_concurrency)


def _columns(d: Definition, schedules: Mapping[ScheduleRow, int]) -> Mapping[str, Any]:
    return {
        **{name: _to_json(getattr(d, name)) for name in JOB_FIELDS},
        "schedules": [to_document(s) for s in d.schedules],
        "schedule_ids": sorted({schedules[to_row(s)] for s in d.recurring}),
        "once_at": d.once_at,
        "delay": _to_json(d.delay),
        "misfire": d.misfire,
        "catchup": d.catchup.to_document(),
        "overlap": d.overlap,
        "cap": d.max_concurrency,
    }


def _to_json(value: Any) -> Any:
    """Returns an interval as text that PostgreSQL reads; msgspec encodes all other types."""
    return f"{value.total_seconds():f} seconds" if isinstance(value, timedelta) else value
