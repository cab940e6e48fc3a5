"""Stored responses to requests with an idempotency key, written in the transaction of the request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("idempotency")
RESPONSE_LIFETIME: Final = timedelta(hours=24)
BLOCK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A key of a tenant for a route."""

    tenant_id: int
    route: str
    key: str

    @property
    def lock(self) -> int:
        """The advisory lock number of the key; a hash collision only makes two requests wait for each other."""
        digest = hashlib.sha256(f"{self.tenant_id}\0{self.route}\0{self.key}".encode()).digest()
        return int.from_bytes(digest[:4], "big", signed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response and the fingerprint of its request."""

    fingerprint: bytes
    status: int
    headers: Mapping[str, str]
    body: bytes


async def lock(store: Store, key: IdempotencyKey) -> bool:
    """Locks the key until the transaction ends; returns False if another request holds it."""
    taken: bool = await store.pool.fetchval(_SQL.lock, key.lock)
    return taken


async def find(store: Store, key: IdempotencyKey) -> StoredResponse | None:
    row = await store.pool.fetchrow(_SQL.find, key.tenant_id, key.route, key.key, RESPONSE_LIFETIME)
    if row is None:
        return None
    headers = msgspec.json.decode(row["headers"], type=dict[str, str])
    return StoredResponse(fingerprint=row["fingerprint"], status=row["status"], headers=headers, body=row["body"])


async def save(store: Store, key: IdempotencyKey, response: StoredResponse) -> None:
    headers = msgspec.json.encode(response.headers).decode()
    await store.pool.execute(
        _SQL.store, key.tenant_id, key.route, key.key, response.fingerprint, response.status, headers, response.body
    )


def size_in_blocks(body: bytes) -> int:
    """Returns the size of a response in blocks, as the table's column `blocks` counts it."""
    return 1 + len(body) // BLOCK_BYTES


async def stored_blocks(store: Store, tenant_id: int | None, limit: int) -> int:
    """Returns the stored blocks of a tenant, or of all tenants. Stops counting after `limit` responses."""
    query, of = (_SQL.all_blocks, ()) if tenant_id is None else (_SQL.tenant_blocks, (tenant_id,))
    found: int = await store.pool.fetchval(query, *of, limit)
    return found


async def prune(store: Store) -> None:
    """Deletes expired responses."""
    await store.pool.execute(_SQL.forget, RESPONSE_LIFETIME)
