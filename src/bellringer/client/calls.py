"""Every call of the API as a method of both clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from bellringer.wire import (
    asks,
    asks_access,
    asks_audit,
    asks_installation,
    asks_jobs,
    asks_overview,
    asks_runs,
    asks_webhooks,
    asks_workflows,
)
from bellringer.wire.asks import Ask

if TYPE_CHECKING:
    from bellringer.client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")


class _Call(Generic[P, T]):
    """A method of both clients: on one it answers, on the other it gives an awaitable of the answer."""

    def __init__(self, ask: Callable[P, Ask[T]]) -> None:
        self._ask = ask

    @overload
    def __get__(self, client: Client, owner: object = None) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: object = None) -> Callable[P, Awaitable[T]]: ...

    def __get__(self, client: Client | AsyncClient, owner: object = None) -> Callable[P, Any]:
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self._ask(*args, **kwargs))

        return update_wrapper(call, self._ask)


class Calls:
    """All calls, by name."""

    jobs = _Call(asks_jobs.jobs)
    put_job = _Call(asks_jobs.put_job)
    create_jobs = _Call(asks_jobs.create_jobs)
    skip = _Call(asks_jobs.skip)
    unskip = _Call(asks_jobs.unskip)
    skips = _Call(asks_jobs.skips)
    revisions = _Call(asks_jobs.revisions)
    revision = _Call(asks_jobs.revision)
    rollback = _Call(asks_jobs.rollback)
    job = _Call(asks.job)
    create_job = _Call(asks.create_job)
    patch_job = _Call(asks.patch_job)
    dry_run = _Call(asks.dry_run)
    delete_job = _Call(asks_jobs.delete_job)
    pause = _Call(asks.pause)
    resume = _Call(asks.resume)
    trigger = _Call(asks.trigger)
    job_runs = _Call(asks.job_runs)
    why = _Call(asks.why)
    baseline = _Call(asks.baseline)
    runs = _Call(asks_runs.runs)
    run = _Call(asks.run)
    explain = _Call(asks.explain)
    cancel = _Call(asks.cancel)
    retry = _Call(asks.retry)
    logs = _Call(asks_runs.logs)
    wait_run = _Call(asks_runs.wait_run)
    result = _Call(asks_runs.result)
    attempts = _Call(asks_runs.attempts)
    attempt = _Call(asks_runs.attempt)
    replay = _Call(asks_runs.replay)
    execute = _Call(asks.execute)
    dead_letters = _Call(asks_runs.dead_letters)
    redrive = _Call(asks_runs.redrive)
    discard = _Call(asks_runs.discard)
    dead_letter_groups = _Call(asks_runs.dead_letter_groups)
    plan_bulk = _Call(asks_runs.plan_bulk)
    bulk = _Call(asks_runs.bulk)
    operations = _Call(asks_runs.operations)
    operation = _Call(asks_runs.operation)
    abort_operation = _Call(asks_runs.abort_operation)
    events = _Call(asks.events)
    audit = _Call(asks_audit.audit)
    audit_seals = _Call(asks_audit.audit_seals)
    plan_backfill = _Call(asks.plan_backfill)
    start_backfill = _Call(asks.start_backfill)
    backfills = _Call(asks.backfills)
    backfill = _Call(asks.backfill)
    pause_backfill = _Call(asks.pause_backfill)
    resume_backfill = _Call(asks.resume_backfill)
    cancel_backfill = _Call(asks.cancel_backfill)
    calendars = _Call(asks.calendars)
    calendar = _Call(asks.calendar)
    put_calendar = _Call(asks.put_calendar)
    delete_calendar = _Call(asks.delete_calendar)
    freezes = _Call(asks.freezes)
    freeze = _Call(asks.freeze)
    create_freeze = _Call(asks.create_freeze)
    patch_freeze = _Call(asks.patch_freeze)
    lift_freeze = _Call(asks.lift_freeze)
    webhooks = _Call(asks_webhooks.webhooks)
    webhook = _Call(asks_webhooks.webhook)
    create_webhook = _Call(asks_webhooks.create_webhook)
    patch_webhook = _Call(asks_webhooks.patch_webhook)
    delete_webhook = _Call(asks_webhooks.delete_webhook)
    rotate_webhook = _Call(asks_webhooks.rotate_webhook)
    test_webhook = _Call(asks_webhooks.test_webhook)
    deliveries = _Call(asks_webhooks.deliveries)
    replay_delivery = _Call(asks_webhooks.replay_delivery)
    execute_http = _Call(asks_webhooks.execute_http)
    workflows = _Call(asks_workflows.workflows)
    job_graph = _Call(asks_workflows.job_graph)
    graph_versions = _Call(asks_workflows.graph_versions)
    graph_difference = _Call(asks_workflows.graph_difference)
    run_graph = _Call(asks_workflows.run_graph)
    run_nodes = _Call(asks_workflows.run_nodes)
    node_why = _Call(asks_workflows.node_why)
    retry_nodes = _Call(asks_workflows.retry_nodes)
    mark_node = _Call(asks_workflows.mark_node)
    signal = _Call(asks_workflows.signal)
    workers = _Call(asks.workers)
    cluster = _Call(asks.cluster)
    tz_moves = _Call(asks.tz_moves)
    forecast = _Call(asks.forecast)
    objective = _Call(asks.objective)
    preview = _Call(asks.preview)
    whoami = _Call(asks_access.whoami)
    limits = _Call(asks_access.limits)
    api_keys = _Call(asks_access.api_keys)
    api_key = _Call(asks_access.api_key)
    create_api_key = _Call(asks_access.create_api_key)
    rotate_api_key = _Call(asks_access.rotate_api_key)
    revoke_api_key = _Call(asks_access.revoke_api_key)
    installation_keys = _Call(asks_access.installation_keys)
    installation_key = _Call(asks_access.installation_key)
    create_installation_key = _Call(asks_access.create_installation_key)
    rotate_installation_key = _Call(asks_access.rotate_installation_key)
    revoke_installation_key = _Call(asks_access.revoke_installation_key)
    own_tenant = _Call(asks_access.own_tenant)
    tenants = _Call(asks_access.tenants)
    tenant = _Call(asks_access.tenant)
    create_tenant = _Call(asks_access.create_tenant)
    patch_tenant = _Call(asks_access.patch_tenant)
    tenant_usage = _Call(asks_access.tenant_usage)
    tasks = _Call(asks_installation.tasks)
    task = _Call(asks_installation.task)
    pools = _Call(asks_installation.pools)
    pool = _Call(asks_installation.pool)
    put_pool = _Call(asks_installation.put_pool)
    worker = _Call(asks_installation.worker)
    quiet_worker = _Call(asks_installation.quiet_worker)
    stop_worker = _Call(asks_installation.stop_worker)
    nodes = _Call(asks_installation.nodes)
    shards = _Call(asks_installation.shards)
    leases = _Call(asks_installation.leases)
    regions = _Call(asks_installation.regions)
    put_regions = _Call(asks_installation.put_regions)
    pulse = _Call(asks_overview.pulse)
    overview = _Call(asks_overview.overview)
    strips = _Call(asks_overview.strips)
    ledger = _Call(asks_overview.ledger)
    job_days = _Call(asks_overview.job_days)
    job_stats = _Call(asks_overview.job_stats)
    run_counts = _Call(asks_overview.run_counts)
    settings = _Call(asks_overview.settings)
    version = _Call(asks.version)
    ready = _Call(asks.ready)
