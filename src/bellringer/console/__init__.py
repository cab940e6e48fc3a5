"""Serves the files of the web console. The console itself uses only the public API."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

PATH: Final = "/console"
_SCOPE_KEY: Final = "bellringer.prefix"  # set by the API for requests of trusted proxies
_STATIC: Final = f"{PATH}/static/"
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".html": "text/html",
    ".woff2": "font/woff2",
}
# Only files of the same origin may be loaded, and no other site may show the console in a frame.
_SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
        "connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Console:
    """ASGI application for all paths below /console: static files, and index.html for all other paths."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(Request(scope))(scope, receive, send)


def respond(request: Request) -> Response:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if request.method not in {"GET", "HEAD"}:
        return Response("method not allowed", status_code=405, headers={**_SECURITY_HEADERS, "Allow": "GET, HEAD"})
    if path in {PATH, "/"}:
        return RedirectResponse(f"{_prefix(request)}{PATH}/", status_code=307)
    if path.startswith(_STATIC):
        return _file(request, path.removeprefix(_STATIC))
    page = _files()["index.html"][0].decode().replace("{base}", escape(f"{_prefix(request)}{PATH}/"))
    return Response(page, media_type="text/html", headers=_SECURITY_HEADERS)


def _prefix(request: Request) -> str:
    """Returns the path prefix of a trusted proxy. Any client can send the header, so the header itself is not read."""
    prefix: str = request.scope.get("root_path", "") or request.scope.get(_SCOPE_KEY, "")
    prefix = prefix.rstrip("/")
    return prefix if _PREFIX.fullmatch(prefix) else ""


def _file(request: Request, name: str) -> Response:
    found = _files().get(name)
    if found is None:
        return Response("file not found", status_code=404, headers=_SECURITY_HEADERS)
    data, etag, media = found
    headers = {**_SECURITY_HEADERS, "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media, headers=headers)


@cache
def _files() -> Mapping[str, tuple[bytes, str, str]]:
    """Reads all files once: path below `static` → (content, ETag, media type)."""
    return {
        name: (data := file.read_bytes(), f'"{hashlib.sha256(data).hexdigest()[:24]}"', _media_type(name))
        for name, file in _list_files(resources.files(__package__).joinpath("static"), "")
    }


def _list_files(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        found += _list_files(entry, f"{name}/") if entry.is_dir() else [(name, entry)]
    return found


def _media_type(name: str) -> str:
    suffix = name[name.rfind(".") :]
    return _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
