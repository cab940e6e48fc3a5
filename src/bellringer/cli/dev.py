"""`bellringer dev`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from bellringer.cli.groups import Command, fail


@click.command(
    cls=Command,
    examples="""
    bellringer dev --demo
    bellringer dev app.py
    bellringer dev shop.jobs:app --port 9000
    """,
)
@click.argument("app", metavar="[APP]", required=False)
@click.option("--demo", is_flag=True, help="Run a small shop's jobs, to look at.")
@click.option("--port", type=int, help="The port of the API.  [default: 8700]")
@click.option("--host", help="The address of the API.  [default: 127.0.0.1]")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".bellringer"),
    show_default=True,
    help="Where the database is kept.",
)
@click.option("--insecure", is_flag=True, help="Nobody has to log in, wherever they call from.")
def dev(*, app: str | None, demo: bool, port: int | None, host: str | None, folder: Path, insecure: bool) -> None:
    """Run everything on this machine: API, scheduler, worker, and a PostgreSQL of its own.

    APP is app.py or module:app. Ctrl-C stops it; the next start finds its data. BELLRINGER_DSN makes it use
    another database. Who calls from this machine need not log in; from elsewhere they do.
    """
    if app and demo:
        fail("an app and --demo are both given", "give one of them")
    from bellringer.cli.listening import listen, url_of
    from bellringer.config import load

    config = load({"host": host, "port": port}, environ=os.environ)
    from importlib.metadata import version

    from bellringer.dev.lines import Paint
    from bellringer.dev.supervisor import Plan, Supervisor

    listening = listen(config.host, config.port)
    plan = Plan(
        folder=folder.absolute(),
        listening=listening,
        url=url_of(config.host, listening),
        version=version("bellringer"),
        target="bellringer.demo:app" if demo else app,
        dsn=config.dsn,
        own_keys=bool(config.secret_keys),
        own_networks=bool(config.egress_allow),
        auth=config.auth or "none",
        insecure=insecure,
    )
    click.get_current_context().exit(Supervisor(plan, Paint(sys.stdout), os.environ).run())
