"""The engines that a Config chooses. Each is one file, imported only here and only when it is chosen."""

from __future__ import annotations

from bellringer.cache import Cache, ProcessCache
from bellringer.clock import Clock
from bellringer.config import Config
from bellringer.dispatch import Post
from bellringer.errors import ConfigError
from bellringer.leases import LeaseKeeper
from bellringer.scheduler.wheel import TimeIndex
from bellringer.store.leader import LeaderLeases
from bellringer.store.leases import PostgresLeases
from bellringer.store.names import Names
from bellringer.store.pool import Store


async def post_of(config: Config, store: Store) -> Post | None:
    """What brings work to the workers; None: they fetch it themselves, from the database."""
    if config.dispatch == "postgresql":
        return None
    try:
        from bellringer.engines.kafka import KafkaPost  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing("kafka", error) from None
    return KafkaPost(config.dispatch, await Names(store).installation())


async def keeper_of(config: Config, store: Store) -> LeaseKeeper:
    """Who grants the shards: the database, one of the nodes for all, or etcd."""
    rows = PostgresLeases(store, config.lease)
    if config.coordination == "postgresql":
        return rows
    if config.coordination == "leader":
        return LeaderLeases(store, config.lease)
    from bellringer.engines.etcd import Address, EtcdLeases  # noqa: PLC0415

    return EtcdLeases(rows, Address.read(config.coordination, await Names(store).installation()), config.lease)


async def cache_of(config: Config, store: Store, clock: Clock) -> Cache:
    """What the API keeps: by itself, or shared with the other processes. A Redis that is away is tried again later."""
    if config.cache is None:
        return ProcessCache(clock)
    try:
        from bellringer.engines.redis import RedisCache  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing("redis", error) from None
    cache = RedisCache(config.cache, await Names(store).secret(), clock)
    await cache.open()
    return cache


async def index_of(config: Config, store: Store, clock: Clock) -> TimeIndex | None:
    """Where a scheduler keeps what strikes soon, beside its own memory."""
    if config.time_index == "process":
        return None
    if config.cache is None:
        raise ConfigError("time_index is redis, and no Redis is named", hint="set cache to redis://host:6379/0")
    try:
        from bellringer.engines.redis_index import RedisIndex  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing("redis", error) from None
    index = RedisIndex(config.cache, await Names(store).secret(), clock)
    await index.open()
    return index


def missing(extra: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"{error.name} is not installed", hint=f"pip install 'bellringer[{extra}]'")
