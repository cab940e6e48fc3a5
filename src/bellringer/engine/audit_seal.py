"""Chains the audit entries by hashes, in batches after they were written.

A chain inside the writers' transactions would serialize the writers. Writers only insert entries, which are sealed
soon after: a seal is a hash over the previous seal and the entries since, including the definitions of changed
jobs. Changing, removing or adding an entry before a seal breaks that seal and all later ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from bellringer.store import audit
from bellringer.store.audit import FIRST_POSITION, SealRow
from bellringer.store.connection_pool import Store

MAX_ENTRIES_PER_SEAL: Final = 1_000
MAX_ENTRIES_PER_PASS: Final = 5_000
_SEALS_PER_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SealCheck:
    """The result of verifying the chain: how many seals are valid, and the first one that is not."""

    seals: int = 0
    entries: int = 0
    unsealed: int = 0
    first: int | None = None  # the oldest seal that is still kept
    broken: int | None = None
    why: str = ""


def hash_entries(before: bytes, entries: Sequence[Sequence[object]]) -> bytes:
    """Returns the hash of a seal: one line of JSON per entry, fields in the order of the SQL statement."""
    hasher = hashlib.sha256(before)
    for entry in entries:
        fields = [field.astimezone(UTC).isoformat() if isinstance(field, datetime) else field for field in entry]
        hasher.update(msgspec.json.encode(fields) + b"\n")
    return hasher.digest()


async def seal_entries(store: Store, limit: int = MAX_ENTRIES_PER_SEAL) -> int:
    """Seals the next entries, at most `limit`; returns how many."""
    return await audit.add_seal(store, limit, hash_entries)


async def verify_chain(store: Store) -> SealCheck:
    """Recomputes the chain page by page."""
    count, entries, first = 0, 0, None
    before: SealRow | None = None
    while page := await audit.seals_after(store, before.seal_id if before else 0, _SEALS_PER_PAGE):
        for one in page:
            first = one.seal_id if first is None else first
            if why := await _find_fault(store, before, one):
                return SealCheck(seals=count, entries=entries, first=first, broken=one.seal_id, why=why)
            count, entries, before = count + 1, entries + one.count, one
    waiting = await audit.count_unsealed(store, before.last if before else FIRST_POSITION)
    return SealCheck(seals=count, entries=entries, unsealed=waiting, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPosition:
    """How far a gradual verification has come: the last valid seal, and the broken one after it, if any."""

    last: SealRow | None = None
    broken: int | None = None
    why: str = ""


async def verify_next_seals(
    store: Store, position: ChainPosition, max_entries: int = MAX_ENTRIES_PER_PASS
) -> ChainPosition:
    """Verifies the seals after a position, about `max_entries` entries; starts again at the end of the chain."""
    before, checked = position.last, 0
    first = await audit.seals_after(store, 0, 1)
    if before is not None and (not first or before.seal_id < first[0].seal_id):
        before = None  # retention has deleted the seal
    page = await audit.seals_after(store, before.seal_id if before else 0, _SEALS_PER_PAGE)
    if not page:  # the end of the chain
        before, page = None, await audit.seals_after(store, 0, _SEALS_PER_PAGE)
    for one in page:
        if why := await _find_fault(store, before, one):
            return ChainPosition(last=before, broken=one.seal_id, why=why)
        before, checked = one, checked + one.count
        if checked >= max_entries:
            break
    return ChainPosition(last=before)


async def _find_fault(store: Store, before: SealRow | None, one: SealRow) -> str:
    """Returns the fault of a seal whose predecessor is valid, or an empty string."""
    if before is not None and one.prev_hash != before.hash:
        return "its previous hash does not match the seal before it"
    rows = await audit.sealed_entries(store, before.last if before else FIRST_POSITION, one.last, one.count + 1)
    if len(rows) != one.count:
        found = "more" if len(rows) > one.count else f"{len(rows):,}"
        return f"it was made of {one.count:,} entries, and there are {found}"
    if hash_entries(one.prev_hash, rows) != one.hash:
        return "one of its entries, or a job definition that an entry refers to, was changed"
    return ""
