"""Finds the server that a command talks to, and connects a client to it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from bellringer.errors import BellringerError, NotFound

if TYPE_CHECKING:
    from bellringer.client import Client

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_URL: Final = "http://127.0.0.1:8700"
MAX_SUGGESTIONS: Final = 3
_BACKFILL_ID: Final = re.compile(r"bf_[0-9]+")
_NO_JOB: Final = re.compile(r"there is no job '([^']+)'")


def find_url(flag: str | None, folder: Path | None = None) -> str:
    """The URL of --url, of the configuration, of a `bellringer dev` in this or a parent folder, or the default.

    Raises ConfigError if that `bellringer dev` is stopped: the default might be the server of another folder.
    """
    from bellringer.config import load_config
    from bellringer.dev.state_dir import find

    folder = folder or Path.cwd()
    config = load_config({"url": flag}, environ=os.environ, folder=folder)
    if config.url:
        return config.url
    place = find(folder, instead="name a server with --url")
    return place.url if place else DEFAULT_URL


def find_key(flag: str | None, folder: Path | None = None) -> str | None:
    """The API key of --key or of the configuration. `bellringer dev` needs none for local callers."""
    from bellringer.config import load_config

    return load_config({"key": flag}, environ=os.environ, folder=folder).key


def _suggest(client: Client, message: str) -> str:
    """A hint for a job that does not exist: a job with a similar name, or a task that can be sent."""
    if (found := _NO_JOB.match(message)) is None:
        return ""
    name = found[1]
    if _BACKFILL_ID.fullmatch(name):
        return f"{name} is the id of a backfill: `bellringer backfills get {name}` shows it"
    with suppress(BellringerError):
        if jobs := [job.name for job in client.jobs(q=name, limit=MAX_SUGGESTIONS).items]:
            return f"did you mean {' or '.join(jobs)}?"
        if any(task.name == name for task in client.tasks(limit=200).items):
            return f"{name} is a task without a job: `bellringer runs send {name}` runs it"
    return ""


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
            try:
                return function(client, *args, **kwargs)
            except NotFound as error:
                error.hint = error.hint or _suggest(client, error.message)
                raise

    return command  # type: ignore[return-value] # click passes the other arguments
