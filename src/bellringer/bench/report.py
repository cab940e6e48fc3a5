"""Runs a measurement in a new database and prints its figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from bellringer import telemetry
from bellringer.bench import database


def measure_in_new_database(measure: Callable[[str], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
    """Returns the figures of `measure(dsn)`, a dataclass or a dict, as a dict. The database is dropped afterwards."""
    telemetry.configure("text", "error")

    async def once(dsn: str) -> dict[str, Any]:
        made = await database.create(dsn)
        try:
            figures = await measure(made)
        finally:
            await database.drop(dsn, made)
        return asdict(figures) if is_dataclass(figures) else figures  # type: ignore[arg-type]

    with database.server() as dsn:
        return _runner()(once(dsn))


def _runner() -> Callable[[Coroutine[Any, Any, dict[str, Any]]], dict[str, Any]]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def print_figures(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(figures))
        return
    _print_table(figures, "")


def _print_table(figures: dict[str, Any], prefix: str) -> None:
    for name, value in figures.items():
        words = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            _print_table(value, f"{words} ")
        else:
            click.echo(f"  {words:<34} {f'{value:,}' if isinstance(value, int | float) else value}")
