"""`bellringer server | scheduler | worker`: one process each."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bellringer.cli.groups import Command, fail
from bellringer.cli.listening import listen
from bellringer.cli.options import load_config, process_options

if TYPE_CHECKING:
    from bellringer.store.pool import Store


@click.command(
    cls=Command,
    examples="""
    BELLRINGER_DSN=postgresql://app@db/bellringer bellringer server
    bellringer server --port 9000 --no-scheduler
    """,
)
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="The port to listen on.  [default: 8700]")
@click.option("--no-scheduler", is_flag=True, help="The API alone; schedulers run elsewhere.")
@click.option("--insecure", is_flag=True, help="Nobody has to log in, wherever they call from.")
@click.option("--listening-fd", type=int, hidden=True)
@process_options
def server(no_scheduler: bool, insecure: bool, listening_fd: int | None, with_parent: bool, **flags: Any) -> None:
    """Run the API and a scheduler until SIGTERM or Ctrl-C.

    Start as many as you like: they share the work, and take over from one that is gone. Callers log in by a key:
    make the first with `bellringer keys create`, or give BELLRINGER_ROOT_KEY.
    """
    config = load_config(**flags)
    config.require_dsn()
    from bellringer import assembly
    from bellringer.config import described

    inherited = listening_fd is not None
    listening = socket.socket(fileno=listening_fd) if inherited else listen(config.host, config.port)
    assembly.run_server(
        config,
        listening,
        with_scheduler=not no_scheduler,
        insecure=insecure,
        with_parent=with_parent,
        settings=described(config, flags, environ=os.environ),
    )


@click.command(cls=Command, examples="BELLRINGER_DSN=postgresql://app@db/bellringer bellringer scheduler")
@click.option("--metrics-port", type=int, metavar="PORT", help="Serve Prometheus metrics on this port.")
@process_options
def scheduler(with_parent: bool, metrics_port: int | None, **flags: Any) -> None:
    """Run a scheduler alone: one more node that shares the shards with the others."""
    config = load_config(**flags)
    config.require_dsn()
    if metrics_port is not None:
        _serve_metrics(config.host, metrics_port)
    from bellringer import assembly

    assembly.run_scheduler(config, with_parent=with_parent)


def _pools(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    pools = {}
    for text in (part for words in given for part in words.split(",")):
        name, _, count = text.partition("=")
        if not name or not count.isascii() or not count.isdecimal() or not 1 <= int(count) <= 10_000:
            hint = "write it like --pool io=10 or --pools short=200,long=4: a name and a number of slots"
            fail(f"--pool {text!r} cannot be read", hint)
        pools[name] = int(count)
    return pools


@click.command(
    cls=Command,
    examples="""
    bellringer worker app.py
    bellringer worker shop.jobs:app --pools short=200,long=4
    bellringer worker shop.jobs:app --pool short=50 --pool reports=2 --grace 2m
    """,
)
@click.argument("target", metavar="APP")
@click.option(
    "--pool", "--pools", "pools", multiple=True, callback=_pools, metavar="NAME=SLOTS", help="A pool to serve, or some."
)
@click.option("--slots", type=click.IntRange(1, 10_000), help="Slots of each pool, without --pool.  [default: 50]")
@click.option("--grace", metavar="TIME", help="How long running work may take to finish on stop.  [default: 30s]")
@click.option("--metrics-port", type=int, metavar="PORT", help="Serve Prometheus metrics on this port.")
@click.option("--live", is_flag=True, help="A readable line for each start and end of a run.")
@click.option("--ready-fd", type=int, hidden=True)
@process_options
def worker(
    *,
    target: str,
    pools: Mapping[str, int],
    slots: int | None,
    metrics_port: int | None,
    live: bool,
    ready_fd: int | None,
    with_parent: bool,
    **flags: Any,
) -> None:
    """Run the tasks of APP until SIGTERM or Ctrl-C, then let what runs finish.

    APP is app.py, module:app or path/to/file.py:app. Its schedules are declared first. Without --pool the
    worker serves the pools short and long, and those that its tasks name.
    """
    config = load_config(**flags)
    if config.dsn:  # so that the app, and whatever its handlers send, finds the same database
        os.environ["BELLRINGER_DSN"] = config.dsn
    from bellringer import assembly
    from bellringer.clock import SystemClock
    from bellringer.dev.lines import Lines
    from bellringer.worker.target import load_target

    app: Any = load_target(target)
    if metrics_port is not None:
        _serve_metrics(config.host, metrics_port)
    assembly.run_worker(
        app,
        pools=pools,
        slots=slots,
        config=config,
        target=target,
        observer=Lines(SystemClock()) if live else None,
        joined=partial(_joined, app, live, ready_fd),
        with_parent=with_parent,
    )


def _serve_metrics(host: str, port: int) -> None:
    from prometheus_client import start_http_server

    from bellringer.errors import ConfigError

    try:
        start_http_server(port, addr=host)
    except OSError as error:
        hint = "choose another --metrics-port"
        raise ConfigError(f"metrics cannot be served on port {port}: {error.strerror}", hint=hint) from None


async def _joined(app: Any, live: bool, ready_fd: int | None, store: Store) -> None:
    from bellringer.dev.lines import greet
    from bellringer.store import jobs
    from bellringer.store.names import Names

    if live:
        found = await jobs.listing(store, await Names(store).tenant_id(app.tenant), None, 1000)
        greet(app.registry.names(), [job.name for job in found])
    if ready_fd is not None:
        os.write(ready_fd, b"1")
        os.close(ready_fd)
