"""`bellringer verify`: checks the history of runs against the schedules."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli import options
from bellringer.cli.command_groups import Command, fail
from bellringer.cli.progress import show_progress

if TYPE_CHECKING:
    from bellringer.cli.progress import Progress
    from bellringer.config import Config

DEFAULT_TENANT: Final = "default"
MAX_SHOWN: Final = 100  # findings in the text output
NOTHING_TO_CHECK: Final = "nothing to check: no occurrence was expected and no run was created in this window"


@click.command(
    cls=Command,
    examples="""
    bellringer verify
    bellringer verify --from 7d --to 1d --job nightly-report
    bellringer verify --from 2026-12-01T00:00:00Z --to 2026-12-02T00:00:00Z --json > findings.jsonl
    bellringer verify --url https://bellringer.example.com --from 7d
    """,
)
@click.option(
    "--from",
    "start",
    metavar="TIME",
    default="24h",
    show_default=True,
    help="Start: an RFC 3339 instant, or a duration before now.",
)
@click.option("--to", "end", metavar="TIME", help="End: an RFC 3339 instant, or a duration before now.  [default: now]")
@click.option("--job", metavar="NAME_OR_ID", help="Check only this job.")
@click.option(
    "--tenant",
    metavar="NAME",
    default=DEFAULT_TENANT,
    show_default=True,
    help="Tenant whose runs are compared with its schedules.",
)
@click.option(
    "--late-after", metavar="LENGTH", default="60s", show_default=True, help="A run created later than this is late."
)
@click.option(
    "--unstarted-after",
    metavar="LENGTH",
    default="5m",
    show_default=True,
    help="A run that has not started after this long is a finding.",
)
@click.option("--strict", is_flag=True, help="Report late runs as findings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: one per finding, and a summary at the end.")
@click.option("--dsn", metavar="URL", help="Verify with this database.  [default: BELLRINGER_DSN]")
@click.option("--url", metavar="URL", help="Let this server verify, instead of reading the database.")
@click.option("--key", metavar="KEY", help="API key for the server.  [default: BELLRINGER_KEY]")
def verify(as_json: bool, dsn: str | None, url: str | None, key: str | None, **asked: Any) -> None:
    """Check that no occurrence was missed, ran twice or ran early. Changes nothing.

    Computes the expected occurrences from the jobs and their revisions, and compares them with the runs, the
    recorded gaps and the open catch-ups (pending). The exit code is 1 if an occurrence is missing, double,
    unexpected, early, unstarted, stranded or unrequested. A run is unstarted if it has not started after
    --unstarted-after, unless it waits for a pause, a freeze, a limit or an earlier run. A run is stranded if it was
    claimed but no worker executes it, and unrequested if it was cancelled without a request. The last 70 seconds and
    runs past their retention are not checked.

    Reads the database of --dsn or BELLRINGER_DSN. With --url, or if no database is configured, a server verifies: its
    tenant is that of the key, or --tenant for an installation key, and a window has at most 31 days.
    """
    if dsn and url:
        fail("--dsn and --url exclude each other", "give the database or the server that verifies")
    config = _load_config(dsn, url)
    printer = _JsonPrinter() if as_json else _TextPrinter()
    with show_progress("verifying", "jobs") as progress:
        if url or not config.dsn:
            summary = _ask_server(url, key, asked, printer.add)
        else:
            summary = asyncio.run(_verify(config, asked, printer.add, progress))
    printer.close(summary)
    if not summary["clean"]:
        click.get_current_context().exit(1)


def _load_config(dsn: str | None, url: str | None) -> Config:
    """Loads the configuration. The database of a nearby `bellringer dev` is not used if a server is named."""
    from bellringer.config import load_config

    config = load_config({"dsn": dsn, "url": url}, environ=os.environ)
    return config if config.url else options.load_config(dsn=dsn)


def _ask_server(
    url: str | None, key: str | None, asked: dict[str, Any], show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Lets the server verify, and returns the summary."""
    from msgspec import to_builtins

    from bellringer.cli.connect import find_key, find_url
    from bellringer.client import Client
    from bellringer.clock import SystemClock
    from bellringer.errors import Unavailable
    from bellringer.schedule.instants import write_instant

    now = SystemClock().now()
    tenant = asked.pop("tenant")
    asked["start"] = write_instant(_read_time(asked["start"], now, "--from"))
    asked["end"] = None if asked["end"] is None else write_instant(_read_time(asked["end"], now, "--to"))
    with Client(find_url(url), token=find_key(key), tenant=None if tenant == DEFAULT_TENANT else tenant) as client:
        for line in client.verify(**asked):
            if line.summary is not None:
                return line.summary
            show(to_builtins(line))
    raise Unavailable("the server ended the verification before its summary", hint="see the log of the server")


async def _verify(
    config: Config, asked: dict[str, Any], show: Callable[[dict[str, Any]], None], progress: Progress
) -> dict[str, Any]:
    """Verifies with the database, and returns the summary."""
    from bellringer.durations import parse_duration
    from bellringer.store.connection_pool import connect
    from bellringer.store.migrate import require_current
    from bellringer.verify import VerifyScope
    from bellringer.verify import verify as check

    late_after = parse_duration(asked.pop("late_after"), what="--late-after")
    unstarted_after = parse_duration(asked.pop("unstarted_after"), what="--unstarted-after")
    connection = await connect(config.require_session_dsn(), name="bellringer verify")
    try:
        await require_current(connection)
        now: datetime = await connection.fetchval("select bellringer.now()")
        start = _read_time(asked.pop("start"), now, "--from")
        end = _read_time(asked.pop("end"), now, "--to")
        wanted = VerifyScope(start=start, end=end, late_after=late_after, unstarted_after=unstarted_after, **asked)
        summary = await check(
            connection,
            wanted,
            lambda finding: show(finding.document()),
            retention=config.retention,
            progress=progress.update,
        )
        found: dict[str, Any] = summary.document()["summary"]
        return found
    finally:
        await connection.close()


def _read_time(text: str | None, now: datetime, what: str) -> datetime:
    """Parse an instant, or a duration before now."""
    from bellringer.durations import parse_duration
    from bellringer.schedule.instants import read_instant

    if text is None:
        return now
    if "-" in text[1:]:
        return read_instant(text, what=what)
    return now - parse_duration(text, what=what)


class _JsonPrinter:
    """Prints a JSON line per finding, then the summary."""

    def add(self, finding: dict[str, Any]) -> None:
        self._write(finding)

    def close(self, summary: dict[str, Any]) -> None:
        self._write({"summary": summary})

    def _write(self, document: dict[str, Any]) -> None:
        from bellringer.cli.output import to_compact_json

        click.echo(to_compact_json(document))


class _TextPrinter:
    """Prints the first findings, and the summary as text."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, finding: dict[str, Any]) -> None:
        from bellringer.cli.output import sanitize

        self._count += 1
        if self._count <= MAX_SHOWN:
            job, detail = sanitize(finding["job"]), finding["detail"]
            click.echo(f"{finding['finding']:<11}{finding['scheduled_for']}  {job}  {detail}")

    def close(self, summary: dict[str, Any]) -> None:
        from bellringer.cli.output import print_fields

        if self._count > MAX_SHOWN:
            click.echo(f"… and {self._count - MAX_SHOWN:,} more; use --json to see all")
        sums = dict(summary)
        window = f"{sums.pop('from')} – {sums.pop('to')}"
        clean = sums.pop("clean")
        by_reason = sums.pop("skipped").items()
        sums["skipped"] = ", ".join(f"{count:,} by {reason}" for reason, count in sorted(by_reason))
        quiet = {"skipped", "pending", "owed", "repeatable", "delays", "unreadable"}  # shown only if not zero
        facts = {
            key: described if isinstance(described, str) else f"{described:,}"
            for key, described in sums.items()
            if described or key not in quiet
        }
        verdict = "not clean" if not clean else "clean" if sums["expected"] or sums["created"] else NOTHING_TO_CHECK
        print_fields({"window": window, **facts, "verdict": verdict})
