"""`python -m tools.servers`: starts and stops real servers for tests, benchmarks and trials."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bellringer.cli.output import print_table
from bellringer.errors import BellringerError

if TYPE_CHECKING:
    from tools.servers.ports_and_pids import ServerState

F = TypeVar("F", bound=Callable[..., Any])


def _options(function: F) -> F:
    for option in (
        click.option(
            "--folder",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path(".services"),
            show_default=True,
            help="Folder of their programs and data.",
        ),
        click.option("--only", metavar="NAMES", default="", help="Some of postgres,redis,etcd,kafka.  [default: all]"),
    ):
        function = option(function)
    return function


@click.group()
def services() -> None:
    """PostgreSQL, Redis, etcd and Kafka on this machine: real servers, without root or Docker."""


@services.command()
@_options
def up(folder: Path, only: str) -> None:
    """Start the servers and wait until each one responds; they keep running.

    Running servers are left alone. The first start of Kafka downloads it (about 60 MB, with Java 17 and Maven).
    """
    from tools.servers import SERVERS
    from tools.servers import up as start

    running = {}
    for name in _chosen(only):
        click.echo(f"  {name} …", err=True)
        running[name] = start(name, folder).state
    _print(running)
    click.echo()
    for name, state in running.items():
        click.echo(f"export {SERVERS[name].setting}={shlex.quote(state.address)}")


@services.command()
@_options
def down(folder: Path, only: str) -> None:
    """Stop the servers; their programs and data are kept."""
    from tools.servers import down as stop

    for name in reversed(_chosen(only)):
        if stop(name, folder):
            click.echo(f"  {name} has stopped", err=True)


@services.command()
@_options
def status(folder: Path, only: str) -> None:
    """List the servers and their addresses; exit with 1 if one is not running."""
    from tools.servers import look

    states = {name: look(name, folder) for name in _chosen(only)}
    _print(states)
    if not all(state and state.lives for state in states.values()):
        click.get_current_context().exit(1)


def _chosen(only: str) -> list[str]:
    from tools.servers import choose

    return choose(name.strip() for name in only.split(",") if name.strip())


def _print(states: dict[str, ServerState | None] | dict[str, ServerState]) -> None:
    rows = [
        (name, state.version, "live" if state.lives else "down", str(state.pid or "–"), state.address)
        if state
        else (name, "–", "down", "–", "–")
        for name, state in states.items()
    ]
    print_table(("SERVER", "VERSION", "STATE", "PID", "ADDRESS"), rows)


def main() -> None:
    try:
        services(prog_name="python -m tools.servers", standalone_mode=True)
    except BellringerError as error:
        click.echo(f"error: {error.message}\n  {error.hint or ''}".rstrip(), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
