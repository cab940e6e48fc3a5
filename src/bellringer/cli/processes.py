"""`bellringer server | scheduler | worker`: one process each, or several under a supervisor with `--procs`."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import Command, fail
from bellringer.cli.listening_socket import listen
from bellringer.cli.options import load_config, metrics_options, process_options

if TYPE_CHECKING:
    from bellringer.config import Config
    from bellringer.store.connection_pool import Store


MAX_PROCESSES: Final = 256
EXIT_SECONDS: Final = 5.0  # for threads that handlers left behind, after the worker has stopped


class _ProcessCount(click.ParamType[int]):
    """A number of processes, or `auto` for the number of processors that this process may use."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from bellringer.supervise.cpu_count import available_cpus

        if value == "auto":
            return min(available_cpus(), MAX_PROCESSES)
        text = str(value)
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MAX_PROCESSES:
            self.fail(f"{text!r} is neither a number from 1 to {MAX_PROCESSES} nor auto", param, ctx)
        return int(text)


@click.command(
    cls=Command,
    examples="""
    BELLRINGER_DSN=postgresql://app@db/bellringer bellringer server
    bellringer server --port 9000 --no-scheduler
    bellringer server --procs auto
    """,
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on.  [default: 8700]")
@click.option("--no-scheduler", is_flag=True, help="Run the API only; schedulers run elsewhere.")
@click.option("--insecure", is_flag=True, help="Accept requests from anywhere without a login.")
@click.option(
    "--procs",
    type=_ProcessCount(),
    metavar="N|auto",
    help="Run N supervised processes on one port; auto: one per CPU.",
)
@click.option("--listening-fd", type=int, hidden=True)
@click.option("--metrics-fd", type=int, hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
@click.option("--proc", type=int, hidden=True)  # the number of this process under `--procs`
@metrics_options
@process_options
def server(
    *,
    no_scheduler: bool,
    insecure: bool,
    procs: int | None,
    listening_fd: int | None,
    metrics_fd: int | None,
    ready_fd: int | None,
    proc: int | None,
    with_parent: bool,
    **flags: Any,
) -> int:
    """Run the API and a scheduler until SIGTERM or Ctrl-C.

    Start as many servers as you like: they share the work, and take over when one fails. Callers authenticate with
    API keys: create the first one with `bellringer keys create --dsn`, or set BELLRINGER_ROOT_KEY.

    One process uses about one CPU. With --procs, a supervisor runs several processes that accept requests on the same
    port, restarts those that crash, and sums their metrics. Only the first of them runs a scheduler.
    """
    config = load_config(**flags)
    config.require_dsn()
    inherited = listening_fd is not None
    listening = socket.socket(fileno=listening_fd) if inherited else listen(config.host, config.port)
    if procs is not None:
        arguments = [
            *_options(flags),
            *(["--insecure"] if insecure else []),
            *(["--no-scheduler"] if no_scheduler else []),
        ]
        return _run_servers(config, procs, arguments, listening)
    if metrics_fd is not None:
        metrics_listening: socket.socket | None = socket.socket(fileno=metrics_fd)
    else:
        metrics_listening = None if proc is not None else _listen_for_metrics(config)
    from bellringer import process_assembly, telemetry
    from bellringer.config import describe_settings

    if proc is not None:
        telemetry.set_common_fields(proc=proc)
    process_assembly.run_server(
        config,
        listening,
        with_scheduler=not no_scheduler,
        insecure=insecure,
        with_parent=with_parent,
        settings=describe_settings(config, flags, environ=os.environ),
        started=partial(_report_ready, ready_fd, {}),
        metrics_listening=metrics_listening,
    )
    from bellringer.supervise.role_processes import STOPPED_EXIT_CODE

    return 0 if proc is None else STOPPED_EXIT_CODE


@click.command(cls=Command, examples="BELLRINGER_DSN=postgresql://app@db/bellringer bellringer scheduler")
@metrics_options
@process_options
def scheduler(with_parent: bool, **flags: Any) -> None:
    """Run a scheduler without the API: one more node that shares the shards with the others."""
    config = load_config(**flags)
    config.require_dsn()
    from bellringer import process_assembly

    _serve_metrics(config, "scheduler")
    process_assembly.run_scheduler(config, with_parent=with_parent)


def _pools(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    pools = {}
    for text in (part for words in given for part in words.split(",")):
        name, _, count = text.partition("=")
        if not name or not count.isascii() or not count.isdecimal() or not 1 <= int(count) <= 10_000:
            hint = "write it like --pool io=10 or --pools short=200,long=4: a name and a number of slots"
            fail(f"--pool {text!r} is not NAME=SLOTS", hint)
        pools[name] = int(count)
    return pools


@click.command(
    cls=Command,
    examples="""
    bellringer worker app.py
    bellringer worker app.py --procs auto
    bellringer worker shop.jobs:app --pools short=200,long=4
    bellringer worker shop.jobs:app --pool short=50 --pool reports=2 --grace 2m
    """,
)
@click.argument("target", metavar="APP")
@click.option(
    "--pool",
    "--pools",
    "pools",
    multiple=True,
    callback=_pools,
    metavar="NAME=SLOTS",
    help="Pool to serve and its number of slots. Repeatable.",
)
@click.option("--slots", type=click.IntRange(1, 10_000), help="Slots per pool if --pool is not given.  [default: 50]")
@click.option(
    "--procs",
    type=_ProcessCount(),
    metavar="N|auto",
    help="Run N supervised processes, each with all slots; auto: one per CPU.",
)
@click.option("--grace", metavar="TIME", help="Time for running work to finish on shutdown.  [default: 30s]")
@click.option(
    "--block-limit",
    metavar="TIME",
    help="Maximum time an `async def` handler may block its event loop.  [default: 10s]",
)
@metrics_options
@click.option("--live", is_flag=True, help="Print a readable line when a run starts and ends.")
@click.option("--ready-fd", type=int, hidden=True)
@click.option("--proc", type=int, hidden=True)  # the number of this process under `--procs`
@process_options
def worker(
    *,
    target: str,
    pools: Mapping[str, int],
    slots: int | None,
    procs: int | None,
    proc: int | None,
    live: bool,
    ready_fd: int | None,
    with_parent: bool,
    **flags: Any,
) -> int:
    """Run the tasks of APP until SIGTERM or Ctrl-C, then wait for running work to finish.

    APP is app.py, module:app or path/to/file.py:app. The schedules of the app are registered at the start. Without
    --pool, the worker serves the pools short and long, and the pools that its tasks name.

    One process uses about one CPU for Python code. With --procs, a supervisor runs several processes, restarts those
    that crash, and serves their metrics as one. Slots are not divided: --procs 4 --slots 20 has 80 slots per pool.
    """
    config = load_config(**flags)
    if procs is not None:
        arguments = [target, *(f"--pool={name}={count}" for name, count in pools.items())]
        arguments += [f"--slots={slots}"] if slots else []
        arguments += ["--live"] if live else []
        arguments += _options(flags)
        return _run_workers(config, procs, arguments)
    if proc is not None:
        from bellringer import telemetry

        telemetry.set_common_fields(proc=proc)

    def serve_metrics_of_app() -> None:
        if proc is None:  # the supervisor serves those of all processes
            _serve_metrics(config, "worker")

    return _run_worker(
        config,
        target,
        pools,
        slots,
        serve_metrics_of_app,
        proc=proc,
        live=live,
        ready_fd=ready_fd,
        with_parent=with_parent,
    )


def _run_worker(
    config: Config,
    target: str,
    pools: Mapping[str, int],
    slots: int | None,
    app_loaded: Callable[[], None],
    *,
    proc: int | None,
    live: bool,
    ready_fd: int | None,
    with_parent: bool,
) -> int:
    """Run one worker process, and return its exit code. `app_loaded` is called when its metrics exist."""
    if config.dsn:  # so that the app and tasks sent by its handlers use the same database
        os.environ["BELLRINGER_DSN"] = config.dsn
    from bellringer import process_assembly
    from bellringer.clock import SystemClock
    from bellringer.dev.live_output import LineObserver
    from bellringer.worker.app_loader import load_target
    from bellringer.worker.output import capture
    from bellringer.worker.output.echo import echo_to_log

    with ExitStack() as undo:
        if config.capture_output:  # before the import: the app's logging handlers keep the streams that they find
            capture.install(config.capture_level)
            undo.callback(capture.uninstall)
        app: Any = load_target(target)
        app_loaded()
        observer = LineObserver(SystemClock()) if live else None
        process_assembly.run_worker(
            app,
            pools=pools,
            slots=slots,
            config=config,
            target=target,
            observer=observer,
            echo=observer.print_output if observer else echo_to_log,
            joined=partial(
                _on_joined,
                app,
                live and proc in {None, 1},
                ready_fd,
                process_assembly.pools_to_serve(app, pools, slots),
            ),
            with_parent=with_parent,
            is_supervised=proc is not None,
        )
    from bellringer.supervise.role_processes import STOPPED_EXIT_CODE

    code = 0 if proc is None else STOPPED_EXIT_CODE
    _exit_in_time(code)
    return code


def _options(flags: Mapping[str, Any]) -> list[str]:
    """Returns options as arguments for a child process, without the database: everybody can read arguments."""
    given = {name: value for name, value in flags.items() if value is not None and name != "dsn"}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


def _run_workers(config: Config, procs: int, arguments: list[str]) -> int:
    """Run the supervisor of `worker --procs`, and return its exit code."""
    from bellringer import telemetry
    from bellringer.metrics_server import serve_metrics
    from bellringer.supervise.role_processes import (
        ProcessPlan,
        RoleProcesses,
        WorkersMetricsSource,
        open_metrics_folder,
    )

    telemetry.configure(config.log, config.log_level)
    listening = _listen_for_metrics(config)
    with ExitStack() as opened:
        folder = None if listening is None else opened.enter_context(open_metrics_folder())
        workers = RoleProcesses(
            ProcessPlan(
                role="worker",
                processes=procs,
                arguments=arguments,
                environment=_child_environment(config),
                grace_seconds=config.grace.total_seconds(),
                name=config.name,
                metrics_folder=folder,
            )
        )
        if folder is not None and listening is not None:
            serve_metrics(listening, WorkersMetricsSource(workers, folder.path))
        return workers.run()


def _run_servers(config: Config, procs: int, arguments: list[str], listening: socket.socket) -> int:
    """Run the supervisor of `server --procs`, and return its exit code. Each process serves the metrics of all."""
    from bellringer import telemetry
    from bellringer.process_assembly import REQUEST_DRAIN_SECONDS
    from bellringer.supervise.role_processes import ProcessPlan, RoleProcesses, open_metrics_folder

    telemetry.configure(config.log, config.log_level)
    metrics_listening = _listen_for_metrics(config)
    shared = [listening.fileno(), *([metrics_listening.fileno()] if metrics_listening else [])]
    metrics = ["--metrics-fd", str(metrics_listening.fileno())] if metrics_listening else []
    with open_metrics_folder() as folder:
        servers = RoleProcesses(
            ProcessPlan(
                role="server",
                processes=procs,
                arguments=[*arguments, "--listening-fd", str(listening.fileno()), *metrics],
                arguments_after_first=[] if "--no-scheduler" in arguments else ["--no-scheduler"],
                descriptors=shared,
                environment=_child_environment(config),
                grace_seconds=REQUEST_DRAIN_SECONDS,
                name=config.name,
                metrics_folder=folder,
            )
        )
        return servers.run()


def _child_environment(config: Config) -> dict[str, str]:
    return {**os.environ, **({"BELLRINGER_DSN": config.dsn} if config.dsn else {})}


def _exit_in_time(code: int) -> None:
    """Exit even if handlers left threads behind: Python would wait for them forever."""
    timer = threading.Timer(EXIT_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _listen_for_metrics(config: Config) -> socket.socket | None:
    """Open the socket of the metrics port, if there is one."""
    from bellringer.errors import ConfigError

    if config.metrics_address is None:
        return None
    try:
        return listen(*config.metrics_address)
    except ConfigError as error:
        hint = "choose another --metrics-port or --metrics-host"
        raise ConfigError(error.message.replace("listen", "serve metrics", 1), hint=hint) from None


def _serve_metrics(config: Config, role: str) -> None:
    """Serve the metrics of a scheduler or worker process, if it has a metrics port."""
    if (listening := _listen_for_metrics(config)) is not None:
        from bellringer.metrics_server import MetricsSource, serve_metrics

        serve_metrics(listening, MetricsSource(role))


async def _on_joined(app: Any, live: bool, ready_fd: int | None, pools: Mapping[str, int], store: Store) -> None:
    from bellringer.dev.live_output import print_welcome
    from bellringer.store import jobs
    from bellringer.store.interned_names import Catalog

    if live:
        found = await jobs.list_by_id(store, await Catalog(store).tenant_id(app.tenant), None, 1000)
        print_welcome(app.registry.names(), [job.name for job in found])
    _report_ready(ready_fd, pools)


def _report_ready(ready_fd: int | None, slots: Mapping[str, int]) -> None:
    """Tell the supervisor that this process is ready, and how many slots it has."""
    if ready_fd is not None:
        os.write(ready_fd, json.dumps(dict(slots)).encode())
        os.close(ready_fd)
