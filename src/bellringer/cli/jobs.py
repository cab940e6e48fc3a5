"""`bellringer jobs`: list, create, update, pause, resume, trigger and delete jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from heapq import merge
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from bellringer.cli.backfills import backfill
from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.job_history import import_jobs, revisions, rollback, skip, unskip
from bellringer.cli.options import argument_options, fetch_pages, limit_option, read_arguments, wait_options
from bellringer.cli.output import (
    LIST,
    ONE,
    format_local,
    format_relative,
    output_option,
    print_fields,
    print_list,
    print_warnings,
    sanitize,
    to_compact_json,
    to_json,
)

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.jobs import Job
    from bellringer.wire.schedules import DryRun


F = TypeVar("F", bound=Callable[..., Any])

SCHEDULE_KINDS: Final = ("cron", "rrule", "every", "at", "delay")
# The kinds of schedule that each option applies to.
SCHEDULE_OPTIONS: Final = {
    "tz": ("cron", "rrule"),
    "gap": ("cron", "rrule"),
    "fold": ("cron", "rrule"),
    "calendar": ("cron", "rrule"),
    "shift": ("cron", "rrule"),
    "start": ("rrule", "cron", "every"),
    "exdate": ("rrule",),
    "rdate": ("rrule",),
    "seconds": ("cron",),
    "dialect": ("cron",),
    "day_match": ("cron",),
    "times": ("cron", "every"),
}
JOB_STATES: Final = ("enabled", "paused", "disabled", "done", "late", "failing")
POLICY_FIELDS: Final = (
    "pool", "priority", "timeout", "misfire", "max_catchup", "catchup_window", "catchup_rate", "overlap",
    "max_concurrency", "concurrency_key", "concurrency_limit", "jitter", "late_after", "starts_at", "ends_at",
    "expected_duration", "after_completion", "after", "region", "expires_in", "pause_after_failures", "keep_result",
)  # fmt: skip
RETRY_FIELDS: Final = ("attempts", "delays", "jitter", "only_on", "never_on", "max_elapsed")
_CLEAR: Final = "none"  # the value that clears an option


def _read_count(_context: click.Context, option: click.Parameter, value: str | None) -> int | str | None:
    """Read a number of at least 1, or the word that clears the option."""
    if value is None or value == _CLEAR:
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is not a whole number of at least 1", param=option)
    return int(value)


_SCHEDULE = (
    click.option("--cron", metavar="EXPR", help="Cron expression: minute, hour, day of month, month, day of week."),
    click.option(
        "--rrule", metavar="RULE", help="Recurrence rule (RFC 5545), such as 'FREQ=WEEKLY;BYDAY=FR'; needs --start."
    ),
    click.option(
        "--start",
        metavar="TIME",
        help="First local time of --rrule, such as 2026-01-02T09:00; with --times, the instant to count from.",
    ),
    click.option("--exdate", multiple=True, metavar="TIME", help="Local time or day that --rrule omits. Repeatable."),
    click.option("--rdate", multiple=True, metavar="TIME", help="Local time that --rrule has in addition. Repeatable."),
    click.option("--tz", metavar="ZONE", help="Time zone of the schedule, such as Europe/Paris.  [default: UTC]"),
    click.option("--seconds", is_flag=True, help="--cron has six fields, seconds first."),
    click.option("--dialect", metavar="WORD", help="Dialect of --cron: unix, quartz or aws.  [default: unix]"),
    click.option(
        "--day-match",
        metavar="WORD",
        help="Days that must match day of month and day of week: either or both.  [default: as crontab]",
    ),
    click.option("--times", type=click.IntRange(1), help="End --cron or --every after this many occurrences."),
    click.option(
        "--gap",
        metavar="WORD",
        help="Local times skipped by a DST change: next or skip.  [default: next; skip after a leading *]",
    ),
    click.option(
        "--fold",
        metavar="WORD",
        help="Local times repeated by a DST change: first, second or both.  [default: first; both after a leading *]",
    ),
    click.option("--calendar", metavar="NAME", help="Calendar of days off."),
    click.option("--shift", metavar="WORD", help="Occurrences on a day off: skip, next or previous.  [default: skip]"),
    click.option("--every", metavar="TIME", help="Fixed interval, such as 10s, 15m, 1h30m or 1d."),
    click.option("--at", metavar="INSTANT", help="Run once, at this RFC 3339 instant."),
    click.option("--delay", metavar="TIME", help="Run this long after the previous run has ended."),
    click.option("--after", metavar="JOB", help="Also run when a run of this other job ends."),
    click.option(
        "--after-on",
        metavar="WORD",
        help="With --after: which ends count: success, failure or any.  [default: success]",
    ),
)
_POLICIES = (
    click.option("--pool", help="Worker pool.  [default: long if expected to take over a minute, else short]"),
    click.option("--expected-duration", metavar="TIME", help="Expected duration of a run."),
    click.option("--priority", type=click.IntRange(0, 9), help="Priority; higher runs first.  [default: 5]"),
    click.option("--timeout", metavar="TIME", help="Maximum duration of an attempt."),
    click.option("--attempts", type=click.IntRange(1), help="Maximum number of attempts.  [default: 3]"),
    click.option(
        "--retry-delay", "delays", metavar="TIME", multiple=True, help="Wait before a retry, in order. Repeatable."
    ),
    click.option(
        "--retry-jitter", "jitter_of_retries", type=float, metavar="X", help="Random part of a wait, from 0 to 1."
    ),
    click.option(
        "--retry-only-on", "only_on", metavar="ERROR", multiple=True, help="Retry only this exception. Repeatable."
    ),
    click.option(
        "--retry-never-on", "never_on", metavar="ERROR", multiple=True, help="Never retry this exception. Repeatable."
    ),
    click.option(
        "--retry-max-elapsed", "max_elapsed", metavar="TIME", help="No retry begins later than this after the start."
    ),
    click.option(
        "--expires-in", metavar="TIME", help="Skip a run that has not started this long after its scheduled time."
    ),
    click.option(
        "--pause-after-failures", metavar="N", callback=_read_count, help="Pause the job after N dead runs in a row."
    ),
    click.option(
        "--keep-result/--no-keep-result", default=None, help="Keep the result of a run for the next one to read."
    ),
    click.option(
        "--misfire", metavar="WORD", help="Missed occurrences: fire_once, skip or fire_all.  [default: fire_once]"
    ),
    click.option(
        "--max-catchup",
        type=click.IntRange(1),
        help="With fire_all: maximum number of missed occurrences.  [default: 100]",
    ),
    click.option(
        "--catchup-window", metavar="TIME", help="With fire_all: maximum age of missed occurrences.  [default: 7d]"
    ),
    click.option("--catchup-rate", type=float, metavar="N", help="With fire_all: maximum number of runs per minute."),
    click.option(
        "--overlap",
        metavar="WORD",
        help="If the previous run is unfinished: skip, allow, queue, collapse or replace.  [default: skip]",
    ),
    click.option("--max-concurrency", type=click.IntRange(1), help="Maximum number of concurrent runs of this job."),
    click.option(
        "--concurrency-key", metavar="KEY", help="Share a concurrency limit with all jobs that have this key."
    ),
    click.option(
        "--concurrency-limit",
        type=click.IntRange(1),
        help="Maximum number of concurrent runs with this key.  [default: 1]",
    ),
    click.option("--jitter", metavar="TIME", help="Delay each run by a fixed offset of up to this long."),
    click.option("--late-after", metavar="TIME", help="Report a run as late if it has not started after this long."),
    click.option("--starts-at", metavar="INSTANT", help="First instant of the schedule (RFC 3339)."),
    click.option("--ends-at", metavar="INSTANT", help="Last instant of the schedule (RFC 3339)."),
    click.option(
        "--after-completion",
        metavar="WORD",
        help="When no occurrence is left and all runs have ended: keep or delete the job.  [default: keep]",
    ),
    click.option("--region", metavar="NAME", help="Region whose schedulers fire the job."),
    click.option("--tag", "tags", multiple=True, help="Tag. Repeatable."),
)


def definition_options(function: F) -> F:
    for option in reversed((*_SCHEDULE, *_POLICIES)):
        function = option(function)
    return function


def read_after(given: dict[str, Any]) -> dict[str, str] | str | None:
    """Build the field `after` from --after and --after-on."""
    if given["after_on"] is None or given["after"] == _CLEAR:
        return cast("str | None", given["after"])
    return {"on": given["after_on"], **({} if given["after"] is None else {"job": given["after"]})}


def read_schedule(given: dict[str, Any]) -> dict[str, Any] | None:
    """Build the schedule from the options. It is parsed locally to show the position of a mistake."""
    kinds = [kind for kind in SCHEDULE_KINDS if given[kind] is not None]
    if len(kinds) > 1:
        fail(f"--{kinds[0]} and --{kinds[1]} are both given", "the command line supports one schedule per job")
    options = {name: given[name] for name in SCHEDULE_OPTIONS if given[name]}
    for name in options:
        if not set(kinds) & set(SCHEDULE_OPTIONS[name]):
            fail(f"--{name.replace('_', '-')} needs --{' or --'.join(SCHEDULE_OPTIONS[name])}")
    if not kinds:
        return None
    from bellringer.cli.cron import show_error_position
    from bellringer.schedule import parse_schedule

    document = {kinds[0]: given[kinds[0]], **options}
    with show_error_position(given[kinds[0]]):
        parse_schedule(document)
    return document


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer jobs list
    bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris
    bellringer jobs trigger nightly --wait
    """,
)
def jobs() -> None:
    """Manage jobs. A job is identified by its name or its id."""


jobs.add_command(backfill, "backfill")
jobs.add_command(import_jobs, "import")
jobs.add_command(skip, "skip")
jobs.add_command(unskip, "unskip")
jobs.add_command(revisions, "revisions")
jobs.add_command(rollback, "rollback")


@jobs.command(
    "list",
    examples="""
    bellringer jobs list
    bellringer jobs list --tag nightly -o name
    bellringer jobs list --state done
    bellringer jobs list --orphaned
    """,
)
@click.option("--tag", help="Only jobs with this tag.")
@click.option("--state", type=click.Choice(JOB_STATES), help="Only jobs in this state.")
@click.option("--app", help="Only jobs that the code of this app declares, or declared last.")
@click.option("--orphaned", is_flag=True, help="Only jobs that the code of their app no longer declares.")
@limit_option
@output_option(*LIST)
@with_client
def list_jobs(
    client: Client, *, tag: str | None, state: str | None, app: str | None, orphaned: bool, limit: int, output: str
) -> None:
    """List jobs."""
    from bellringer.clock import SystemClock

    given = {"tag": tag, "state": state, "app": app, "orphaned": "true" if orphaned else None}
    filters = {name: value for name, value in given.items() if value is not None}
    found = fetch_pages(client.jobs, limit, output=output, **filters)
    now = SystemClock().now()
    print_list(
        output,
        found,
        head=(
            "STATUS",
            "NAME",
            "SCHEDULE",
            "NEXT",
            *(("APP", "VERSION", "ORPHANED") if orphaned else ("TASK", "POOL")),
        ),
        row=lambda job: (
            status_of(job) + (", orphaned" if job.orphaned_at and not orphaned else ""),
            job.name,
            job.description or "manual",
            format_relative(job.next_at, now),
            *(
                (job.app or "–", job.app_version or "–", format_relative(job.orphaned_at, now))
                if orphaned
                else (job.task, job.pool)
            ),
        ),
        name=lambda job: job.name,
        empty="no orphaned jobs" if orphaned else "no jobs; create one with `bellringer jobs create` or @app.schedule",
    )


def status_of(job: Job) -> str:
    if job.paused:
        return "paused"
    if not job.enabled:
        return "disabled"
    return "done" if job.done_at else "active"


@jobs.command("get", examples="bellringer jobs get nightly -o json")
@click.argument("job")
@output_option(*ONE)
@with_client
def get(client: Client, *, job: str, output: str) -> None:
    """Show one job."""
    print_job(client.job(job), output)


def print_job(job: Job, output: str) -> None:
    from bellringer.clock import SystemClock

    print_warnings(job.warnings)

    if output != "table":
        click.echo(to_json(job) if output == "json" else job.name)
        return
    now = SystemClock().now()
    paused = ""
    if job.paused:
        parts = (job.paused.reason, job.paused.by and f"by {job.paused.by}", format_relative(job.paused.at, now))
        paused = ", ".join(part for part in parts if part)
    print_fields(
        {
            "name": job.name,
            "id": job.job_id,
            "status": status_of(job),
            "paused": paused,
            "schedule": job.description or "manual",
            "starts": format_local(job.starts_at) if job.starts_at else "",
            "ends": format_local(job.ends_at) if job.ends_at else "",
            "next": f"{format_relative(job.next_at, now)}  ({format_local(job.next_at)})" if job.next_at else "",
            "task": job.task,
            "workflow": f"{job.workflow.nodes} nodes, version {job.workflow.version}" if job.workflow else "",
            "args": to_compact_json(job.args) if job.args else "",
            "kwargs": to_compact_json(job.kwargs) if job.kwargs else "",
            "pool": job.pool + (", chosen by duration" if job.routed else ""),
            "expected": job.expected_duration or "",
            "priority": str(job.priority),
            "timeout": job.timeout or "",
            "misfire": job.misfire + (f", at most {job.max_catchup:,}" if job.max_catchup else ""),
            "overlap": job.overlap,
            "concurrency": str(job.max_concurrency or ""),
            "limit": f"{job.concurrency_limit} of {job.concurrency_key}" if job.concurrency_key else "",
            "jitter": f"{job.jitter} (this job: {job.jitter_by})" if job.jitter else "",
            "late after": job.late_after or "",
            "expires in": job.expires_in or "",
            "pauses after": f"{job.pause_after_failures} failures" if job.pause_after_failures else "",
            "keeps result": "yes" if job.keep_result else "",
            "after completion": job.after_completion,
            "followed by": ", ".join(job.followers),
            "retry": ", ".join(f"{key} {to_compact_json(value)}" for key, value in job.retry.items()),
            "tags": ", ".join(job.tags),
            "region": job.region or "",
            "owner": job.owner,
            "app": " ".join(part for part in (job.app, job.app_version) if part),
            "orphaned": f"{format_relative(job.orphaned_at, now)}; the app no longer declares it"
            if job.orphaned_at
            else "",
            "drift": describe_drift(job, now),
            "revision": f"{job.revision}, {format_relative(job.updated_at, now)}",
        }
    )


def describe_drift(job: Job, now: datetime) -> str:
    """Describe the fields that differ from the code of the app, one per line, and the latest change."""
    if not job.drift:
        return ""
    lines = [
        f"{one.field}: {to_compact_json(one.declared)} in the code, now {to_compact_json(one.current)}"
        for one in job.drift.fields
    ]
    changed = f"changed by {job.drift.by}, {format_relative(job.drift.at, now)}" if job.drift.by else ""
    return "\n".join(line for line in (*lines, changed) if line)


@jobs.command(
    "create",
    examples="""
    bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris --arg day=today
    bellringer jobs create ping shop.ping --every 15m --overlap queue --late-after 5m
    bellringer jobs create payroll hr.pay --cron '0 9 1 * *' --calendar de --shift previous --misfire fire_all
    bellringer jobs create once shop.notify --at 2030-01-01T09:00:00+01:00
    bellringer jobs create load shop.load --after nightly --after-on success
    """,
)
@click.argument("name")
@click.argument("task")
@definition_options
@argument_options
@output_option(*ONE)
@with_client
def create(client: Client, /, *, named: Sequence[str], args_json: str | None, output: str, **given: Any) -> None:
    """Create the job NAME, which runs TASK. Without a schedule, it runs only when triggered."""
    args, kwargs = read_arguments(named, args_json)
    document = {
        "name": given["name"],
        "task": given["task"],
        "args": args,
        "kwargs": kwargs,
        "schedule": read_schedule(given),
        "retry": read_retry(given),
        "tags": list(given["tags"]) or None,
        **{name: given[name] for name in POLICY_FIELDS},
        "after": read_after(given),
    }
    made = client.create_job({key: value for key, value in document.items() if value is not None})
    print_job(made, output)


@jobs.command(
    "trigger",
    examples="""
    bellringer jobs trigger nightly
    bellringer jobs trigger nightly --arg day=2030-01-01 --wait
    """,
)
@click.argument("job")
@argument_options
@wait_options
@output_option(*ONE)
@with_client
def trigger(
    client: Client,
    *,
    job: str,
    named: Sequence[str],
    args_json: str | None,
    wait: bool,
    timeout: float | None,
    output: str,
) -> None:
    """Run a job now, regardless of its schedule. Arguments apply to this run only."""
    from bellringer.cli.runs import print_run, wait_and_print

    args, kwargs = read_arguments(named, args_json)
    run = client.trigger(job, args=args, kwargs=kwargs)
    if wait:
        wait_and_print(client, run.run_id, timeout, output)
    elif output == "table":
        click.echo(f"{run.run_id}  {run.state}")
    else:
        print_run(run, output)


@jobs.command(
    "pause",
    examples="""
    bellringer jobs pause nightly --reason INC-42
    bellringer jobs pause nightly --until 2h
    """,
)
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--reason", help="Reason, shown with the job.")
@click.option("--until", metavar="TIME", help="Resume automatically: an RFC 3339 instant, or a duration such as 2h.")
@with_client
def pause(client: Client, *, names: Sequence[str], reason: str | None, until: str | None) -> None:
    """Pause jobs: no new runs are created, and waiting runs are held."""
    for name in names:
        job = client.pause(name, reason=reason, until=until)
        click.echo(f"paused {job.name}")


MISSED_TEXTS = {
    "skip": "skipped (use --missed latest or all to run them)",
    "latest": "running the latest now, at low priority",
    "all": "running all now, at low priority (see `bellringer backfills list`)",
}


@jobs.command(
    "resume",
    examples="""
    bellringer jobs resume nightly
    bellringer jobs resume nightly --missed latest
    """,
)
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--missed",
    type=click.Choice(["skip", "latest", "all"]),
    default="skip",
    show_default=True,
    help="What to do with occurrences missed during the pause.",
)
@with_client
def resume(client: Client, *, names: Sequence[str], missed: str) -> None:
    """Resume paused jobs, and show how many occurrences they missed."""
    from bellringer.clock import SystemClock

    for name in names:
        done = client.resume(name, missed=missed)
        job, count = done.job, f"{done.missed:,} occurrence{'' if done.missed == 1 else 's'}"
        following = f", next {format_relative(job.next_at, SystemClock().now())}" if job.next_at else ""
        if done.since is None:
            click.echo(f"{job.name} was not paused{following}")
            continue
        click.echo(f"resumed {job.name}{following}")
        if done.missed:
            click.echo(f"  missed {count} while paused: {MISSED_TEXTS[done.what]}")


@jobs.command("delete", examples="bellringer jobs delete nightly --yes")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@with_client
def delete(client: Client, *, names: Sequence[str], yes: bool) -> None:
    """Delete jobs. Running runs finish, and the history is kept."""
    confirm(f"delete {', '.join(names)}?", yes=yes)
    for name in names:
        client.delete_job(name)
        click.echo(f"deleted {name}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation; without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail("confirmation is required, but stdin is not a terminal", "add --yes")
    click.confirm(question, abort=True, err=True)


@jobs.command(
    "update",
    examples="""
    bellringer jobs update nightly --cron '0 4 * * *' --dry-run
    bellringer jobs update nightly --tz Europe/Berlin --timeout 20m
    bellringer jobs update nightly --jitter none --disable
    """,
)
@click.argument("job")
@definition_options
@argument_options
@click.option("--enable/--disable", "enabled", default=None, help="Enable or disable the schedule.")
@click.option("--dry-run", is_flag=True, help="Show the effect on fields and upcoming fires without changing anything.")
@click.option("--days", type=click.IntRange(1, 366), help="Number of days that --dry-run looks ahead.  [default: 7]")
@output_option(*ONE)
@with_client
def update(client: Client, /, *, job: str, dry_run: bool, days: int | None, output: str, **given: Any) -> None:
    """Change the given options of JOB; all others are kept. The value `none` clears an option."""
    from bellringer.cli.jobs import print_job

    patch = read_patch(given)
    if not patch:
        fail("no options are given", "pass the options to change, such as --cron '0 4 * * *'")
    if days is not None and not dry_run:
        fail("--days needs --dry-run")
    if not dry_run:
        print_job(client.patch_job(job, patch), output)
        return
    found = client.dry_run(job, patch, days=days)
    if output == "json":
        click.echo(to_json(found))
        return
    for line in render_dry_run(found):
        click.echo(sanitize(line))


def read_patch(given: dict[str, Any]) -> dict[str, Any]:
    """Build the merge patch from the options."""
    given = {**given, "after": read_after(given)}
    patch = {name: given[name] for name in (*POLICY_FIELDS, "enabled") if given[name] is not None}
    patch = {name: None if value == _CLEAR else value for name, value in patch.items()}
    if retry := read_retry(given):
        patch["retry"] = retry
    if given["tags"]:
        patch["tags"] = list(given["tags"])
    args, kwargs = read_arguments(given["named"], given["args_json"])
    patch |= {name: value for name, value in (("args", args), ("kwargs", kwargs)) if value is not None}
    schedule = _read_schedule_patch(given)
    return patch if schedule is None else {**patch, "schedule": schedule}


def read_retry(given: dict[str, Any]) -> dict[str, Any] | None:
    """Build the fields of the retry policy that are given."""
    values = {**given, "jitter": given["jitter_of_retries"]}
    chosen = {name: values[name] for name in RETRY_FIELDS if values[name] not in (None, ())}
    lists = {name: list(value) for name, value in chosen.items() if isinstance(value, tuple)}
    return {name: None if value in (_CLEAR, [_CLEAR]) else value for name, value in {**chosen, **lists}.items()} or None


def _read_schedule_patch(given: dict[str, Any]) -> dict[str, Any] | None:
    """Build a new schedule, or changed options of the current one."""
    options = {name: given[name] for name in SCHEDULE_OPTIONS if given[name]}
    if any(given[kind] is not None for kind in SCHEDULE_KINDS):
        return read_schedule(given)
    return {name: None if value == _CLEAR else value for name, value in options.items()} or None


def render_dry_run(found: DryRun) -> Iterator[str]:
    """Render the changed fields, then the removed (-) and added (+) fires."""
    if not found.changes:
        yield "no changes"
        return
    for change in found.changes:
        yield f"{change.field}: {to_compact_json(change.before)} → {to_compact_json(change.after)}"
    fires = found.fires
    yield f"fires up to {format_local(fires.end)}: {fires.before:,} → {fires.after:,}, {fires.kept:,} unchanged"
    for sign, at in merge(_signed("-", fires.removed), _signed("+", fires.added), key=lambda pair: pair[1]):
        yield f"{sign} {at:%a} {format_local(at)}"
    if fires.truncated:
        yield "… the list is truncated"
    yield f"next: {format_local(found.next_before)} → {format_local(found.next_after)}"
    for warning in found.warnings:
        yield f"warning: {warning.text}"


def _signed(sign: str, instants: Sequence[datetime]) -> Iterator[tuple[str, datetime]]:
    return ((sign, at) for at in instants)
