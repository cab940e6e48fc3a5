"""API keys. Keys of the whole installation have no tenant (None)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from bellringer.access.api_keys import ApiKeyCredential
from bellringer.errors import Conflict
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("api_keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHash:
    """The data that a presented key is checked against."""

    key_id: str
    tenant_id: int | None
    name: str
    hash: bytes
    role: str
    scopes: frozenset[str]
    is_use_stale: bool  # the last recorded use is more than a minute ago


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key without its secret."""

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


async def find(store: Store, key_id: str) -> KeyHash | None:
    """Returns the key with this id, if it is valid now."""
    row = await store.pool.fetchrow(_SQL.find, key_id)
    return KeyHash(**{**dict(row), "scopes": frozenset(row["scopes"])}) if row else None


async def touch(store: Store, key_id: str) -> None:
    """Records the use of a key, at most once a minute."""
    await store.pool.execute(_SQL.touch, key_id)


async def add(
    store: Store,
    key: ApiKeyCredential,
    *,
    tenant_id: int | None,
    name: str,
    role: str,
    scopes: tuple[str, ...] = (),
    who: str,
    expires_at: datetime | None = None,
) -> StoredKey:
    """Creates a key. Valid keys of a tenant have distinct names, because the audit identifies keys by name."""
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute(_SQL.lock, tenant_id or 0)
        row = await connection.fetchrow(_SQL.add, key.key_id, tenant_id, name, key.hash, role, scopes, who, expires_at)
    if row is None:
        hint = "choose another name, or rotate or revoke the existing key"
        raise Conflict("a key with that name already exists", hint=hint, pointer="/name", code="name_taken")
    return _stored(row)


async def get(store: Store, key_id: str, tenant_id: int | None) -> StoredKey | None:
    row = await store.pool.fetchrow(_SQL.get, key_id, tenant_id)
    return _stored(row) if row else None


async def list_page(
    store: Store, tenant_id: int | None, after: tuple[datetime, str] | None, limit: int
) -> list[StoredKey]:
    """Returns keys ordered by creation, including those no longer valid."""
    return [_stored(row) for row in await store.pool.fetch(_SQL.list, tenant_id, *(after or (None, None)), limit)]


async def revoke(store: Store, key_id: str, tenant_id: int | None) -> bool:
    """Revokes a key; returns whether it was not revoked before."""
    return await store.pool.execute(_SQL.revoke, key_id, tenant_id) == "UPDATE 1"


async def rotate(
    store: Store,
    key_id: str,
    new: ApiKeyCredential,
    *,
    tenant_id: int | None,
    grace: timedelta,
    who: str,
    expires_at: datetime | None = None,
) -> StoredKey:
    """Replaces a key by a new one; the old key stays valid for the grace period."""
    row = await store.pool.fetchrow(_SQL.rotate, key_id, tenant_id, new.key_id, new.hash, grace, who, expires_at)
    if row is None:
        raise Conflict("the key is already revoked, expired or replaced", hint="create a new one")
    return _stored(row)


def _stored(row: asyncpg.Record) -> StoredKey:
    return StoredKey(**{**dict(row), "scopes": tuple(row["scopes"])})
