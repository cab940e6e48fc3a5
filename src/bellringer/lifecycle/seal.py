"""Seal: chain the audit by hashes, in batches behind the writers.

A chain inside the writers' transactions would let them wait for each other. So entries are only written there, and
sealed soon after: each seal is a hash over the seal before it and the entries since, with what jobs were before and
after. Whoever changes, removes or adds an entry behind a seal breaks every seal from there on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from bellringer.store import audit
from bellringer.store.audit import START, Seal
from bellringer.store.pool import Store

MOST: Final = 1_000  # entries of a seal
_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check of the chain has found: how much holds, and the first seal that does not."""

    seals: int = 0
    entries: int = 0
    unsealed: int = 0
    first: int | None = None  # the seal that the chain begins with; those before it are past retention
    broken: int | None = None
    why: str = ""


def digest(before: bytes, entries: Sequence[Sequence[object]]) -> bytes:
    """The hash of a seal: one line of JSON for each entry, its fields in the order of the statement."""
    told = hashlib.sha256(before)
    for entry in entries:
        fields = [field.astimezone(UTC).isoformat() if isinstance(field, datetime) else field for field in entry]
        told.update(msgspec.json.encode(fields) + b"\n")
    return told.digest()


async def seal(store: Store, most: int = MOST) -> int:
    """One bounded pass; answers how many entries were sealed."""
    return await audit.seal(store, most, digest)


async def verify(store: Store) -> Verdict:
    """Compute the chain anew, page by page."""
    count, entries, first = 0, 0, None
    before: Seal | None = None
    while page := await audit.seals(store, before.seal_id if before else 0, _PAGE):
        for one in page:
            first = one.seal_id if first is None else first
            if why := await _fault(store, before, one):
                return Verdict(seals=count, entries=entries, first=first, broken=one.seal_id, why=why)
            count, entries, before = count + 1, entries + one.count, one
    waiting = await audit.unsealed(store, before.last if before else START)
    return Verdict(seals=count, entries=entries, unsealed=waiting, first=first)


async def _fault(store: Store, before: Seal | None, one: Seal) -> str:
    """What is wrong with a seal, given that the one before it is right; nothing: it holds."""
    if before is not None and one.prev_hash != before.hash:
        return "it does not build on the seal before it"
    rows = await audit.sealed(store, before.last if before else START, one.last, one.count + 1)
    if len(rows) != one.count:
        found = "more" if len(rows) > one.count else f"{len(rows):,}"
        return f"it was made of {one.count:,} entries, and there are {found}"
    if digest(one.prev_hash, rows) != one.hash:
        return "an entry of it, or the definition of a job that it tells of, has been changed"
    return ""
