"""`bellringer verify`."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.groups import Command
from bellringer.cli.options import load_config

if TYPE_CHECKING:
    from bellringer.config import Config
    from bellringer.verify import Finding, Summary

SHOWN: Final = 100  # findings that a person reads


@click.command(
    cls=Command,
    examples="""
    bellringer verify
    bellringer verify --from 7d --to 1d --job nightly-report
    bellringer verify --from 2026-12-01T00:00:00Z --to 2026-12-02T00:00:00Z --json > findings.jsonl
    """,
)
@click.option("--from", "start", metavar="TIME", default="24h", show_default=True, help="RFC 3339, or how long ago.")
@click.option("--to", "end", metavar="TIME", help="RFC 3339, or how long ago.  [default: now]")
@click.option("--job", metavar="NAME_OR_ID", help="Only this job.")
@click.option("--tenant", metavar="NAME", default="default", show_default=True, help="Whose jobs.")
@click.option(
    "--late-after", metavar="LENGTH", default="60s", show_default=True, help="A run born later than this is late."
)
@click.option("--strict", is_flag=True, help="Late runs are findings too.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each finding, and a last one for the sums.")
@click.option("--dsn", metavar="URL", help="The database.  [default: BELLRINGER_DSN]")
def verify(as_json: bool, dsn: str | None, **asked: Any) -> None:
    """Prove that nothing was missed, doubled or early.

    Works out from the jobs' definitions and their revisions what should have happened, and compares it with the
    runs, the recorded gaps and the open catch-ups (pending). Only reads. The exit code is 1 if an occurrence is
    missing, double, unexpected or early. The last 70 s are not judged, nor what is past its retention.
    """
    teller = _Json() if as_json else _Text()
    summary = asyncio.run(_verify(load_config(dsn=dsn), asked, teller))
    teller.close(summary)
    if not summary.clean:
        click.get_current_context().exit(1)


async def _verify(config: Config, asked: dict[str, Any], teller: _Json | _Text) -> Summary:
    from bellringer.durations import parse_duration
    from bellringer.store.migrate import require_current
    from bellringer.store.pool import connect
    from bellringer.verify import Asked
    from bellringer.verify import verify as check

    late_after = parse_duration(asked.pop("late_after"), what="--late-after")
    connection = await connect(config.require_dsn(), name="bellringer verify")
    try:
        await require_current(connection)
        now: datetime = await connection.fetchval("select bellringer.now()")
        start = _read(asked.pop("start"), now, "--from")
        end = _read(asked.pop("end"), now, "--to")
        wanted = Asked(start=start, end=end, late_after=late_after, **asked)
        return await check(connection, wanted, teller.tell, retention=config.retention)
    finally:
        await connection.close()


def _read(text: str | None, now: datetime, what: str) -> datetime:
    """An instant, or a length of time before now."""
    from bellringer.durations import parse_duration
    from bellringer.schedule.instants import read_instant

    if text is None:
        return now
    if "-" in text[1:]:
        return read_instant(text, what=what)
    return now - parse_duration(text, what=what)


class _Json:
    """A line for each finding, then one for the sums."""

    def tell(self, finding: Finding) -> None:
        self._write(finding.document())

    def close(self, summary: Summary) -> None:
        self._write(summary.document())

    def _write(self, document: dict[str, Any]) -> None:
        from bellringer.cli.output import short_json

        click.echo(short_json(document))


class _Text:
    """The first findings, and the sums in words."""

    def __init__(self) -> None:
        self._told = 0

    def tell(self, finding: Finding) -> None:
        from bellringer.cli.output import clean

        self._told += 1
        if self._told <= SHOWN:
            told = finding.document()
            click.echo(f"{told['finding']:<11}{told['scheduled_for']}  {clean(finding.job)}  {finding.detail}")

    def close(self, summary: Summary) -> None:
        from bellringer.cli.output import print_facts

        if self._told > SHOWN:
            click.echo(f"… and {self._told - SHOWN:,} more; --json writes them all")
        sums = summary.document()["summary"]
        window = f"{sums.pop('from')} – {sums.pop('to')}"
        clean = sums.pop("clean")
        by_reason = sums.pop("skipped").items()
        sums["skipped"] = ", ".join(f"{count:,} by {reason}" for reason, count in sorted(by_reason))
        quiet = {"skipped", "pending", "owed", "delays", "unreadable"}  # said only if there are some
        facts = {
            key: told if isinstance(told, str) else f"{told:,}"
            for key, told in sums.items()
            if told or key not in quiet
        }
        print_facts({"window": window, **facts, "verdict": "clean" if clean else "not clean"})
