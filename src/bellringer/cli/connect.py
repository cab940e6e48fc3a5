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


def find_key(flag: str | None, folder: Path | None = None) -> str | None:
    """The flag's, or the configured one; on this machine `bellringer dev` asks for none."""
    from bellringer.config import load

    return load({"key": flag}, environ=os.environ, folder=folder).key


def with_client(function: Callable[Concatenate[Client, P], R]) -> Callable[P, R]:
    """Give a command --url and --key, and a client by them as its first argument."""

    @click.option("--url", metavar="URL", help="The server.  [default: BELLRINGER_URL, or the one nearby]")
    @click.option("--key", metavar="KEY", help="What to log in by.  [default: BELLRINGER_KEY]")
    @click.option("--tenant", metavar="NAME", help="The tenant that is meant, with a key of the whole installation.")
    @wraps(function)
    def asking(*args: Any, url: str | None, key: str | None, tenant: str | None, **kwargs: Any) -> R:
        from bellringer.client import Client

        with Client(find_url(url), token=find_key(key), tenant=tenant) as client:
            return function(client, *args, **kwargs)

    return asking  # type: ignore[return-value] # click fills in the rest
