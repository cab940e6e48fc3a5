"""Secrets that arguments and HTTP targets refer to by name. Values are stored encrypted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("named_secrets")
MAX_SECRETS: Final = 1_000  # per tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSecretRow:
    """A stored secret without its value."""

    name: str
    version: int
    key_id: str
    tasks: tuple[str, ...]
    origins: tuple[str, ...]
    note: str
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecretRow:
    """The encrypted value of a secret, and which runs may use it."""

    name: str
    key_id: str
    sealed: bytes
    tasks: frozenset[str]
    origins: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUseRow:
    """How many values of a kind a key of `secret_keys` still decrypts."""

    place: str
    key_id: str
    uses: int


async def put(
    store: Store,
    tenant_id: int,
    *,
    name: str,
    key_id: str,
    sealed: bytes,
    tasks: Sequence[str],
    origins: Sequence[str],
    note: str,
    who: str,
) -> NamedSecretRow | None:
    """Creates or replaces a secret; returns None if the tenant has reached its limit."""
    values = (tenant_id, name, key_id, sealed, list(tasks), list(origins), note, MAX_SECRETS, who)
    row = await store.pool.fetchrow(_SQL.put, *values)
    return None if row is None else _secret(row)


async def get(store: Store, tenant_id: int, name: str) -> NamedSecretRow | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, name)
    return None if row is None else _secret(row)


async def list_page(store: Store, tenant_id: int, after: str | None, limit: int) -> list[NamedSecretRow]:
    """Returns secrets by name, without their values."""
    return [_secret(row) for row in await store.pool.fetch(_SQL.list, tenant_id, after, limit)]


async def known_names(store: Store, tenant_id: int, names: Collection[str]) -> set[str]:
    """Returns the names for which a secret is stored."""
    return {row["name"] for row in await store.pool.fetch(_SQL.known, tenant_id, sorted(names))}


async def load_sealed(store: Store, tenant_id: int, names: Collection[str]) -> dict[str, SealedSecretRow]:
    """Returns the encrypted values of the secrets that exist, by name."""
    rows = await store.pool.fetch(_SQL.sealed, tenant_id, sorted(names))
    return {row["name"]: _sealed_secret(row) for row in rows}


async def delete(store: Store, tenant_id: int, name: str) -> bool:
    """Deletes a secret; returns whether it existed."""
    return await store.pool.execute(_SQL.delete, tenant_id, name) == "DELETE 1"


# Key rotation, over all tenants

Position = tuple[int, str]  # tenant and name of the last row of a batch
START: Final[Position] = (-(2**31), "")


async def outdated(store: Store, key_id: str, after: Position, limit: int) -> list[tuple[int, SealedSecretRow]]:
    """Returns the secrets that another key has encrypted, each with its tenant."""
    rows = await store.pool.fetch(_SQL.outdated, key_id, *after, limit)
    return [(row["tenant_id"], _sealed_secret(row)) for row in rows]


async def reseal(store: Store, tenant_id: int, name: str, before: bytes, key_id: str, sealed: bytes) -> bool:
    """Replaces an encrypted value; returns False if the secret was changed or deleted since it was read."""
    return await store.pool.execute(_SQL.reseal, tenant_id, name, before, key_id, sealed) == "UPDATE 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSecretRow:
    """A signing secret of an HTTP target or a webhook, and the previous one while it still signs."""

    tenant_id: int
    secret_id: str
    key_id: str
    sealed: bytes
    previous_key_id: str | None
    previous: bytes | None


async def outdated_target_secrets(store: Store, key_id: str, after: Position, limit: int) -> list[TargetSecretRow]:
    rows = await store.pool.fetch(_SQL.outdated_target_secrets, key_id, *after, limit)
    return [TargetSecretRow(**dict(row)) for row in rows]


async def reseal_target_secret(store: Store, before: TargetSecretRow, after: TargetSecretRow) -> bool:
    """Replaces an encrypted signing secret; returns False if it was changed since it was read."""
    values = (after.key_id, after.sealed, after.previous_key_id, after.previous)
    done = await store.pool.execute(
        _SQL.reseal_target_secret, before.tenant_id, before.secret_id, before.sealed, *values
    )
    return done == "UPDATE 1"


async def key_uses(store: Store) -> list[KeyUseRow]:
    """Returns which keys stored values still need."""
    return [KeyUseRow(**dict(row)) for row in await store.pool.fetch(_SQL.key_uses)]


def _secret(row: asyncpg.Record) -> NamedSecretRow:
    return NamedSecretRow(**{**dict(row), "tasks": tuple(row["tasks"]), "origins": tuple(row["origins"])})


def _sealed_secret(row: asyncpg.Record) -> SealedSecretRow:
    return SealedSecretRow(
        name=row["name"],
        key_id=row["key_id"],
        sealed=row["sealed"],
        tasks=frozenset(row["tasks"]),
        origins=frozenset(row["origins"]),
    )
