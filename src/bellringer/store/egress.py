"""Secrets of those who are called, sealed; and the breakers that spare a receiver in trouble."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("egress")

MOST_FAILURES: Final = 5
REST: Final = timedelta(seconds=30)
LONGEST_REST: Final = timedelta(minutes=10)
OVERLAP: Final = timedelta(hours=24)  # for which a replaced secret still signs
PROBE: Final = timedelta(seconds=45)  # more than the longest call
LONGEST_REASON: Final = 300


async def keep_secret(
    store: Store,
    tenant_id: int,
    secret_id: str,
    key_id: str,
    sealed: bytes,
    mark: bytes | None = None,
    needed_until: datetime | None = None,
) -> str:
    """Keep it; answers its id, or that of the one that has this mark already."""
    kept: str | None = None
    while kept is None:  # another has kept it this moment: a new statement sees it
        kept = await store.pool.fetchval(_SQL.keep_secret, tenant_id, secret_id, key_id, sealed, mark, needed_until)
    return kept


async def rotate_secret(store: Store, tenant_id: int, secret_id: str, key_id: str, sealed: bytes) -> bool:
    """Replace a secret; the one before signs along for a day. False: there is none."""
    done = await store.pool.execute(_SQL.rotate_secret, tenant_id, secret_id, key_id, sealed, OVERLAP)
    return done == "UPDATE 1"


async def secret(store: Store, tenant_id: int, secret_id: str) -> list[tuple[str, bytes]]:
    """The present secret and, while it still signs, the one before: key and sealed bytes of each."""
    row = await store.pool.fetchrow(_SQL.secret, tenant_id, secret_id)
    if row is None:
        return []
    kept = [(row["key_id"], row["sealed"])]
    return kept if row["previous"] is None else [*kept, (row["previous_key_id"], row["previous"])]


async def has_secret(store: Store, tenant_id: int, secret_id: str) -> bool:
    found: bool = await store.pool.fetchval(_SQL.has_secret, tenant_id, secret_id)
    return found


async def drop_secret(store: Store, tenant_id: int, secret_id: str) -> None:
    await store.pool.execute(_SQL.drop_secret, tenant_id, secret_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """An origin that has trouble, as it was `now`; `probe_at` says when a call may try it again."""

    state: str
    failures: int
    opened_at: datetime | None
    probe_at: datetime | None
    reason: str
    now: datetime


async def breaker(store: Store, tenant_id: int, origin: str) -> Breaker | None:
    """None: all is well."""
    row = await store.pool.fetchrow(_SQL.breaker, tenant_id, origin)
    return None if row is None else Breaker(**dict(row))


async def probe(store: Store, tenant_id: int, origin: str, seen: datetime) -> datetime | None:
    """Become the one call that tries, if `probe_at` is still what was seen; answers what names this probe."""
    mine: datetime | None = await store.pool.fetchval(_SQL.probe, tenant_id, origin, seen, PROBE)
    return mine


async def failed(store: Store, tenant_id: int, origin: str, probe_at: datetime | None, reason: str) -> bool:
    """A call failed: count it, or open again after a probe. True: it is open now."""
    state: str | None = await store.pool.fetchval(
        _SQL.failed, tenant_id, origin, probe_at, MOST_FAILURES, REST, LONGEST_REST, reason[:LONGEST_REASON]
    )
    return state == "open"


async def worked(store: Store, tenant_id: int, origin: str, probe_at: datetime | None) -> None:
    """A call came back well."""
    await store.pool.execute(_SQL.worked, tenant_id, origin, probe_at)


async def forget(store: Store, before: datetime) -> None:
    """Breakers of origins that nobody has called since."""
    await store.pool.execute(_SQL.forget, before)


async def forget_secrets(store: Store, before: datetime) -> None:
    """Secrets that nothing has referred to since."""
    await store.pool.execute(_SQL.forget_secrets, before)


async def is_told(store: Store, tenant_id: int, endpoint_id: int) -> bool:
    """Whether this endpoint is there and switched on."""
    told: bool = await store.pool.fetchval(_SQL.is_told, tenant_id, endpoint_id)
    return told


async def disable_endpoint(store: Store, tenant_id: int, endpoint_id: int, reason: str) -> bool:
    """Tell this endpoint nothing more. False: it was told so before."""
    done = await store.pool.execute(_SQL.disable_endpoint, tenant_id, endpoint_id, reason)
    return done == "UPDATE 1"
