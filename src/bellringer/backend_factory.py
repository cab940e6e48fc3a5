"""Creates the backends that a Config selects. A backend is imported only here, and only if it is selected."""

from __future__ import annotations

from bellringer.clock import Clock
from bellringer.config import Config
from bellringer.core.archive import ObjectStore
from bellringer.core.broker import BrokerBackend
from bellringer.core.cache import Cache, ProcessCache
from bellringer.core.leases import LeaseKeeper
from bellringer.core.time_index import TimeIndex
from bellringer.errors import ConfigError
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leader import LeaderLeases
from bellringer.store.leases import PostgresLeases


async def create_broker(config: Config, store: Store) -> BrokerBackend | None:
    """Returns the message broker for dispatch, or None if workers claim runs from the database."""
    if config.dispatch == "postgresql":
        return None
    try:
        from bellringer.backends.kafka.backend import KafkaBackend  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra_error("kafka", error) from None
    return KafkaBackend(config.dispatch, await Catalog(store).installation_name())


async def create_lease_keeper(config: Config, store: Store) -> LeaseKeeper:
    """Returns the lease backend for shards: PostgreSQL rows, an elected leader, or etcd."""
    rows = PostgresLeases(store, config.lease)
    if config.coordination == "postgresql":
        return rows
    if config.coordination == "leader":
        return LeaderLeases(store, config.lease)
    from bellringer.backends.etcd import EtcdLeases  # noqa: PLC0415
    from bellringer.backends.etcd_address import EtcdAddress  # noqa: PLC0415

    return EtcdLeases(
        rows, EtcdAddress.read(config.coordination, await Catalog(store).installation_name()), config.lease
    )


async def create_cache(config: Config, store: Store, clock: Clock) -> Cache:
    """Returns the cache of the API: in this process, or shared in Redis. An unreachable Redis is retried later."""
    if config.cache is None:
        return ProcessCache(clock)
    try:
        from bellringer.backends.redis.cache import RedisCache  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra_error("redis", error) from None
    cache = RedisCache(config.cache, await Catalog(store).signing_secret(), clock)
    await cache.open()
    return cache


async def create_time_index(config: Config, store: Store, clock: Clock) -> TimeIndex | None:
    """Returns the index of upcoming due times that schedulers share in Redis, or None."""
    if config.time_index == "process":
        return None
    if config.cache is None:
        raise ConfigError(
            "time_index is redis, but cache is not set", hint="set cache to an address such as redis://host:6379/0"
        )
    try:
        from bellringer.backends.redis.time_index import RedisIndex  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra_error("redis", error) from None
    index = RedisIndex(config.cache, await Catalog(store).signing_secret(), clock)
    await index.open()
    return index


def create_archive(config: Config) -> ObjectStore | None:
    """Returns the archive of runs past retention; None if these runs are only deleted."""
    if config.archive is None:
        return None
    try:
        from bellringer.backends.object_store import ObstoreObjects  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra_error("archive", error) from None
    return ObstoreObjects(config.archive)


def missing_extra_error(extra: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"{error.name} is not installed", hint=f"pip install 'bellringer[{extra}]'")
