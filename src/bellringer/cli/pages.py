"""Lists that come in pages, read to the number that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

PAGE: Final = 200


def limit_option(function: Any) -> Any:
    return click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The most to show.")(
        function
    )


def gather(ask: Callable[..., Any], limit: int, *, output: str = "table", **filters: Any) -> list[Any]:
    """Up to `limit` items; a person is told where there are more."""
    items: list[Any] = []
    cursor: str | None = None
    while len(items) < limit:
        page = ask(limit=min(PAGE, limit - len(items)), cursor=cursor, **filters)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            return items
    if output == "table":
        click.echo(f"… and more: --limit {limit * 4}", err=True)
    return items
