"""The console: pages for a browser, shipped as they are. They use the public API, so this only hands out files."""

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
_STATIC: Final = f"{PATH}/static/"
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
# No script but our files, nothing from elsewhere, and nobody may put the console in a frame.
_GUARDS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Console:
    """Answers every path below /console: a file, or the page that finds out by itself what the address means."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(Request(scope))(scope, receive, send)


def answer(request: Request) -> Response:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if request.method not in {"GET", "HEAD"}:
        return Response("the console is only read", status_code=405, headers={**_GUARDS, "Allow": "GET, HEAD"})
    if path in {PATH, "/"}:
        return RedirectResponse(f"{_prefix(request)}{PATH}/", status_code=307)
    if path.startswith(_STATIC):
        return _file(request, path.removeprefix(_STATIC))
    page = _files()["index.html"][0].decode().replace("{base}", escape(f"{_prefix(request)}{PATH}/"))
    return Response(page, media_type="text/html", headers=_GUARDS)


def _prefix(request: Request) -> str:
    """Where a proxy has put us."""
    prefix = request.scope.get("root_path", "") or request.headers.get("x-forwarded-prefix", "")
    prefix = prefix.rstrip("/")
    return prefix if _PREFIX.fullmatch(prefix) else ""


def _file(request: Request, name: str) -> Response:
    found = _files().get(name)
    if found is None:
        return Response("there is no such file", status_code=404, headers=_GUARDS)
    data, etag, media = found
    headers = {**_GUARDS, "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media, headers=headers)


@cache
def _files() -> Mapping[str, tuple[bytes, str, str]]:
    """All files, by their names below `static`, with what a browser compares and what they are. Read once."""
    return {
        name: (data := file.read_bytes(), f'"{hashlib.sha256(data).hexdigest()[:24]}"', _media(name))
        for name, file in _below(resources.files(__package__).joinpath("static"), "")
    }


def _below(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        found += _below(entry, f"{name}/") if entry.is_dir() else [(name, entry)]
    return found


def _media(name: str) -> str:
    suffix = name[name.rfind(".") :]
    return _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
