"""`bellringer`: the table of its commands."""

from __future__ import annotations

from importlib.util import find_spec

import click

from bellringer.cli.groups import Late, Root

RUN = {
    "dev": Late("bellringer.cli.dev:dev", "Everything on this machine, with a database of its own."),
    "server": Late("bellringer.cli.processes:server", "The API and a scheduler."),
    "scheduler": Late("bellringer.cli.processes:scheduler", "A scheduler alone."),
    "worker": Late("bellringer.cli.processes:worker", "A worker that runs the tasks of an app."),
    "migrate": Late("bellringer.cli.migrate:migrate", "Bring the database to this program's schema."),
}
STEER = {
    "jobs": Late("bellringer.cli.jobs:jobs", "List, create, update, pause, resume, trigger and delete jobs."),
    "runs": Late("bellringer.cli.runs:runs", "List runs, read their logs, cancel, retry and replay them."),
    "workflows": Late("bellringer.cli.workflows:workflows", "Jobs with nodes: where a run is; retry, mark, signal."),
    "why": Late("bellringer.cli.why:why", "Why a job does not run, or what became of one of its times."),
    "backfills": Late("bellringer.cli.backfill:backfills", "What is still to be run of the past: list, pause, cancel."),
    "ops": Late("bellringer.cli.ops:ops", "Do something to many at once, and see how far it has come."),
    "dead": Late("bellringer.cli.dead:dead", "Runs that gave up: list, redrive or discard them."),
    "events": Late("bellringer.cli.events:events", "What is late, missed, slow or outgrown."),
    "webhooks": Late("bellringer.cli.webhooks:webhooks", "Who is told of events, and what was sent to them."),
    "audit": Late("bellringer.cli.audit:audit", "Who changed what, and whether anybody has tampered with it."),
    "freezes": Late("bellringer.cli.freezes:freezes", "Let schedules rest for a time."),
    "calendars": Late("bellringer.cli.calendars:calendars", "Days off by name, which schedules heed."),
    "tasks": Late("bellringer.cli.installation:tasks", "What workers can do, and what it takes."),
    "pools": Late("bellringer.cli.installation:pools", "What waits in which pool; pause and resume one."),
    "workers": Late("bellringer.cli.cluster:workers", "Who works, in which pools, and how busy; quiet or stop one."),
    "forecast": Late("bellringer.cli.forecast:forecast", "How many fires are to come, and which herds to spread."),
    "objective": Late("bellringer.cli.objective:objective", "Which part of the runs starts in time."),
    "tenants": Late("bellringer.cli.tenants:tenants", "Tenants: their shares and quotas; let one rest, and go on."),
    "keys": Late("bellringer.cli.keys:keys", "API keys: list, create, rotate and revoke them."),
    "whoami": Late("bellringer.cli.keys:whoami", "As whom the server sees you."),
    "limits": Late("bellringer.cli.keys:limits", "What your tenant may have, and what it has."),
    "cluster": Late("bellringer.cli.cluster:cluster", "Nodes, shards and leases."),
    "settings": Late("bellringer.cli.settings:settings", "The settings of a server, and where each comes from."),
}
TOOLS = {
    "cron": Late("bellringer.cli.cron:cron", "What a cron expression means, and when it fires."),
    "verify": Late("bellringer.cli.verify:verify", "Prove that nothing was missed, doubled or early."),
    "simulate": Late("bellringer.cli.simulate:simulate", "Live through a year of an app's schedules, with outages."),
    "services": Late("bellringer.cli.services:services", "Real servers on this machine, for tests and benches."),
}
BENCH = "bellringer.bench.commands"

if find_spec(BENCH) is not None:
    TOOLS["bench"] = Late(f"{BENCH}:bench", "Measure this machine.")


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"bellringer {version('bellringer')}")
        ctx.exit()


@click.group(
    cls=Root,
    sections={"Run": RUN, "Look and steer": STEER, "Tools": TOOLS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples="""
    bellringer dev --demo
    bellringer jobs list
    bellringer cron explain '30 2 * * MON-FRI' --tz Europe/Paris
    """,
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """A distributed job scheduler for Python teams: each job runs at its time.

    Commands that look and steer talk to a server: that of --url, of BELLRINGER_URL, of a `bellringer dev` in
    this folder or one above it, or http://127.0.0.1:8700.
    """
