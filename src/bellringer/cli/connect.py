"""Finds the server that a command talks to, and connects a client to it."""

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
    """The URL of --url, of the configuration, of a `bellringer dev` in this or a parent folder, or the default."""
    from bellringer.config import load_config
    from bellringer.dev.state_dir import find

    folder = folder or Path.cwd()
    config = load_config({"url": flag}, environ=os.environ, folder=folder)
    if config.url:
        return config.url
    place = find(folder)
    return place.url if place else DEFAULT_URL


def find_key(flag: str | None, folder: Path | None = None) -> str | None:
    """The API key of --key or of the configuration. `bellringer dev` needs none for local callers."""
    from bellringer.config import load_config

    return load_config({"key": flag}, environ=os.environ, folder=folder).key


def with_client(function: Callable[Concatenate[Client, P], R]) -> Callable[P, R]:
    """Add --url, --key and --tenant to a command, and pass it a connected client as first argument."""

    @click.option(
        "--url", metavar="URL", help="URL of the server.  [default: BELLRINGER_URL, or a `bellringer dev` nearby]"
    )
    @click.option("--key", metavar="KEY", help="API key.  [default: BELLRINGER_KEY]")
    @click.option("--tenant", metavar="NAME", help="Tenant to act for; needs an installation key.")
    @wraps(function)
    def command(*args: Any, url: str | None, key: str | None, tenant: str | None, **kwargs: Any) -> R:
        from bellringer.client import Client

        with Client(find_url(url), token=find_key(key), tenant=tenant) as client:
            return function(client, *args, **kwargs)

    return command  # type: ignore[return-value] # click passes the other arguments
