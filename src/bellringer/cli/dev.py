"""`bellringer dev`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from bellringer.cli.command_groups import Command, fail


@click.command(
    cls=Command,
    examples="""
    bellringer dev --demo
    bellringer dev app.py
    bellringer dev shop.jobs:app --port 9000
    """,
)
@click.argument("app", metavar="[APP]", required=False)
@click.option("--demo", is_flag=True, help="Run the demo app: the jobs of a small shop.")
@click.option("--port", type=int, help="Port of the API.  [default: 8700, or the next free port]")
@click.option("--host", help="Address of the API.  [default: 127.0.0.1]")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the database.  [default: .bellringer; .bellringer-2 etc. if another instance uses it]",
)
@click.option("--insecure", is_flag=True, help="Accept requests from anywhere without a login.")
def dev(
    *, app: str | None, demo: bool, port: int | None, host: str | None, folder: Path | None, insecure: bool
) -> None:
    """Run everything on this machine: API, scheduler, worker and PostgreSQL.

    APP is app.py or module:app. Ctrl-C stops everything; the data is kept for the next start. Set BELLRINGER_DSN to
    use your own database instead. Local callers need no login; remote callers do. If another instance is running,
    this one uses its own folder and port, and prints them.
    """
    if app and demo:
        fail("an app and --demo are both given", "give one of them")
    from bellringer.cli.listening_socket import listen, listen_from, url_of
    from bellringer.config import describe_settings, load_config

    flags = {"host": host, "port": port}
    config = load_config(flags, environ=os.environ)
    sources = {setting.name: setting.source for setting in describe_settings(config, flags, environ=os.environ)}
    from importlib.metadata import version

    from bellringer.dev import state_dir
    from bellringer.dev.dev_supervisor import DevPlan, DevSupervisor
    from bellringer.dev.live_output import Painter, print_line

    wanted = (folder or Path(state_dir.DEV_FOLDER)).absolute()
    chosen, _held_while_we_live = state_dir.claim(wanted, exact=folder is not None)
    take = listen_from if sources["port"] == "default" else listen
    listening = take(config.host, config.port)
    number = listening.getsockname()[1]
    if chosen != wanted:
        print_line(
            f"  another instance uses {state_dir.shown(wanted)}; this one keeps its data in {state_dir.shown(chosen)}"
        )
    if number != config.port and config.port:
        print_line(f"  port {config.port} is in use; listening on {number} instead")
    if chosen != wanted:
        print_line(f"  to reach this instance, pass --url {url_of(config.host, listening)} to other commands")
    server_options = [] if sources["host"] == "default" else ["--host", config.host]
    if number != config.port or sources["port"] == "flag":
        server_options += ["--port", str(number)]
    plan = DevPlan(
        folder=chosen,
        listening=listening,
        server_options=server_options,
        url=url_of(config.host, listening),
        version=version("bellringer"),
        target="bellringer.demo:app" if demo else app,
        dsn=config.dsn,
        own_keys=bool(config.secret_keys),
        own_networks=bool(config.egress_allow),
        auth=config.auth or "none",
        insecure=insecure,
    )
    click.get_current_context().exit(DevSupervisor(plan, Painter(sys.stdout), os.environ).run())
