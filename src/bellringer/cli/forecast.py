"""`bellringer forecast`: a chart of upcoming fires, their peak, and proposals to spread peaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.command_groups import Command
from bellringer.cli.connect import with_client
from bellringer.cli.output import output_option, sanitize, to_compact_json, to_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.schedules import Forecast, Proposal

WIDTH: Final = 40
MOST_LINES: Final = 48
FEWEST_LINES: Final = 6  # lengths of a line of the chart
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LINES: Final = tuple(timedelta(minutes=m) for m in (1, 5, 15, 60, 360, 1440, 10_080))


@click.command(
    cls=Command,
    examples="""
    bellringer forecast
    bellringer forecast --to 7d --bucket 5m
    bellringer forecast --from 2030-01-01T00:00:00Z --to 2h -o json
    """,
)
@click.option("--from", "start", metavar="TIME", help="Start: an RFC 3339 instant.  [default: now]")
@click.option(
    "--to", "end", metavar="TIME", help="End: an instant, or a duration after --from such as 7d.  [default: 24h]"
)
@click.option(
    "--bucket", metavar="TIME", help="Length of a time bucket, such as 1m or 1h.  [default: chosen by the range]"
)
@click.option("--omit-sub-minute", is_flag=True, help="Without jobs that fire more often than every minute.")
@output_option("table", "json")
@with_client
def forecast(
    client: Client, *, start: str | None, end: str | None, bucket: str | None, omit_sub_minute: bool, output: str
) -> None:
    """Show the number of upcoming fires, the busiest time, and proposals to spread peaks.

    Times are UTC. The bounds of jobs (starts_at, ends_at) and freezes are not taken into account.
    """
    found = client.forecast(start=start, end=end, bucket=bucket, sub_minute="false" if omit_sub_minute else None)
    if output == "json":
        click.echo(to_json(found))
        return
    for text in (*_chart(found), *_summary(found), *_proposals(found.proposals)):
        click.echo(sanitize(text))


@dataclass(frozen=True, slots=True)
class ForecastLine:
    """One line of the chart: the sum of some buckets, and the fullest of them."""

    at: datetime
    fires: int
    peak: int
    peak_at: datetime


def lines(found: Forecast) -> list[ForecastLine]:
    """Combine buckets into lines of equal length, so that the chart fits the screen."""
    from bellringer.durations import parse_duration

    bucket = parse_duration(found.bucket)
    span = found.end - found.start
    whole = (usual for usual in _LINES if not usual % bucket and span / usual >= FEWEST_LINES)
    fitting = (length for length in (bucket, *whole) if span / length <= MOST_LINES)
    length = next(fitting, bucket * -(-span // (bucket * MOST_LINES)))
    sums = [(b.at, sum(b.fires.values())) for b in found.buckets]
    made = []
    for at, group in groupby(sums, key=lambda pair: pair[0] - (pair[0] - _EPOCH) % length):
        counts = list(group)
        peak_at, peak = max(counts, key=lambda pair: pair[1])
        made.append(ForecastLine(at, sum(count for _, count in counts), peak, peak_at))
    return made


def bar(share: float) -> str:
    """Draw a bar with a resolution of an eighth of a character; it is never empty."""
    eighths = max(1, round(share * WIDTH * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _chart(found: Forecast) -> Iterator[str]:
    rows = lines(found)
    most = max((row.fires for row in rows), default=0)
    digits = len(f"{most:,}")
    form = "%a %H:%M:%S" if any(row.at.second for row in rows) else "%a %H:%M"
    if found.end - found.start > timedelta(days=6):
        form = "%Y-%m-%d %H:%M"
    for row in rows:
        is_herd = row.peak < row.fires < 2 * row.peak
        herd = f"  {row.peak:,} at {row.peak_at:%H:%M}" if is_herd else ""
        yield f"{row.at:{form}}  {row.fires:>{digits},}  {bar(row.fires / most)}{herd}"


def _summary(found: Forecast) -> Iterator[str]:
    until = f"{found.start:%Y-%m-%d %H:%M} to {found.end:%Y-%m-%d %H:%M} UTC"
    if found.peak is None:
        yield f"no fires from {until}"
    else:
        peak = found.peak
        yield f"{found.total:,} fires from {until}"
        yield f"peak: {peak.fires:,} in {found.bucket} at {peak.at:%Y-%m-%d %H:%M:%S}Z, mostly in pool {peak.pool}"
    if found.left_out:
        yield f"not counted: {found.left_out:,} jobs (too many different schedules)"
    if found.timers_until:
        yield f"not counted: timers from {found.timers_until:%Y-%m-%d %H:%M:%S}Z on (too many)"


def _proposals(made: Sequence[Proposal]) -> Iterator[str]:
    if made:
        yield "proposals:"
    for one in made:
        yield f"  {one.at:%a %H:%M}  {one.jobs:,} jobs  {one.description}   {to_compact_json(one.schedule)}"
        yield f"    try {to_compact_json(one.suggestion)}: {one.before:,} → {one.after:,} fires, peak {one.peak:,}"
