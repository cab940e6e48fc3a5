"""Serves the built documentation, which `make docs` writes into this package, below /guide."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from bellringer.errors import ConfigError

PATH: Final = "/guide"
PACKAGED: Final = "packaged"  # the value of the setting docs_site for the guide of this installation
PACKAGED_FOLDER: Final = Path(__file__).parent / "guide"
# The pages of the site generator contain inline scripts and styles. They come from this folder only.
_SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class DocsSite:
    """ASGI application for all paths below /guide: the files of one folder."""

    def __init__(self, site: str | Path) -> None:
        folder = PACKAGED_FOLDER if site == PACKAGED else Path(site)
        if not (folder / "index.html").is_file():
            where = "this installation has no guide" if site == PACKAGED else f"{folder} has no index.html"
            raise ConfigError(f"docs_site: {where}", hint="build the documentation with `make docs`")
        self._files = StaticFiles(directory=folder, html=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_SECURITY_HEADERS)
            await send(message)

        below = scope["path"].removeprefix(PATH)
        if not below:
            await RedirectResponse(f"{PATH}/", status_code=307)(scope, receive, with_headers)
            return
        if "\0" in below:
            raise HTTPException(404)
        await self._files({**scope, "path": below, "root_path": ""}, receive, with_headers)
