"""`bellringer cluster up`: the whole cluster on one machine."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.groups import Command, fail

if TYPE_CHECKING:
    from bellringer.services.server import Server

DEMO: Final = "demo"
ENGINES: Final = ("kafka", "etcd", "redis")


def _engines(_ctx: click.Context, _parameter: click.Parameter, given: str) -> tuple[str, ...]:
    named = {name.strip() for name in given.split(",") if name.strip()}
    if unknown := sorted(named - set(ENGINES)):
        fail(f"there is no engine {unknown[0]!r}", f"engines are {', '.join(ENGINES)}; PostgreSQL is always there")
    return tuple(name for name in ENGINES if name in named)


@click.command(
    "up",
    cls=Command,
    examples="""
    bellringer cluster up
    bellringer cluster up --nodes 3 --workers 4 --engines kafka,etcd,redis
    bellringer cluster up --app shop.jobs:app --no-restart --keep
    """,
)
@click.option("--nodes", type=click.IntRange(1, 16), default=3, show_default=True, help="API and scheduler, each.")
@click.option("--workers", type=click.IntRange(1, 32), default=4, show_default=True, help="Workers of the app.")
@click.option(
    "--engines",
    default="",
    callback=_engines,
    metavar="NAMES",
    help="Servers to start: kafka, etcd, redis.  [default: PostgreSQL does it all]",
)
@click.option("--app", default=DEMO, show_default=True, metavar="APP", help="app.py, module:app, or demo.")
@click.option("--demo", "app", flag_value=DEMO, help="The jobs of a small shop, as --app demo.")
@click.option("--port", type=int, help="Of the first node; the others have the next. 0: any.  [default: 8700]")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cluster"),
    show_default=True,
    help="Where data and logs are kept.",
)
@click.option("--keep", is_flag=True, help="Keep the data when it stops; the next start finds it.")
@click.option("--restart/--no-restart", default=True, help="Whether what dies is started again.  [default: restart]")
def up(
    *,
    nodes: int,
    workers: int,
    engines: tuple[str, ...],
    app: str,
    port: int | None,
    folder: Path,
    keep: bool,
    restart: bool,
) -> None:
    """Run a whole cluster on this machine, to try it: nodes, workers, and real servers for the engines.

    Without engines PostgreSQL does all. BELLRINGER_DSN makes it use another database than one of its own. Kill what
    you like: the first lines say the number of each process. Ctrl-C stops it.
    """
    from importlib.metadata import version

    from bellringer.cli.listening import listen, url_of
    from bellringer.config import load
    from bellringer.dev.cluster import Cluster, Plan, taken
    from bellringer.dev.lines import Paint

    config = load({"port": port}, environ=os.environ)
    folder, paint = folder.absolute(), Paint(sys.stdout)
    with ExitStack() as undo:
        fresh = undo.enter_context(taken(folder, paint))
        ports = [config.port + number if config.port else 0 for number in range(nodes)]
        listening = [undo.enter_context(listen(config.host, each)) for each in ports]
        plan = Plan(
            folder=folder,
            listening=listening,
            urls=[url_of(config.host, each) for each in listening],
            workers=workers,
            target="bellringer.demo:app" if app == DEMO else app,
            version=version("bellringer"),
            servers=[server(name, folder / name) for name in engines],
            dsn=config.dsn,
            own_keys=bool(config.secret_keys),
            own_networks=bool(config.egress_allow),
            auth=config.auth or "none",
            restarts=restart,
            fresh=fresh,
            keep=keep,
        )
        code = Cluster(plan, paint, os.environ).run()
    click.get_current_context().exit(code)


def server(name: str, folder: Path) -> Server:
    """The server of an engine; imported only when it is wanted."""
    from bellringer.services.etcd import Etcd
    from bellringer.services.kafka import Kafka
    from bellringer.services.redis import Redis

    if name == "kafka":  # its programs are got once, and shared with `bellringer services`
        return Kafka(folder, downloads=Path(".services", name))
    return Etcd(folder) if name == "etcd" else Redis(folder)
