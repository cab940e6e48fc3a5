"""Builds and runs the processes (server, scheduler, worker) from a Config. All dependencies are wired here."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from bellringer import telemetry, tracing
from bellringer.backend_factory import (
    create_archive,
    create_broker,
    create_cache,
    create_lease_keeper,
    create_time_index,
)
from bellringer.clock import Clock, SystemClock
from bellringer.codecs import load_codec
from bellringer.config import Config, DescribedSetting, load_config
from bellringer.core.background_loops import run_every
from bellringer.core.jobs import HTTP_TASK
from bellringer.core.loop_progress import check_health, loop_role, loops_of_process, write_shared
from bellringer.egress.mail import parse_mail_settings
from bellringer.egress.secret_box import parse_secret_keys
from bellringer.egress.settings import Egress
from bellringer.engine.prune import Retention
from bellringer.engine.tick import TickLimits
from bellringer.errors import BellringerError, Unavailable
from bellringer.metrics_server import ServerMetricsSource, serve_metrics
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.startup import (
    Main,
    build_with_retries,
    compute_pool_size,
    read_connection_capacity,
    retry_until_available,
    run_after,
    run_process,
    run_together,
    run_until_stopped,
)
from bellringer.store.connection_pool import DATABASE_ERRORS, Store, measure_pools
from bellringer.store.interned_names import Catalog
from bellringer.store.keyed_read_connections import MAX_CONNECTIONS, KeyedReads
from bellringer.store.migrate import require_current
from bellringer.store.tenant_scope import open_tenants
from bellringer.store.wakeups import RUNS_CHANNEL, Wakeups, listen
from bellringer.supervise.systemd import SystemdNotifier
from bellringer.telemetry import log
from bellringer.worker.app_loader import LoadedApp
from bellringer.worker.lanes.processes import IsolationSettings
from bellringer.worker.output.echo import CaptureSettings, Echo, echo_to_log
from bellringer.worker.secret_sources import variable_prefixes
from bellringer.worker.service import Observer, Worker, WorkerSettings
from bellringer.worker.work_source import BrokerSource

if TYPE_CHECKING:
    from bellringer.api.app import Api
    from bellringer.core.cache import Cache

MEASURE_SECONDS: Final = 1.0
BLOCKED_LOOP_SECONDS: Final = 10.0  # /healthz reports an event loop that is blocked for longer
STOP_TIMEOUT_SECONDS: Final = 10.0  # added to the grace period before tasks are cancelled
REQUEST_DRAIN_SECONDS: Final = 5  # time for open requests to finish when the server stops
MAX_POOL_CONNECTIONS: Final = 8  # per pool, unless `pool_size` is set
MAX_SCHEDULER_CONNECTIONS: Final = 4  # to fire, to renew leases, and for maintenance
MIN_SCHEDULER_CONNECTIONS: Final = 2  # a bulk operation locks its row with one and works with another
ORPHAN_DRAIN: Final = timedelta(seconds=5)  # grace period of a worker whose supervisor was killed
REDECLARE_SECONDS: Final = 15.0  # how often a worker of a superseded version checks whether it is current again
DEFAULT_POOLS: Final = ("short", "long")
DEFAULT_SLOTS: Final = 50


class Application(LoadedApp, Protocol):
    """The part of an app that a worker process uses."""

    @property
    def dsn(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def is_superseded(self) -> bool: ...

    async def adeclare(self) -> int: ...

    async def aclose(self) -> None: ...


def version() -> str:
    return metadata.version("bellringer")


# Processes


def run_server(
    config: Config,
    listening: socket.socket,
    *,
    with_scheduler: bool = True,
    insecure: bool = False,
    with_parent: bool = False,
    settings: Sequence[DescribedSetting] = (),
    started: Callable[[], None] = lambda: None,
    metrics_listening: socket.socket | None = None,
) -> None:
    """Runs the API and, unless disabled, a scheduler in the same process. `insecure` disables authentication.

    `settings` are shown to administrators. `started` is called once, when the server is about to accept requests.
    `metrics_listening` serves metrics and health checks without a key.
    """
    source = ServerMetricsSource()
    if metrics_listening is not None:
        serve_metrics(metrics_listening, source)

    clock, egress = SystemClock(), Egress.read(config.egress_allow, config.secret_keys)
    notifier = SystemdNotifier.from_environment(os.environ)

    async def build(opened: AsyncExitStack, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        stores = await opened.enter_async_context(_open_stores(config, with_scheduler=with_scheduler))
        store = stores.store
        cache = await create_cache(config, store, clock)
        opened.push_async_callback(cache.close)
        roles = ["api", *(["scheduler"] if with_scheduler else []), *(["http_worker"] if config.http_slots else [])]
        api = await _create_api(config, stores, clock, egress, cache, insecure=insecure, settings=settings, roles=roles)
        source.attach(api)
        scheduler = await _create_scheduler(config, store) if with_scheduler else None
        parts = [_serve(api, listening, stop, config), _measure(stop, "server")]
        if config.http_slots:
            worker = _create_http_worker(config, store, egress)
            parts.append(_run_with_retries(stop, worker.run, "the HTTP worker"))
        if scheduler is not None:
            parts.append(_run_with_retries(stop, scheduler.run, "the scheduler"))
        parts.append(run_until_stopped(stop, listen(store, clock, {RUNS_CHANNEL: api.read_cache.handle_notification})))
        parts.append(run_until_stopped(stop, cache.subscribe(api.streams.feed.heard)))
        parts.append(notifier.report(stop, _stalled_loops))
        return parts

    async def main(stop: asyncio.Event) -> None:
        async with build_with_retries(stop, lambda opened: build(opened, stop), "the server") as parts:
            if parts is not None:
                started()
                await run_together(stop, parts, timeout_seconds=REQUEST_DRAIN_SECONDS + STOP_TIMEOUT_SECONDS)

    _run(config, main, "server", with_parent=with_parent)


async def _create_api(
    config: Config,
    stores: _Stores,
    clock: SystemClock,
    egress: Egress,
    cache: Cache,
    *,
    insecure: bool,
    settings: Sequence[DescribedSetting],
    roles: Sequence[str],
) -> Api:
    from bellringer.api.app import create_app  # noqa: PLC0415 - workers and schedulers do not need it
    from bellringer.api.http.auth import Authenticator  # noqa: PLC0415
    from bellringer.console import Console  # noqa: PLC0415
    from bellringer.console.docs_site import DocsSite  # noqa: PLC0415
    from bellringer.wire.overview import Setting  # noqa: PLC0415

    store = stores.store
    catalog, broker = Catalog(store), await create_broker(config, store)
    return create_app(
        store,
        catalog,
        stores.tenants,
        version=version(),
        clock=clock,
        authenticator=Authenticator(
            store, catalog, _create_auth_settings(config, clock, insecure=insecure), clock, cache
        ),
        wakeups=Wakeups(store, clock),
        replica=stores.replica,
        keyed_reads=stores.lookups,
        egress=egress,
        cache=cache,
        console=Console(),
        guide=DocsSite(config.docs_site) if config.docs_site else None,
        queue_depths=broker.queue_depths() if broker else None,
        settings=[Setting(**setting._asdict()) for setting in settings],
        roles=roles,
        unknown_tasks=config.unknown_tasks,
        idempotency_keys=config.idempotency_keys,
        payload_codec=load_codec(config.payload_codec, config.payload_keys),
        public_url=config.public_url,
        run_retention=config.retention,
    )


def run_scheduler(config: Config, *, with_parent: bool = False) -> None:
    """Runs a scheduler without an API. All schedulers of an installation share the shards."""
    notifier = SystemdNotifier.from_environment(os.environ)

    async def build(opened: AsyncExitStack) -> Scheduler:
        at_most = {"most": MAX_SCHEDULER_CONNECTIONS, "least": MIN_SCHEDULER_CONNECTIONS}
        store = await opened.enter_async_context(_open_store(config, "bellringer scheduler", **at_most))
        return await _create_scheduler(config, store)

    async def main(stop: asyncio.Event) -> None:
        async with build_with_retries(stop, build, "the scheduler") as scheduler:
            if scheduler is not None:
                await run_together(
                    stop,
                    [
                        _run_with_retries(stop, scheduler.run, "the scheduler"),
                        _measure(stop, "scheduler"),
                        notifier.report(stop, _stalled_loops),
                    ],
                    timeout_seconds=STOP_TIMEOUT_SECONDS,
                )

    _run(config, main, "scheduler", with_parent=with_parent)


def run_worker(
    app: Application,
    *,
    pools: Mapping[str, int] | None = None,
    slots: int | None = None,
    config: Config | None = None,
    target: str | None = None,
    observer: Observer | None = None,
    echo: Echo = echo_to_log,
    joined: Callable[[Store], Awaitable[None]] | None = None,
    with_parent: bool = False,
    is_supervised: bool = False,
) -> None:
    """Declares the app's schedules, then executes runs. Child processes import the app from `target`.

    `echo` writes the output of handlers to the worker's own stream, unless the settings turn it off.
    With `is_supervised`, the parent does not own the database: if the parent is killed, this worker drains briefly.
    """
    config = config or load_config(environ=os.environ)
    # Handlers send to the app's database, so the worker uses the same one.
    config = msgspec.structs.replace(config, dsn=app.dsn)
    served = pools_to_serve(app, pools or {}, slots)
    workers: list[Worker] = []
    notifier = SystemdNotifier.from_environment(os.environ)

    def drain_as_orphan() -> float:
        log.warning("the supervisor of this worker was killed; stopping")
        for worker in workers:
            worker.shorten_grace(ORPHAN_DRAIN)
        return ORPHAN_DRAIN.total_seconds() + STOP_TIMEOUT_SECONDS

    async def build(opened: AsyncExitStack) -> tuple[Store, Worker]:
        store = await opened.enter_async_context(_open_store(config, "bellringer worker", most=MAX_POOL_CONNECTIONS))
        await app.adeclare()
        await app.aclose()  # the app reconnects when a handler sends
        catalog = Catalog(store)
        tenants = await catalog.tenant_names([await catalog.tenant_id(app.tenant)])
        settings = replace(_worker_settings(config), pools=served, target=target, observer=observer, tenants=tenants)
        if config.echo_output:
            settings = replace(settings, echo=echo)
        broker = await create_broker(config, store)
        return store, Worker(
            store, app.registry, SystemClock(), settings, BrokerSource(store, broker) if broker else None
        )

    async def main(stop: asyncio.Event) -> None:
        async with build_with_retries(stop, build, "the worker") as made:
            if made is not None:
                store, worker = made
                workers.append(worker)
                parts = [
                    _run_with_retries(stop, worker.run, "the worker"),
                    run_until_stopped(stop, declare_when_current(app)),
                    _measure(stop, "worker"),
                    notifier.report(stop, _stalled_loops, ready=worker.started),
                ]
                if joined:
                    tell = partial(retry_until_available, stop, partial(joined, store), "the worker")
                    parts.append(run_after(worker.started, stop, tell))
                await run_together(stop, parts, timeout_seconds=config.grace.total_seconds() + STOP_TIMEOUT_SECONDS)
        await app.aclose()

    _run(config, main, "worker", with_parent=with_parent, on_orphaned=drain_as_orphan if is_supervised else None)


def _worker_settings(config: Config) -> WorkerSettings:
    return WorkerSettings(
        pools={},
        name=config.name or "",
        version=version(),
        grace=config.grace,
        block_limit=config.block_limit,
        isolation=IsolationSettings(
            shared=config.isolated_sharing,
            with_dsn=config.isolated_dsn,
            memory=config.isolated_memory << 20,
            secret_prefixes=variable_prefixes(config.secret_sources),
        ),
        capture=CaptureSettings(level=config.capture_level) if config.capture_output else None,
        secret_sources=config.secret_sources,
        secret_box=parse_secret_keys(config.secret_keys),
        codec=load_codec(config.payload_codec, config.payload_keys),
    )


async def declare_when_current(app: Application) -> None:
    """Declares the app again and again while a newer version of it is current: an operator may roll back to this
    version after its workers have started.
    """
    while app.is_superseded:
        await asyncio.sleep(REDECLARE_SECONDS)
        try:
            await app.adeclare()
        except (BellringerError, *DATABASE_ERRORS) as error:
            log.warning("the app could not declare its jobs; it tries again", error=str(error))
    await asyncio.Event().wait()  # a part that ends would stop the worker


def pools_to_serve(app: LoadedApp, given: Mapping[str, int], slots: int | None) -> dict[str, int]:
    """Returns the given pools, or else the default pools and the pools of the app's tasks, with their slots."""
    if given:
        return dict(given)
    tasks = [app.registry.get(name) for name in app.registry.names()]
    named = sorted({task.pool for task in tasks if task is not None and task.pool})
    return dict.fromkeys((*DEFAULT_POOLS, *named), slots or DEFAULT_SLOTS)


# Parts


def _stalled_loops() -> Sequence[str]:
    """Returns the names of the loops of this process that do not progress."""
    return list(check_health(loops_of_process())[1].get("checks", ()))


async def _run_with_retries(stop: asyncio.Event, work: Callable[[asyncio.Event], Awaitable[None]], what: str) -> None:
    """Runs `work` until `stop` is set, and repeats it while the database is unavailable."""
    await retry_until_available(stop, partial(work, stop), what)


async def _measure(stop: asyncio.Event, role: str) -> None:
    """Measures this process once a second. A loop that does nothing else stalls only if the event loop is blocked."""
    loop_role.set(role)

    async def step() -> None:
        measure_pools()
        write_shared()

    await run_until_stopped(stop, run_every(MEASURE_SECONDS, step, name="measure", step_seconds=BLOCKED_LOOP_SECONDS))


@asynccontextmanager
async def _open_store(config: Config, name: str, *, most: int, least: int = 1) -> AsyncIterator[Store]:
    """Opens a connection pool; raises SchemaMismatch if the database has another schema version."""
    dsn = config.require_dsn()
    size = config.pool_size or compute_pool_size(await read_connection_capacity(dsn, name), most=most, least=least)
    store = await Store.open(dsn, size=size, name=name, direct_dsn=config.direct_dsn)
    try:
        async with store.pool.acquire() as connection:
            await require_current(connection)
        yield store
    finally:
        await store.close()


@dataclass(frozen=True, slots=True)
class _Stores:
    """The connection pools of the API: `store` uses the owner's role, `tenants` is restricted to one tenant at a time,
    `lookups` batches reads by key.
    """

    store: Store
    tenants: Store
    lookups: KeyedReads
    replica: Store | None


@asynccontextmanager
async def _open_stores(config: Config, *, with_scheduler: bool) -> AsyncIterator[_Stores]:
    dsn, least = config.require_dsn(), MIN_SCHEDULER_CONNECTIONS if with_scheduler else 1
    size = config.pool_size or compute_pool_size(
        await read_connection_capacity(dsn, "bellringer api"), most=MAX_POOL_CONNECTIONS
    )
    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(
            _open_store(config, "bellringer server", most=MAX_POOL_CONNECTIONS, least=least)
        )
        tenants = await open_tenants(dsn, size=size, name="bellringer api", direct_dsn=config.direct_dsn)
        opened.push_async_callback(tenants.close)
        lookups = KeyedReads(tenants, min(size, MAX_CONNECTIONS))
        opened.push_async_callback(lookups.close)
        replica = await _open_replica(config)
        if replica is not None:
            opened.push_async_callback(replica.close)
        yield _Stores(store, tenants, lookups, replica)


async def _create_scheduler(config: Config, store: Store) -> Scheduler:
    settings = SchedulerSettings(
        name=config.name or "",
        version=version(),
        pace=TickLimits(lead=config.lead, grace=config.misfire_grace),
        retention=Retention(
            runs=config.retention,
            dead_letters=config.dead_retention,
            audit=config.audit_retention,
            jobs=config.job_retention,
        ),
        lease=config.lease,
        region=config.region,
        archive=create_archive(config),
        heartbeat_url=config.heartbeat_url,
        heartbeat_interval=config.heartbeat_interval,
    )
    clock = SystemClock()
    broker, index = await create_broker(config, store), await create_time_index(config, store, clock)
    return Scheduler(store, await create_lease_keeper(config, store), clock, settings, broker, index)


def _create_http_worker(config: Config, store: Store, egress: Egress) -> Worker:
    """Returns the worker in a server that calls HTTP targets. A call may take 30 s. A stopping server does not wait
    that long: it returns the run, and another server repeats the call with the same id.
    """
    from bellringer.worker.built_in_tasks import http_registry  # noqa: PLC0415 - workers and schedulers do not need it

    clock = SystemClock()
    settings = WorkerSettings(
        pools={HTTP_TASK: config.http_slots},
        name=f"{config.name or f'{socket.gethostname()}-{os.getpid()}'}-http",
        version=version(),
        grace=min(config.grace, timedelta(seconds=REQUEST_DRAIN_SECONDS)),
        processes=0,
        secret_sources=config.secret_sources,
        secret_box=egress.box,
    )
    tasks = http_registry(
        store,
        egress,
        clock,
        mail=parse_mail_settings(config.smtp_url, config.smtp_from),
        public_url=config.public_url,
    )
    return Worker(store, tasks, clock, settings)


def _create_auth_settings(config: Config, clock: Clock, *, insecure: bool) -> Any:
    """Returns which requests need credentials, and which credentials are accepted."""
    from bellringer.access.jwt_tokens import TokenRules, make_token_verifier  # noqa: PLC0415
    from bellringer.api.http.auth import AuthSettings  # noqa: PLC0415 - workers and schedulers do not need it

    tokens = None
    if config.jwt_issuer and config.jwt_audience:
        claims = {"tenant_claim": config.jwt_tenant_claim, "role_claim": config.jwt_role_claim}
        rules = TokenRules(issuer=config.jwt_issuer, audience=config.jwt_audience, **claims)
        tokens = make_token_verifier(rules, clock, secret=config.jwt_secret, jwks=config.jwt_jwks)
    open_to: Any = "anyone" if insecure else "here" if config.auth == "none" else "nobody"
    return AuthSettings(open_to=open_to, root_key=config.root_key, tokens=tokens)


def _address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(api: Any, listening: socket.socket, stop: asyncio.Event, config: Config) -> None:
    import uvicorn  # noqa: PLC0415 - workers and schedulers do not need it
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415

    from bellringer.api.http.connection_limits import MAX_HEAD_BYTES, limit_send_buffer, with_connection_limits  # noqa: PLC0415
    from bellringer.api.trusted_proxies import behind_proxies  # noqa: PLC0415

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # `run_process` handles signals

    limit_send_buffer(listening)
    proxies = config.trusted_proxies
    settings = uvicorn.Config(
        behind_proxies(api, proxies),
        http=with_connection_limits(AutoHTTPProtocol, proxies, max_per_address=config.connections_per_address),
        lifespan="off",
        ws="none",  # an upgraded connection would bypass the connection limits
        h11_max_incomplete_event_size=2 * MAX_HEAD_BYTES,  # the connection limits apply first
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `behind_proxies` reads them
        timeout_graceful_shutdown=REQUEST_DRAIN_SECONDS,
    )
    server = Server(settings)

    async def end() -> None:
        await stop.wait()
        api.streams.close()  # open streams would delay the shutdown
        server.should_exit = True

    ending = asyncio.create_task(end())
    log.info("server listens", address=_address_of(listening), console=f"{_address_of(listening)}/console/")
    try:
        await server.serve(sockets=[listening])
    except SystemExit:  # raised by uvicorn if it cannot start
        raise Unavailable("the API did not start", hint="see the log lines above") from None
    finally:
        ending.cancel()
    if not server.started:
        raise Unavailable("the API did not start", hint="see the log lines above")


async def _open_replica(config: Config) -> Store | None:
    """Opens the replica that serves lists, or returns None if there is none or it does not respond."""
    if config.read_dsn is None:
        return None
    try:
        return await open_tenants(
            config.read_dsn, size=config.pool_size or MAX_POOL_CONNECTIONS, name="bellringer api reads"
        )
    except Unavailable as error:
        log.warning("replica does not respond; reading lists from the primary", error=error.message)
        return None


def _run(
    config: Config,
    main: Main,
    role: str,
    *,
    with_parent: bool,
    on_orphaned: Callable[[], float] | None = None,
) -> None:
    telemetry.configure(config.log, config.log_level, log_attempts=config.log_attempts)
    if config.tracing == "on":
        tracing.enable(f"bellringer-{role}")
    try:
        run_process(main, with_parent=with_parent, on_orphaned=on_orphaned)
    finally:
        tracing.disable()
