"""What commands print: aligned tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])

WIDEST: Final = 10_000  # a pipe has no width: nothing is cut off
_COLOURS: Final = {
    "active": "green",
    "succeeded": "green",
    "live": "green",
    "running": "cyan",
    "retrying": "yellow",
    "draining": "yellow",
    "paused": "yellow",
    "disabled": "dim",
    "cancelled": "dim",
    "skipped": "dim",
    "dead": "red",
    "lost": "red",
    "free": "red",
}


def output_option(*formats: str) -> Callable[[F], F]:
    """-o, with those of the formats that the command knows; the first is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="How to print it.",
    )


LIST: Final = ("table", "json", "jsonl", "name")
ONE: Final = ("table", "json", "name")


def print_list(
    output: str,
    items: Sequence[Any],
    *,
    head: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    name: Callable[[Any], str],
    nothing: str,
) -> None:
    """A list in the format that was asked for."""
    if output == "json":
        click.echo(as_json(list(items)))
    elif output == "jsonl":
        for item in items:
            click.echo(msgspec.json.encode(item))
    elif output == "name":
        for item in items:
            click.echo(name(item))
    elif items:
        print_table(head, [row(item) for item in items])
    else:
        click.echo(nothing, err=True)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for title in head:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(clean(cell), style=_COLOURS.get(cell, "")) for cell in row))
    _print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """One thing with what is known of it, line by line; what is empty is left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for title, value in facts.items():
        if value not in {"", "–"}:
            table.add_row(title, Text(clean(value), style=_COLOURS.get(value, "")))
    _print(table)


def _print(table: Any) -> None:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout, width=None if is_terminal else WIDEST, highlight=False, markup=False, emoji=False
    )
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=is_terminal or None)


def clean(text: str) -> str:
    """Text that others wrote, without signs that would steer the terminal."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "·" for sign in text)


def as_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def short_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
