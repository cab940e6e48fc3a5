"""The form of the archive: paths, parts and manifests; and what an object store has to offer.

    runs/day=2026-11-18/tenant=acme/20261219T030000Z-7-0001.ndjson.zst   one run with its attempts per line
    manifests/2026-11-18-20261219T030000Z-7.json                         written last: rows, bytes and digests

A day may have several manifests: runs whose retention differs are archived at different times.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final, Protocol
from urllib.parse import quote

import msgspec

MANIFESTS: Final = "manifests/"
SCHEMA_VERSION: Final = 1  # of the lines; raised when a field changes its meaning or is removed


class ObjectStore(Protocol):
    """A directory or bucket. Errors are raised as `Unavailable`."""

    async def put(self, path: str, data: bytes) -> None:
        """Stores an object completely or not at all; replaces one that exists."""

    async def get(self, path: str) -> bytes:
        """Returns an object; raises NotFound."""

    async def list(self, prefix: str) -> list[str]:
        """Returns the paths of all objects below a prefix that ends with `/`, in order."""


class ArchivePart(msgspec.Struct, frozen=True, kw_only=True):
    """One compressed file; `bytes` and `sha256` are of the compressed form."""

    path: str
    tenant: str
    rows: int
    bytes: int
    sha256: str


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The complete list of the parts of a batch. A part that no manifest names is left over from a crash."""

    day: date
    batch: str
    rows: int
    bytes: int
    parts: list[ArchivePart]
    version: int = SCHEMA_VERSION
    program: str = ""

    @property
    def path(self) -> str:
        return f"{MANIFESTS}{self.day.isoformat()}-{self.batch}.json"


def batch_name(opened_at: datetime, batch_id: int) -> str:
    """Names a batch uniquely, also after a restore of the database, which gives out numbers again."""
    return f"{opened_at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{batch_id}"


def part_path(day: date, tenant: str, batch: str, number: int) -> str:
    return f"runs/day={day.isoformat()}/tenant={quote(tenant, safe='')}/{batch}-{number:04}.ndjson.zst"
