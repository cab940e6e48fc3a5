"""`bellringer services`: real servers of our own, for tests, benches and small clusters."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bellringer.cli.groups import Group
from bellringer.cli.output import print_table

if TYPE_CHECKING:
    from bellringer.services.places import State

F = TypeVar("F", bound=Callable[..., Any])


def _options(function: F) -> F:
    for option in (
        click.option(
            "--folder",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path(".services"),
            show_default=True,
            help="Where they keep their programs and data.",
        ),
        click.option("--only", metavar="NAMES", default="", help="Some of postgres,redis,etcd,kafka.  [default: all]"),
    ):
        function = option(function)
    return function


@click.group(
    cls=Group,
    examples="""
    bellringer services up
    bellringer services down
    """,
)
def services() -> None:
    """PostgreSQL, Redis, etcd and Kafka on this machine: real servers, without root or Docker."""


@services.command(
    examples="""
    bellringer services up
    bellringer services up --only kafka,redis
    """
)
@_options
def up(folder: Path, only: str) -> None:
    """Start them, and come back when each answers; they stay.

    What runs already is kept. The first start of Kafka downloads it (about 60 MB, with Java 17 and Maven).
    """
    from bellringer.services import SERVERS
    from bellringer.services import up as start

    running = {}
    for name in _chosen(only):
        click.echo(f"  {name} …", err=True)
        running[name] = start(name, folder).state
    _print(running)
    click.echo()
    for name, state in running.items():
        click.echo(f"export {SERVERS[name].setting}={shlex.quote(state.address)}")


@services.command(
    examples="""
    bellringer services down
    bellringer services down --only kafka
    """
)
@_options
def down(folder: Path, only: str) -> None:
    """Stop them; their programs and data are kept."""
    from bellringer.services import down as stop

    for name in reversed(_chosen(only)):
        if stop(name, folder):
            click.echo(f"  {name} has stopped", err=True)


@services.command(examples="bellringer services status")
@_options
def status(folder: Path, only: str) -> None:
    """Which run, and where; the exit code is 1 if one of them does not."""
    from bellringer.services import look

    states = {name: look(name, folder) for name in _chosen(only)}
    _print(states)
    if not all(state and state.lives for state in states.values()):
        click.get_current_context().exit(1)


def _chosen(only: str) -> list[str]:
    from bellringer.services import choose

    return choose(name.strip() for name in only.split(",") if name.strip())


def _print(states: dict[str, State | None] | dict[str, State]) -> None:
    rows = [
        (name, state.version, "live" if state.lives else "down", str(state.pid or "–"), state.address)
        if state
        else (name, "–", "down", "–", "–")
        for name, state in states.items()
    ]
    print_table(("SERVER", "VERSION", "STATE", "PID", "ADDRESS"), rows)
