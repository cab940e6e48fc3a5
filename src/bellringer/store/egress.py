"""Encrypted secrets of HTTP targets, and circuit breakers of called origins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("egress")

MAX_FAILURES: Final = 5
INITIAL_OPEN_TIME: Final = timedelta(seconds=30)
MAX_OPEN_TIME: Final = timedelta(minutes=10)
SECRET_OVERLAP: Final = timedelta(hours=24)  # how long a replaced secret still signs
PROBE_TIMEOUT: Final = timedelta(seconds=45)  # longer than any call
MAX_REASON_CHARACTERS: Final = 300


async def add_secret(
    store: Store,
    tenant_id: int,
    secret_id: str,
    key_id: str,
    sealed: bytes,
    keyed_hash: bytes | None = None,
    needed_until: datetime | None = None,
) -> str:
    """Stores a secret; returns its id, or the id of the secret with the same keyed hash."""
    kept: str | None = None
    while kept is None:  # a concurrent request stored it: the next statement sees its row
        kept = await store.pool.fetchval(
            _SQL.store_secret, tenant_id, secret_id, key_id, sealed, keyed_hash, needed_until
        )
    return kept


async def rotate_secret(store: Store, tenant_id: int, secret_id: str, key_id: str, sealed: bytes) -> bool:
    """Replaces a secret; the previous one also signs for a day. Returns False if there is no such secret."""
    done = await store.pool.execute(_SQL.rotate_secret, tenant_id, secret_id, key_id, sealed, SECRET_OVERLAP)
    return done == "UPDATE 1"


async def load_secret(store: Store, tenant_id: int, secret_id: str) -> list[tuple[str, bytes]]:
    """Returns (key id, encrypted bytes) of the present secret and, while it still signs, of the previous one."""
    row = await store.pool.fetchrow(_SQL.secret, tenant_id, secret_id)
    if row is None:
        return []
    kept = [(row["key_id"], row["sealed"])]
    return kept if row["previous"] is None else [*kept, (row["previous_key_id"], row["previous"])]


async def has_secret(store: Store, tenant_id: int, secret_id: str) -> bool:
    found: bool = await store.pool.fetchval(_SQL.has_secret, tenant_id, secret_id)
    return found


async def drop_secret(store: Store, tenant_id: int, secret_id: str) -> None:
    await store.pool.execute(_SQL.delete_secret, tenant_id, secret_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRow:
    """The circuit breaker of an origin with failures; `probe_at` is when a call may try the origin again."""

    state: str
    failures: int
    opened_at: datetime | None
    probe_at: datetime | None
    reason: str
    now: datetime


async def load_breaker(store: Store, tenant_id: int, origin: str) -> BreakerRow | None:
    """Returns the breaker of an origin; None if its calls succeed."""
    row = await store.pool.fetchrow(_SQL.breaker, tenant_id, origin)
    return None if row is None else BreakerRow(**dict(row))


async def claim_probe(store: Store, tenant_id: int, origin: str, seen: datetime) -> datetime | None:
    """Claims the single trial call, if `probe_at` is still `seen`; returns the id of this probe."""
    mine: datetime | None = await store.pool.fetchval(_SQL.probe, tenant_id, origin, seen, PROBE_TIMEOUT)
    return mine


async def record_failure(store: Store, tenant_id: int, origin: str, probe_at: datetime | None, reason: str) -> bool:
    """Counts a failed call, or reopens the breaker after a failed probe; returns whether the breaker is open."""
    state: str | None = await store.pool.fetchval(
        _SQL.failed,
        tenant_id,
        origin,
        probe_at,
        MAX_FAILURES,
        INITIAL_OPEN_TIME,
        MAX_OPEN_TIME,
        reason[:MAX_REASON_CHARACTERS],
    )
    return state == "open"


async def record_success(store: Store, tenant_id: int, origin: str, probe_at: datetime | None) -> None:
    """Records a successful call."""
    await store.pool.execute(_SQL.succeeded, tenant_id, origin, probe_at)


async def prune_breakers(store: Store, before: datetime) -> None:
    """Deletes breakers of origins that were not called since."""
    await store.pool.execute(_SQL.delete_breakers, before)


async def prune_secrets(store: Store, before: datetime) -> None:
    """Deletes secrets that nothing has referred to since."""
    await store.pool.execute(_SQL.delete_secrets, before)


async def is_endpoint_enabled(store: Store, tenant_id: int, endpoint_id: int) -> bool:
    """Whether this webhook endpoint exists and is enabled."""
    is_enabled: bool = await store.pool.fetchval(_SQL.is_endpoint_enabled, tenant_id, endpoint_id)
    return is_enabled


async def disable_endpoint(store: Store, tenant_id: int, endpoint_id: int, reason: str) -> bool:
    """Disables a webhook endpoint; returns False if it was disabled before."""
    done = await store.pool.execute(_SQL.disable_endpoint, tenant_id, endpoint_id, reason)
    return done == "UPDATE 1"
