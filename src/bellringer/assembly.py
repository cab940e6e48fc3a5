"""The only wiring: a Config in, running processes out. Nothing below knows where its parts come from."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from bellringer import telemetry
from bellringer.chosen import cache_of, index_of, keeper_of, post_of
from bellringer.clock import Clock, SystemClock
from bellringer.config import Config, Described, load
from bellringer.egress.settings import Egress
from bellringer.errors import Unavailable
from bellringer.jobs import HTTP
from bellringer.lifecycle.prune import Retention
from bellringer.lifecycle.tick import Pace
from bellringer.running import Main, meanwhile, once, run, together
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.lookups import Lookups
from bellringer.store.migrate import require_current
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import open_tenants
from bellringer.store.wakeups import RUNS, Wakeups, hear
from bellringer.telemetry import log
from bellringer.worker.service import Observer, Worker, WorkerSettings
from bellringer.worker.sources import Messages
from bellringer.worker.target import Target

if TYPE_CHECKING:
    from bellringer.api.app import Api
    from bellringer.cache import Cache

PATIENCE: Final = 10.0  # seconds beyond its grace that a process may take to stop
CONNECTIONS_END: Final = 5  # seconds that open requests get when the server stops
DEFAULT_POOLS: Final = ("short", "long")
DEFAULT_SLOTS: Final = 50


class Application(Target, Protocol):
    """What a worker process needs of an app."""

    @property
    def dsn(self) -> str: ...

    @property
    def tenant(self) -> str: ...

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
    settings: Sequence[Described] = (),
) -> None:
    """The API, and a scheduler in the same process unless it runs elsewhere. `insecure`: nobody has to log in.

    `settings` are what administrators are told of the config.
    """

    async def main(stop: asyncio.Event) -> None:
        async with _opened(config, "bellringer server") as store, _stores(config, store) as stores:
            clock, egress = SystemClock(), Egress.read(config.egress_allow, config.secret_keys)
            cache = await cache_of(config, store, clock)
            api = await _api(config, stores, clock, egress, cache, insecure=insecure, settings=settings)
            parts = [_serve(api, listening, stop, config)]
            if config.http_slots:
                parts.append(_http_worker(config, store, egress).run(stop))
            if with_scheduler:
                parts.append((await _scheduler(config, store)).run(stop))
            parts.append(meanwhile(stop, hear(store, clock, {RUNS: api.desk.heard})))
            parts.append(meanwhile(stop, cache.listen(api.streams.feed.heard)))
            await together(stop, parts, patience=CONNECTIONS_END + PATIENCE)
            await cache.close()

    _run(config, main, with_parent=with_parent)


async def _api(
    config: Config,
    stores: _Stores,
    clock: SystemClock,
    egress: Egress,
    cache: Cache,
    *,
    insecure: bool,
    settings: Sequence[Described],
) -> Api:
    """The API over its connections."""
    from bellringer.api.app import create_app  # noqa: PLC0415 - workers and schedulers do without
    from bellringer.api.door import Door  # noqa: PLC0415
    from bellringer.console import Console  # noqa: PLC0415
    from bellringer.wire.overview import Setting  # noqa: PLC0415

    store = stores.store
    names, post = Names(store), await post_of(config, store)
    return create_app(
        store,
        names,
        stores.tenants,
        version=version(),
        clock=clock,
        door=Door(store, names, _door(config, clock, insecure=insecure), clock, cache),
        wakeups=Wakeups(store, clock),
        replica=stores.replica,
        lookups=stores.lookups,
        egress=egress,
        cache=cache,
        console=Console(),
        unread=post.unread() if post else None,
        settings=[Setting(**setting._asdict()) for setting in settings],
    )


def run_scheduler(config: Config, *, with_parent: bool = False) -> None:
    """A scheduler alone: one more node that shares the shards."""

    async def main(stop: asyncio.Event) -> None:
        async with _opened(config, "bellringer scheduler") as store:
            scheduler = await _scheduler(config, store)
            await together(stop, [scheduler.run(stop)], patience=PATIENCE)

    _run(config, main, with_parent=with_parent)


def run_worker(
    app: Application,
    *,
    pools: Mapping[str, int] | None = None,
    slots: int | None = None,
    config: Config | None = None,
    target: str | None = None,
    observer: Observer | None = None,
    joined: Callable[[Store], Awaitable[None]] | None = None,
    with_parent: bool = False,
) -> None:
    """Declare the app's schedules, then work. `target` is where processes of their own find the app again."""
    config = config or load(environ=os.environ)
    # Its handlers send to the database that the app names, so that is the one to work on.
    config = msgspec.structs.replace(config, dsn=app.dsn)
    served = pools_of(app, pools or {}, slots)

    async def main(stop: asyncio.Event) -> None:
        async with _opened(config, "bellringer worker") as store:
            await app.adeclare()
            names = Names(store)
            settings = WorkerSettings(
                pools=served,
                name=config.name or "",
                version=version(),
                grace=config.grace,
                target=target,
                observer=observer,
                tenants=await names.tenant_names([await names.tenant_id(app.tenant)]),
            )
            post = await post_of(config, store)
            worker = Worker(store, app.registry, SystemClock(), settings, Messages(store, post) if post else None)
            parts = [worker.run(stop)]
            if joined:
                parts.append(once(worker.started, stop, lambda: joined(store)))
            await together(stop, parts, patience=config.grace.total_seconds() + PATIENCE)
        await app.aclose()

    _run(config, main, with_parent=with_parent)


def pools_of(app: Target, given: Mapping[str, int], slots: int | None) -> dict[str, int]:
    """The pools that a worker serves: those that were named, or the usual ones and those of its tasks."""
    if given:
        return dict(given)
    tasks = [app.registry.get(name) for name in app.registry.names()]
    named = sorted({task.pool for task in tasks if task is not None and task.pool})
    return dict.fromkeys((*DEFAULT_POOLS, *named), slots or DEFAULT_SLOTS)


# Parts


@asynccontextmanager
async def _opened(config: Config, name: str) -> AsyncIterator[Store]:
    """The database, if its schema is this program's."""
    store = await Store.open(config.require_dsn(), size=config.pool_size, name=name)
    try:
        async with store.pool.acquire() as connection:
            await require_current(connection)
        yield store
    finally:
        await store.close()


@dataclass(frozen=True, slots=True)
class _Stores:
    """The API's connections: the owner's, those that serve tenants, those that look up by key for them, and a replica's
    if there is one."""

    store: Store
    tenants: Store
    lookups: Lookups
    replica: Store | None


@asynccontextmanager
async def _stores(config: Config, store: Store) -> AsyncIterator[_Stores]:
    async with AsyncExitStack() as opened:
        tenants = await open_tenants(config.require_dsn(), size=config.pool_size, name="bellringer api")
        opened.push_async_callback(tenants.close)
        lookups = Lookups(tenants)
        opened.push_async_callback(lookups.close)
        replica = await _replica(config)
        if replica is not None:
            opened.push_async_callback(replica.close)
        yield _Stores(store, tenants, lookups, replica)


async def _scheduler(config: Config, store: Store) -> Scheduler:
    settings = SchedulerSettings(
        name=config.name or "",
        version=version(),
        pace=Pace(lead=config.lead, grace=config.misfire_grace),
        retention=Retention(runs=config.retention, dead_letters=config.dead_retention, audit=config.audit_retention),
        lease=config.lease,
        region=config.region,
    )
    clock = SystemClock()
    post, index = await post_of(config, store), await index_of(config, store, clock)
    return Scheduler(store, await keeper_of(config, store), clock, settings, post, index)


def _http_worker(config: Config, store: Store, egress: Egress) -> Worker:
    """A worker inside of a server, which knows the built-in task alone. What it calls may take 30 s; a stop does not
    wait so long: the run is given back, and called again with the same id.
    """
    from bellringer.worker.http import registry  # noqa: PLC0415 - workers and schedulers do without

    clock = SystemClock()
    settings = WorkerSettings(
        pools={HTTP: config.http_slots},
        name=f"{config.name or f'{socket.gethostname()}-{os.getpid()}'}-http",
        version=version(),
        grace=min(config.grace, timedelta(seconds=CONNECTIONS_END)),
        processes=0,
    )
    return Worker(store, registry(store, egress, clock), clock, settings)


def _door(config: Config, clock: Clock, *, insecure: bool) -> Any:
    """Who has to log in, and by what."""
    from bellringer.access.tokens import Rules, tokens_by  # noqa: PLC0415
    from bellringer.api.door import Settings  # noqa: PLC0415 - workers and schedulers do without

    tokens = None
    if config.jwt_issuer and config.jwt_audience:
        claims = {"tenant_claim": config.jwt_tenant_claim, "role_claim": config.jwt_role_claim}
        rules = Rules(issuer=config.jwt_issuer, audience=config.jwt_audience, **claims)
        tokens = tokens_by(rules, clock, secret=config.jwt_secret, jwks=config.jwt_jwks)
    open_to: Any = "anyone" if insecure else "here" if config.auth == "none" else "nobody"
    return Settings(open_to=open_to, root_key=config.root_key, tokens=tokens)


async def _serve(api: Any, listening: socket.socket, stop: asyncio.Event, config: Config) -> None:
    import uvicorn  # noqa: PLC0415 - workers and schedulers do without
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415

    from bellringer.api.protocol import HEAD_LIMIT, be_sparing, guarded  # noqa: PLC0415

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # signals are ours

    be_sparing(listening)
    proxies = config.trusted_proxies
    settings = uvicorn.Config(
        api,
        http=guarded(AutoHTTPProtocol, proxies, most_of_one=config.connections_per_address),
        lifespan="off",
        ws="none",  # an upgraded connection would leave the guard behind
        h11_max_incomplete_event_size=2 * HEAD_LIMIT,  # the guard is first
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),  # else anyone could say where it comes from
        forwarded_allow_ips=list(proxies),
        timeout_graceful_shutdown=CONNECTIONS_END,
    )
    server = Server(settings)

    async def end() -> None:
        await stop.wait()
        api.streams.close()  # they would be waited for
        server.should_exit = True

    ending = asyncio.create_task(end())
    try:
        await server.serve(sockets=[listening])
    except SystemExit:  # uvicorn's way to say that it could not start
        raise Unavailable("the API did not start", hint="the lines above say why") from None
    finally:
        ending.cancel()
    if not server.started:
        raise Unavailable("the API did not start", hint="the lines above say why")


async def _replica(config: Config) -> Store | None:
    """Where lists are read from; a server does without one that is not there when it starts."""
    if config.read_dsn is None:
        return None
    try:
        return await open_tenants(config.read_dsn, size=config.pool_size, name="bellringer api reads")
    except Unavailable as error:
        log.warning("the replica does not answer; lists come from the primary", error=error.message)
        return None


def _run(config: Config, main: Main, *, with_parent: bool) -> None:
    telemetry.configure(config.log, config.log_level)
    run(main, with_parent=with_parent)
