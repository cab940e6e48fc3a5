"""Reads the archive back: lists manifests, verifies parts, and iterates over archived runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date

import msgspec
import zstandard

from bellringer.core.archive import MANIFESTS, ArchiveManifest, ObjectStore


async def list_manifests(source: ObjectStore, day: date | None = None) -> list[ArchiveManifest]:
    """Returns the manifests of a day or of all days, in the order in which the days were archived."""
    paths = await source.list(MANIFESTS)
    wanted = f"{MANIFESTS}{day.isoformat()}-" if day else MANIFESTS
    return [
        msgspec.json.decode(await source.get(path), type=ArchiveManifest) for path in paths if path.startswith(wanted)
    ]


async def read_lines(source: ObjectStore, manifest: ArchiveManifest, tenant: str | None = None) -> AsyncIterator[bytes]:
    """Yields the lines of a manifest, one part at a time in memory."""
    for part in manifest.parts:
        if tenant is None or part.tenant == tenant:
            data = await source.get(part.path)
            for line in zstandard.ZstdDecompressor().decompressobj().decompress(data).splitlines():
                yield line
