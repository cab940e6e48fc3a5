"""API keys in the database. Those of the whole installation have no tenant (None)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from bellringer.access.keys import Key
from bellringer.errors import Conflict
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What the door compares a key with."""

    key_id: str
    tenant_id: int | None
    name: str
    hash: bytes
    role: str
    scopes: frozenset[str]
    is_rusty: bool  # its use was last noted more than a minute ago


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key as it can be shown: all but its secret."""

    key_id: str
    tenant_id: int | None
    name: str
    role: str
    scopes: tuple[str, ...]
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None


async def find(store: Store, key_id: str) -> Lock | None:
    """The key of that id, if it is good now."""
    row = await store.pool.fetchrow(_SQL.find, key_id)
    return Lock(**{**dict(row), "scopes": frozenset(row["scopes"])}) if row else None


async def touch(store: Store, key_id: str) -> None:
    """Note that it was used, at most once a minute."""
    await store.pool.execute(_SQL.touch, key_id)


async def add(
    store: Store,
    key: Key,
    *,
    tenant_id: int | None,
    name: str,
    role: str,
    scopes: tuple[str, ...] = (),
    who: str,
    expires_at: datetime | None = None,
) -> StoredKey:
    """A new key. History names keys by their names, so of those that are good each has one of its own."""
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute(_SQL.lock, tenant_id or 0)
        row = await connection.fetchrow(_SQL.add, key.key_id, tenant_id, name, key.hash, role, scopes, who, expires_at)
    if row is None:
        hint = "choose another name, or rotate or revoke that one"
        raise Conflict("a key of that name is in use", hint=hint, pointer="/name", code="name_taken")
    return _stored(row)


async def get(store: Store, key_id: str, tenant_id: int | None) -> StoredKey | None:
    row = await store.pool.fetchrow(_SQL.get, key_id, tenant_id)
    return _stored(row) if row else None


async def listing(
    store: Store, tenant_id: int | None, after: tuple[datetime, str] | None, most: int
) -> list[StoredKey]:
    """By age, the oldest first; those that are good no more too."""
    return [_stored(row) for row in await store.pool.fetch(_SQL.list, tenant_id, *(after or (None, None)), most)]


async def revoke(store: Store, key_id: str, tenant_id: int | None) -> bool:
    """End a key; answers whether it was not ended before."""
    return await store.pool.execute(_SQL.revoke, key_id, tenant_id) == "UPDATE 1"


async def rotate(
    store: Store,
    key_id: str,
    new: Key,
    *,
    tenant_id: int | None,
    grace: timedelta,
    who: str,
    expires_at: datetime | None = None,
) -> StoredKey:
    """Put a new key in the place of one, which stays good for the grace."""
    row = await store.pool.fetchrow(_SQL.rotate, key_id, tenant_id, new.key_id, new.hash, grace, who, expires_at)
    if row is None:
        raise Conflict("the key is revoked, expired or replaced already", hint="create a new one")
    return _stored(row)


def _stored(row: asyncpg.Record) -> StoredKey:
    return StoredKey(**{**dict(row), "scopes": tuple(row["scopes"])})
