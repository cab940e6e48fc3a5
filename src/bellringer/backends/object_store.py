"""Directories and S3-compatible buckets, through `obstore`.

    file:///var/lib/bellringer/archive
    s3://bucket/prefix?endpoint=https://minio.internal:9000&region=eu-west-1

Credentials of S3 come from the standard environment variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …), a web
identity or the instance's role.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, S3Store

from bellringer.errors import ConfigError, NotFound, Unavailable

REQUEST_TIMEOUT: Final = timedelta(seconds=60)
RETRY_TIMEOUT: Final = timedelta(seconds=20)  # the caller repeats the step later
_OPTIONS: Final = frozenset({"endpoint", "region"})


class ObstoreObjects:
    """An object store whose address is a URL."""

    def __init__(self, url: str) -> None:
        self._store, self._folder = _open(url)
        self._url = url.partition("?")[0]

    async def put(self, path: str, data: bytes) -> None:
        try:
            await self._store.put_async(path, data)
            if self._folder is not None:
                await asyncio.to_thread(_sync, self._folder / path)
        except (BaseError, OSError) as error:
            raise self._unavailable(path, error) from error

    async def get(self, path: str) -> bytes:
        try:
            return bytes(await (await self._store.get_async(path)).bytes_async())
        except (NotFoundError, FileNotFoundError) as error:
            raise NotFound(f"{self._url} has no {path}") from error
        except (BaseError, OSError) as error:
            raise self._unavailable(path, error) from error

    async def list(self, prefix: str) -> list[str]:
        try:
            found = [item["path"] async for page in self._store.list(prefix.rstrip("/")) for item in page]
        except (BaseError, OSError) as error:
            raise self._unavailable(prefix, error) from error
        return sorted(found)

    def _unavailable(self, path: str, error: BaseException) -> Unavailable:
        reason = str(error).partition("\n")[0][:300]
        return Unavailable(f"the archive {self._url} failed at {path}: {reason}", hint="check its address and access")


def _open(url: str) -> tuple[Any, Path | None]:
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ConfigError(f"the archive has the unknown option {unknown[0]!r}", hint="known are endpoint and region")
    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the archive {folder} cannot be created: {error.strerror}") from None
        return LocalStore(folder), folder
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"the archive cannot be {url!r}", hint="give file:///folder or s3://bucket/prefix")
    settings: dict[str, Any] = {"region": options.get("region") or os.environ.get("AWS_REGION") or "us-east-1"}
    if endpoint := options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL"):
        settings["endpoint"] = endpoint
    client: Any = {"timeout": REQUEST_TIMEOUT}
    if str(settings.get("endpoint", "")).startswith("http://"):
        client["allow_http"] = True
    store = S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        client_options=client,
        retry_config={"max_retries": 3, "retry_timeout": RETRY_TIMEOUT},
        **settings,
    )
    return store, None


def _sync(path: Path) -> None:
    """Makes a file and its folder entry durable: the rows are deleted afterwards."""
    for each in (path, path.parent, path.parent.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
