"""The root command `bellringer` and its table of subcommands."""

from __future__ import annotations

from importlib.util import find_spec

import click

from bellringer.cli.command_groups import LazyCommand, RootGroup

RUN = {
    "dev": LazyCommand("bellringer.cli.dev:dev", "Run everything on this machine, including a database."),
    "server": LazyCommand("bellringer.cli.processes:server", "Run the API and a scheduler."),
    "scheduler": LazyCommand("bellringer.cli.processes:scheduler", "Run a scheduler without the API."),
    "worker": LazyCommand("bellringer.cli.processes:worker", "Run a worker that executes the tasks of an app."),
    "migrate": LazyCommand("bellringer.cli.migrate:migrate", "Create or update the database schema."),
    "roles": LazyCommand("bellringer.cli.roles:roles", "Print SQL for database roles with least privilege."),
}
CONTROL = {
    "jobs": LazyCommand("bellringer.cli.jobs:jobs", "List, create, update, pause, resume, trigger and delete jobs."),
    "apps": LazyCommand("bellringer.cli.apps:apps", "List the apps whose code declares jobs; activate a version."),
    "runs": LazyCommand("bellringer.cli.runs:runs", "List runs, read their logs, cancel, retry and replay them."),
    "workflows": LazyCommand(
        "bellringer.cli.workflows:workflows", "Inspect workflows and their runs; retry, mark, signal."
    ),
    "why": LazyCommand("bellringer.cli.why:why", "Explain why a job does not run, or what happened at a time."),
    "backfills": LazyCommand("bellringer.cli.backfills:backfills", "List, pause, resume and cancel backfills."),
    "ops": LazyCommand("bellringer.cli.operations:ops", "Start and follow bulk operations on jobs and runs."),
    "dead": LazyCommand(
        "bellringer.cli.dead_letters:dead", "List, redrive, discard and restore dead letters (failed runs)."
    ),
    "events": LazyCommand("bellringer.cli.events:events", "List events: late, missed, slow, failed and more."),
    "webhooks": LazyCommand("bellringer.cli.webhooks:webhooks", "Manage webhook endpoints and their deliveries."),
    "notifications": LazyCommand(
        "bellringer.cli.notifications:notifications", "Manage messages to Slack, PagerDuty, Teams and by e-mail."
    ),
    "checkins": LazyCommand("bellringer.cli.checkins:checkins", "Watch jobs that run elsewhere by their check-ins."),
    "audit": LazyCommand("bellringer.cli.audit:audit", "List, export and verify the audit log."),
    "secrets": LazyCommand(
        "bellringer.cli.secrets:secrets", "Set, list and delete secrets; rotate their encryption keys."
    ),
    "archive": LazyCommand("bellringer.cli.archive:archive", "List, verify and print archived runs."),
    "freezes": LazyCommand("bellringer.cli.calendars:freezes", "Suspend schedules for a period."),
    "calendars": LazyCommand("bellringer.cli.calendars:calendars", "Manage calendars of days off."),
    "tasks": LazyCommand("bellringer.cli.tasks:tasks", "List, pause and resume tasks."),
    "pools": LazyCommand("bellringer.cli.pools:pools", "List, configure, pause and resume pools."),
    "workers": LazyCommand("bellringer.cli.cluster:workers", "List workers; quiet or stop one."),
    "forecast": LazyCommand("bellringer.cli.forecast:forecast", "Show upcoming fires, peaks, and how to spread them."),
    "objective": LazyCommand("bellringer.cli.tenants:objective", "Show which share of runs starts in time."),
    "tenants": LazyCommand("bellringer.cli.tenants:tenants", "Manage tenants, their weights and quotas."),
    "keys": LazyCommand("bellringer.cli.keys:keys", "List, create, rotate and revoke API keys."),
    "whoami": LazyCommand("bellringer.cli.keys:whoami", "Show your identity, role and tenant."),
    "limits": LazyCommand("bellringer.cli.keys:limits", "Show the quotas of your tenant and their use."),
    "cluster": LazyCommand("bellringer.cli.cluster:cluster", "Inspect nodes, shards, leases and regions."),
    "top": LazyCommand("bellringer.cli.top:top", "Watch pools, tasks, workers and nodes live."),
    "settings": LazyCommand("bellringer.cli.settings:settings", "Show the settings of a server and their sources."),
}
TOOLS = {
    "completion": LazyCommand("bellringer.cli.completion:completion", "Print a completion script for your shell."),
    "cron": LazyCommand("bellringer.cli.cron:cron", "Explain a cron expression or recurrence rule."),
    "doctor": LazyCommand("bellringer.cli.doctor:doctor", "Find settings of the database that cost speed or safety."),
    "verify": LazyCommand("bellringer.cli.verify:verify", "Check the history for missed, double or early runs."),
    "restore": LazyCommand("bellringer.cli.restore:restore", "Prepare a database that was restored from a backup."),
    "simulate": LazyCommand(
        "bellringer.cli.simulate:simulate", "Simulate an app's schedules with outages and crashes."
    ),
}
BENCH = "bellringer.bench.commands"

if find_spec(BENCH) is not None:
    TOOLS["bench"] = LazyCommand(f"{BENCH}:bench", "Measure the throughput of this machine.")


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"bellringer {version('bellringer')}")
        ctx.exit()


@click.group(
    cls=RootGroup,
    sections={"Run": RUN, "Inspect and control": CONTROL, "Tools": TOOLS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples="""
    bellringer dev --demo
    bellringer jobs list
    bellringer cron explain '30 2 * * MON-FRI' --tz Europe/Paris
    """,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def cli() -> None:
    """A distributed job scheduler for Python teams.

    Commands that inspect and control talk to a server: the one given by --url or BELLRINGER_URL, else a
    `bellringer dev` in this folder or a parent folder, else http://127.0.0.1:8700. If that `bellringer dev`
    is stopped, they fail: they do not look for another server.
    """
