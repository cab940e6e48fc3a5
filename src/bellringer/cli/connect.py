"""Which server a command talks to, and the client for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from bellringer.client import Client

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_URL: Final = "http://127.0.0.1:8700"


def find_url(flag: str | None, folder: Path | None = None) -> str:
    """The flag's, the configured one, that of a `bellringer dev` here or above, or the usual one."""
    from bellringer.config import load
    from bellringer.dev.place import find

    folder = folder or Path.cwd()
    config = load({"url": flag}, environ=os.environ, folder=folder)
    if config.url:
        return config.url
    place = find(folder)
    return place.url if place else DEFAULT_URL


def with_client(function: Callable[Concatenate[Client, P], R]) -> Callable[P, R]:
    """Give a command --url, and a client for it as its first argument."""

    @click.option("--url", metavar="URL", help="The server.  [default: BELLRINGER_URL, or the one nearby]")
    @wraps(function)
    def asking(*args: Any, url: str | None, **kwargs: Any) -> R:
        from bellringer.client import Client

        with Client(find_url(url)) as client:
            return function(client, *args, **kwargs)

    return asking  # type: ignore[return-value] # click fills in the url
