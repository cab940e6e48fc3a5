"""Answers that were given to requests with a key, kept in the transaction of their effect."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("idempotency")
KEPT: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Whose key it is, and for what."""

    tenant_id: int
    route: str
    key: str

    @property
    def lock(self) -> int:
        """A number for its lock; two that share one by chance only wait for each other."""
        digest = hashlib.sha256(f"{self.tenant_id}\0{self.route}\0{self.key}".encode()).digest()
        return int.from_bytes(digest[:4], "big", signed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered, and the fingerprint of what was asked."""

    fingerprint: bytes
    status: int
    headers: Mapping[str, str]
    body: bytes


async def lock(store: Store, slot: Slot) -> bool:
    """Take the key until the transaction ends; False: another request has it."""
    taken: bool = await store.pool.fetchval(_SQL.lock, slot.lock)
    return taken


async def find(store: Store, slot: Slot) -> Answer | None:
    row = await store.pool.fetchrow(_SQL.find, slot.tenant_id, slot.route, slot.key, KEPT)
    if row is None:
        return None
    headers = msgspec.json.decode(row["headers"], type=dict[str, str])
    return Answer(fingerprint=row["fingerprint"], status=row["status"], headers=headers, body=row["body"])


async def keep(store: Store, slot: Slot, answer: Answer) -> None:
    headers = msgspec.json.encode(answer.headers).decode()
    await store.pool.execute(
        _SQL.keep, slot.tenant_id, slot.route, slot.key, answer.fingerprint, answer.status, headers, answer.body
    )


async def forget(store: Store) -> None:
    """Delete those whose time is over."""
    await store.pool.execute(_SQL.forget, KEPT)
