"""Send: a run without a job, now or later; and a run of a job by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from uuid_utils.compat import uuid7

from bellringer.errors import InvalidInput, NotFound
from bellringer.jobs import DEFAULT_POOL, DEFAULT_PRIORITY, Definition, check_others, shard_of
from bellringer.lifecycle import versions
from bellringer.payload import LIMIT, check_payload
from bellringer.policies import Delivery, Retry
from bellringer.runs import Cause, RunKey, Spec
from bellringer.schedule import At
from bellringer.store import history, jobs, runs, tenants
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.runs import Sending, Sent

LONGEST_KEY: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run, when, and how hard to try."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None  # None: now
    pool: str = DEFAULT_POOL
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry = field(default_factory=Retry)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    key: str | None = None  # a second order with this key, within a day, answers the first run
    cause: Cause = Cause.SEND


async def send(store: Store, names: Names, order: Order, *, tenant_id: int) -> Sent:
    """Keep the order; when this returns, it survives any crash."""
    now = await store.now()
    definition = _checked(order, now, LIMIT if order.cause is Cause.WEBHOOK else await names.payload_limit(tenant_id))
    pools = await names.pool_ids([order.pool])
    tasks = await names.task_ids([order.task], tenant_id)
    job_id = uuid7()
    await history.ensure_days(store, {now.date(), (now + timedelta(days=1)).date()})
    return await runs.send(
        store,
        Sending(
            tenant_id=tenant_id,
            job_id=job_id,
            shard=shard_of(job_id, await names.shards()),
            task_id=tasks[order.task],
            pool_id=pools[order.pool],
            priority=order.priority,
            spec=definition.spec(),
            at=order.at,
            key=order.key,
            cause=order.cause,
        ),
    )


def _checked(order: Order, now: datetime, limit: int) -> Definition:
    """An order is held to the rules of a job."""
    if order.key is not None and not 0 < len(order.key) <= LONGEST_KEY:
        raise InvalidInput(f"key must have 1 to {LONGEST_KEY} characters", pointer="/key", code="limit")
    check_payload({"args": list(order.args), "kwargs": dict(order.kwargs)}, limit=limit)
    return Definition(
        name=order.task,
        task=order.task,
        schedules=(At(instant=order.at),) if order.at else (),
        args=order.args,
        kwargs=order.kwargs,
        pool=order.pool,
        priority=order.priority,
        timeout=order.timeout,
        heartbeat=order.heartbeat,
        retry=order.retry,
        delivery=order.delivery,
    ).checked(now)


async def trigger(
    store: Store,
    job_id: UUID,
    *,
    tenant_id: int,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> RunKey:
    """Run a job now, by hand, whatever its schedule says; other arguments hold for this run alone."""
    spec: Spec | None = None
    job = await jobs.get(store, job_id, tenant_id)
    if job is None:
        raise NotFound("there is no such job")
    if args is not None or kwargs is not None:
        check_others(job.task, args, kwargs)
        spec = msgspec.structs.replace(
            job.spec,
            args=list(args) if args is not None else job.spec.args,
            kwargs={**job.spec.kwargs, **(kwargs or {})},
        )
        limit = await tenants.payload_limit(store, tenant_id)
        check_payload({"args": spec.args, "kwargs": spec.kwargs}, limit=limit)
    await versions.check_params(store, spec or job.spec, tenant_id=tenant_id)  # a workflow may want params of each run
    now = await store.now()
    await history.ensure_days(store, {now.date(), (now + timedelta(days=1)).date()})
    key = await runs.trigger(store, job_id, tenant_id, spec)
    if key is None:
        raise NotFound("there is no such job")
    return key
