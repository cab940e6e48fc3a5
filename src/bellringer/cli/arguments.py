"""Arguments of tasks as they are typed: --arg k=v, whose value is JSON or else text, and --args-json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from bellringer.cli.groups import fail

F = TypeVar("F", bound=Callable[..., Any])


def argument_options(function: F) -> F:
    for option in (
        click.option("--args-json", metavar="JSON", help="Arguments as a JSON object (by name) or list (in order)."),
        click.option("--arg", "named", multiple=True, metavar="NAME=VALUE", help="An argument: JSON, or else text."),
    ):
        function = option(function)
    return function


def read_arguments(named: Sequence[str], document: str | None) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Positional and named arguments; None where none were given."""
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
                "--args-json is neither an object nor a list",
                """write it like --args-json '{"customer": 7}'""",
            )
    for text in named:
        name, separator, value = text.partition("=")
        if not separator or not name:
            fail(f"--arg {text!r} cannot be read", "write it like --arg customer=7")
        kwargs[name] = read_value(value)
    return args, kwargs or None


def read_value(text: str) -> Any:
    """7, true, null, "seven", [1, 2] are what JSON says; anything else is itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
