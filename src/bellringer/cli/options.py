"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from bellringer.cli.command_groups import fail

if TYPE_CHECKING:
    from bellringer.config import Config


F = TypeVar("F", bound=Callable[..., Any])


class Length(click.ParamType[float]):
    """A duration such as 30s or 1h30m, converted to seconds. A plain number is taken as seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from bellringer.durations import parse_duration
        from bellringer.errors import InvalidInput

        try:
            is_number = isinstance(value, str) and value.replace(".", "", 1).isdecimal()
            return parse_duration(float(value) if is_number else value, what="the duration").total_seconds()
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


def wait_options(function: F) -> F:
    """The options of commands that can wait for the run they start."""
    for option in (
        click.option("--timeout", type=Length(), help="Maximum time to wait, such as 30s or 10m.  [default: no limit]"),
        click.option("--wait", is_flag=True, help="Wait for the run to end; exit with code 3 if it did not succeed."),
    ):
        function = option(function)
    return function


def metrics_options(function: F) -> F:
    """The options of the port for metrics and health checks."""
    for option in (
        click.option(
            "--metrics-host",
            metavar="ADDRESS",
            help="Address for --metrics-port, such as 0.0.0.0.  [default: BELLRINGER_METRICS_HOST or BELLRINGER_HOST]",
        ),
        click.option(
            "--metrics-port",
            type=int,
            metavar="PORT",
            help="Serve /metrics (Prometheus), /healthz and /readyz on this port, without a key.",
        ),
    ):
        function = option(function)
    return function


def process_options(function: F) -> F:
    """The options of all processes."""
    for option in (
        click.option("--with-parent", is_flag=True, hidden=True),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="Lowest level to log.  [default: info]",
        ),
        click.option("--log", type=click.Choice(["json", "text"]), help="Format of log lines.  [default: json]"),
        click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]"),
    ):
        function = option(function)
    return function


def load_config(**flags: Any) -> Config:
    """Load the configuration. If no database is configured, use that of a nearby `bellringer dev`.

    Raises ConfigError if that `bellringer dev` is stopped.
    """
    import msgspec

    from bellringer.config import load_config
    from bellringer.dev.state_dir import find

    config = load_config(flags, environ=os.environ)
    if not config.dsn and (place := find(Path.cwd(), instead="name a database with BELLRINGER_DSN")):
        return msgspec.structs.replace(config, dsn=place.dsn)
    return config


def argument_options(function: F) -> F:
    for option in (
        click.option(
            "--args-json", metavar="JSON", help="All arguments as a JSON object (by name) or list (by position)."
        ),
        click.option(
            "--arg",
            "named",
            multiple=True,
            metavar="NAME=VALUE",
            help="One argument; the value is JSON, or text if it is not valid JSON. Repeatable.",
        ),
    ):
        function = option(function)
    return function


def read_arguments(named: Sequence[str], document: str | None) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Return positional and keyword arguments; None if none were given."""
    args: list[Any] | None = None
    kwargs: dict[str, Any] = {}
    if document is not None:
        try:
            read = msgspec.json.decode(document)
        except msgspec.DecodeError as error:
            fail(f"--args-json is not JSON: {error}", """write it like --args-json '{"customer": 7}'""")
        if isinstance(read, dict):
            kwargs = read
        elif isinstance(read, list):
            args = read
        else:
            fail(
                "--args-json must be an object or a list",
                """write it like --args-json '{"customer": 7}'""",
            )
    for text in named:
        name, separator, value = text.partition("=")
        if not separator or not name:
            fail(f"--arg {text!r} is not NAME=VALUE", "write it like --arg customer=7")
        kwargs[name] = read_value(value)
    return args, kwargs or None


def read_value(text: str) -> Any:
    """Decode JSON such as 7, true, null, "seven" or [1, 2]; return any other text unchanged."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


PAGE_SIZE: Final = 200


def limit_option(function: Any) -> Any:
    return click.option(
        "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of items to show."
    )(function)


def fetch_pages(fetch: Callable[..., Any], limit: int, *, output: str = "table", **filters: Any) -> list[Any]:
    """Fetch pages until `limit` items are reached. With table output, print a note if there are more."""
    items: list[Any] = []
    cursor: str | None = None
    while len(items) < limit:
        page = fetch(limit=min(PAGE_SIZE, limit - len(items)), cursor=cursor, **filters)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            return items
    if output == "table":
        click.echo(f"… more items exist; use --limit {limit * 4}", err=True)
    return items
