"""Creates runs on demand: runs without a job (send), now or later, and a manual run of a job (trigger)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from uuid_utils.compat import uuid7

from bellringer.core.jobs import DEFAULT_POOL, DEFAULT_PRIORITY, WORKFLOW_TASK, check_run_arguments, shard_of
from bellringer.core.messages import Message, MessageKind
from bellringer.core.payload import MAX_PAYLOAD_BYTES, check_payload
from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.run_traces import RunTrace
from bellringer.core.runs import Cause, RunKey, Spec
from bellringer.engine import graph_versions, producer_span
from bellringer.errors import InvalidInput, InvalidItems, NotFound, Unavailable
from bellringer.store import jobs, partitions, runs, tenants
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow
from bellringer.store.runs import MissingDay, NewRun, PrunedGraph, RefusedTime, SendBatch, SendResult
from bellringer.workflow import bind_params

BATCH_ITEMS: Final = 1_000  # of one statement: it takes about 20 ms
BATCH_BYTES: Final = 4 * 1024 * 1024
MAX_GRAPH_TRIES: Final = 3

SendOutcome = SendResult | InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSpec:
    """The task to run, when to run it, and its retry policy."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None  # None: now, or after the delay
    delay: timedelta | None = None
    pool: str = DEFAULT_POOL
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry = field(default_factory=Retry)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    key: str | None = None  # a second send with this key within a day returns the first run
    cause: Cause = Cause.SEND
    expires_in: timedelta | None = None  # a run that has not started this long after its time is skipped
    redact: tuple[str, ...] = ()  # paths of values of the payload that are not shown

    def kind(self) -> MessageKind:
        return MessageKind(
            task=self.task,
            pool=self.pool,
            priority=self.priority,
            timeout=self.timeout,
            heartbeat=self.heartbeat,
            retry=self.retry,
            delivery=self.delivery,
            cause=self.cause,
            expires_in=self.expires_in,
            redact=self.redact,
        )

    def message(self) -> Message:
        """Validates the options and the arguments."""
        payload = check_payload({"args": list(self.args), "kwargs": dict(self.kwargs)})
        return Message(self.kind(), payload, self.at, self.delay, self.key)


async def send(
    store: Store,
    catalog: Catalog,
    request: SendSpec | Message,
    *,
    tenant_id: int,
    job_id: UUID | None = None,
    repeated: bool = False,
    notify: bool = False,
) -> SendResult:
    """Stores the run, in one round trip. After this call returns, the run survives any crash.

    A caller whose call failed may not know whether it committed. Repeating the call with the same `job_id` and
    `repeated` returns the run of the first call, if there is one. With `notify`, the statement notifies workers.
    """
    message = request if isinstance(request, Message) else request.message()
    with producer_span.open_for_message(message, tenant_id) as trace:
        sent = await _send(store, catalog, message, tenant_id, job_id or uuid7(), trace, repeated, notify)
        producer_span.record_run(trace, sent.key)
    return sent


async def _send(
    store: Store,
    catalog: Catalog,
    message: Message,
    tenant_id: int,
    job_id: UUID,
    trace: RunTrace | None,
    repeated: bool,
    notify: bool,
) -> SendResult:
    kind = message.kind
    message.check(MAX_PAYLOAD_BYTES if kind.cause is Cause.WEBHOOK else await catalog.payload_limit(tenant_id))
    new = NewRun(
        tenant_id=tenant_id,
        job_id=job_id,
        shard=shard_of(job_id, await catalog.shard_count()),
        task_id=await catalog.task_id(kind.task, tenant_id),
        pool_id=await catalog.pool_id(kind.pool),
        message=message,
        repeated=repeated,
        notify=notify,
        trace=trace,
    )
    try:
        try:
            return await runs.send(store, new)
        except MissingDay:
            await _ensure_days(store)
            return await runs.send(store, new)
    except RefusedTime as refused:
        message.check_time(refused.now)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSend:
    """A workflow to run without a job: its graph document, or the name of a workflow job whose graph is used."""

    workflow: Mapping[str, Any] | str
    params: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None  # None: now, or after the delay
    delay: timedelta | None = None
    pool: str = DEFAULT_POOL
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta | None = None  # of the whole run
    key: str | None = None  # a second workflow run with this key within a day returns the first
    is_declared: bool = False  # the graph is that of a workflow in code: few exist, and they are not pruned


async def send_workflow(
    store: Store,
    catalog: Catalog,
    request: WorkflowSend,
    *,
    tenant_id: int,
    job_id: UUID | None = None,
    repeated: bool = False,
    notify: bool = False,
) -> SendResult:
    """Validates the graph and the params, and stores a workflow run without a job; see `send`.

    Equal graphs are stored once, so the run itself holds only its params.
    """
    for _ in range(MAX_GRAPH_TRIES):
        graph, number = await _sent_graph(store, catalog, request, tenant_id)
        bind_params(graph, request.params, pointer="/params")
        kind = MessageKind(
            task=WORKFLOW_TASK,
            pool=request.pool,
            priority=request.priority,
            timeout=request.timeout,
            graph=number,
        )
        payload = check_payload({"args": [], "kwargs": dict(request.params)}, pointer="/params")
        message = Message(kind, payload, request.at, request.delay or None, request.key)
        try:
            return await send(
                store, catalog, message, tenant_id=tenant_id, job_id=job_id, repeated=repeated, notify=notify
            )
        except PrunedGraph:
            catalog.sent_graphs.clear()
    raise Unavailable("the graph of the workflow is being deleted", hint="try again in a moment")


async def _sent_graph(
    store: Store, catalog: Catalog, request: WorkflowSend, tenant_id: int
) -> graph_versions.InternedGraph:
    if isinstance(request.workflow, str):
        return await graph_versions.load_named_graph(store, tenant_id, request.workflow, pointer="/name")
    return await graph_versions.intern_sent_graph(
        store, catalog, request.workflow, tenant_id=tenant_id, is_pruned=not request.is_declared
    )


async def _ensure_days(store: Store) -> None:
    """Creates the partitions of the days in which a send can create a run now. Schedulers do this ahead of time."""
    now = await store.now()
    days = {(now + timedelta(days=distance)).date() for distance in (-1, 0, 1)}
    store.days -= days  # one of them is missing, even if this process has seen it
    await partitions.ensure_days(store, days)


class BulkSend:
    """The items of one bulk. They are encoded once, so that a repeated write has the same run ids.

    Items are messages, or the errors of items that are no valid message, with their indexes; those with a key come
    first, in the order of `lock_order`. With `atomic`, `write` stores all or none; without it, the valid ones, each
    batch in a transaction of its own.
    """

    def __init__(
        self,
        catalog: Catalog,
        items: Iterable[tuple[int, Message | InvalidInput]],
        *,
        tenant_id: int,
        atomic: bool = True,
    ) -> None:
        self._catalog = catalog
        self._items = iter(items)
        self._tenant_id = tenant_id
        self._atomic = atomic
        self._encoded: list[SendBatch] = []
        self._kinds: dict[MessageKind, tuple[int, int]] = {}  # the ids of task and pool
        self._errors: dict[int, InvalidInput] = {}
        self._trace: RunTrace | None = None

    @property
    def kinds(self) -> Collection[MessageKind]:
        """The kinds of the messages that were encoded."""
        return self._kinds.keys()

    async def write(self, store: Store, *, repeated: bool = False, notify: bool = False) -> list[SendOutcome]:
        """Stores the items and returns an outcome for each, in the order of their indexes.

        Raises InvalidItems if the bulk is atomic and an item is invalid. `repeated`: an earlier call of this method
        failed and may have committed.
        """
        now = await store.now()
        with producer_span.open_for_bulk(self._tenant_id) as trace:
            self._trace = self._trace or trace
            try:
                sent = await self._write(store, now, repeated=repeated, notify=notify)
            except MissingDay:
                await _ensure_days(store)
                sent = await self._write(store, now, repeated=True, notify=notify)
            producer_span.record_count(trace, len(sent))
        outcomes: dict[int, SendOutcome] = {**self._errors, **sent}
        return [outcomes[index] for index in range(len(outcomes))]

    async def _write(self, store: Store, now: datetime, *, repeated: bool, notify: bool) -> dict[int, SendResult]:
        """Writes the batches. While the database writes one, the next is encoded."""
        sent: dict[int, SendResult] = {}
        batches = self._batches(now)
        batch, following = await anext(batches, None), await anext(batches, None)
        async with AsyncExitStack() as stack:
            connection: Any = store.pool
            if self._atomic and following is not None:  # a single batch is a transaction by itself
                connection = await stack.enter_async_context(store.pool.acquire())
                await stack.enter_async_context(connection.transaction())
            while batch is not None and not (self._atomic and self._errors):
                notifies = notify and (following is None or not self._atomic)
                writing = asyncio.create_task(
                    runs.send_many(connection, self._tenant_id, batch, repeated=repeated, notify=notifies)
                )
                try:
                    await asyncio.sleep(0)  # the statement is on its way
                    batch, following = following, await anext(batches, None)
                    sent.update(await writing)
                finally:
                    if not writing.done():  # the connection must not be returned with a running statement
                        writing.cancel()
                        await asyncio.wait([writing])
            if self._atomic and self._errors:
                async for _ in batches:  # finds the errors of all items
                    pass
                raise InvalidItems(self._errors)
        return sent

    async def _batches(self, now: datetime) -> AsyncIterator[SendBatch]:
        for batch in self._encoded[:]:
            yield batch
        while (batch := await self._encode(now)).indexes:
            self._encoded.append(batch)
            yield batch

    async def _encode(self, now: datetime) -> SendBatch:
        """Encodes the next valid items; an empty batch after the last. `now` is the database's clock."""
        shards, limit = await self._catalog.shard_count(), await self._catalog.payload_limit(self._tenant_id)
        batch, size = SendBatch(), 0
        for index, item in self._items:
            try:
                if not isinstance(item, Message):
                    raise item
                item.check(limit, now)
                task_id, pool_id = self._kinds.get(item.kind) or await self._resolve(item.kind)
            except InvalidInput as error:
                self._errors[index] = error
                continue
            trace = producer_span.trace_for(item, self._trace, now)
            batch.add(index, item, job_id := uuid7(), shard_of(job_id, shards), task_id, pool_id, trace)
            size += len(item.payload)
            if len(batch.indexes) >= BATCH_ITEMS or size >= BATCH_BYTES:
                break
        return batch

    async def _resolve(self, kind: MessageKind) -> tuple[int, int]:
        found = (await self._catalog.task_id(kind.task, self._tenant_id), await self._catalog.pool_id(kind.pool))
        self._kinds[kind] = found
        return found


def lock_order(messages: Sequence[Message | InvalidInput]) -> list[tuple[int, Message | InvalidInput]]:
    """Returns messages with their indexes: those with a key first, ordered so that two bulks cannot deadlock."""
    keyed = [(m.task, m.key, index) for index, m in enumerate(messages) if isinstance(m, Message) and m.key is not None]
    if not keyed:
        return list(enumerate(messages))
    others = [(index, m) for index, m in enumerate(messages) if not isinstance(m, Message) or m.key is None]
    return [*((index, messages[index]) for _, _, index in sorted(keyed)), *others]


async def trigger(
    store: Store,
    job_id: UUID,
    *,
    tenant_id: int,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> RunKey:
    """Runs a job now, regardless of its schedule. Given arguments apply to this run only."""
    job = await jobs.get(store, job_id, tenant_id)
    if job is None:
        raise NotFound("there is no such job")
    with producer_span.open_for_task(job.task, tenant_id) as trace:
        key = await _trigger(store, job, tenant_id, args, kwargs, trace)
        producer_span.record_run(trace, key)
    return key


async def _trigger(
    store: Store,
    job: JobRow,
    tenant_id: int,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    trace: RunTrace | None,
) -> RunKey:
    spec: Spec | None = None
    if args is not None or kwargs is not None:
        check_run_arguments(job.task, args, kwargs)
        spec = msgspec.structs.replace(
            job.spec,
            args=list(args) if args is not None else job.spec.args,
            kwargs={**job.spec.kwargs, **(kwargs or {})},
        )
        limit = await tenants.payload_limit(store, tenant_id)
        check_payload({"args": spec.args, "kwargs": spec.kwargs}, limit=limit)
    await graph_versions.check_params(
        store, spec or job.spec, tenant_id=tenant_id
    )  # the params of a workflow may be required for each run
    if trace is not None:  # without arguments or a trace, the run uses the spec of its job
        spec = msgspec.structs.replace(spec or job.spec, trace=trace)
    now = await store.now()
    await partitions.ensure_days(store, {now.date(), (now + timedelta(days=1)).date()})
    key = await runs.trigger(store, job.job_id, tenant_id, spec)
    if key is None:
        raise NotFound("there is no such job")
    return key
