"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from bellringer.config import Config

F = TypeVar("F", bound=Callable[..., Any])


def process_options(function: F) -> F:
    """What every process takes."""
    for option in (
        click.option("--with-parent", is_flag=True, hidden=True),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="The least to log."),
        click.option("--log", type=click.Choice(["json", "text"]), help="How log lines look.  [default: json]"),
        click.option("--dsn", metavar="URL", help="The database.  [default: BELLRINGER_DSN]"),
    ):
        function = option(function)
    return function


def load_config(**flags: Any) -> Config:
    """All layers; where none names a database, that of a `bellringer dev` here or above is meant."""
    import msgspec

    from bellringer.config import load
    from bellringer.dev.place import find

    config = load(flags, environ=os.environ)
    if not config.dsn and (place := find(Path.cwd())):
        return msgspec.structs.replace(config, dsn=place.dsn)
    return config
