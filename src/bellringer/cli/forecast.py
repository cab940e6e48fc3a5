"""`bellringer forecast`: the fires to come as bars, their peak, and how herds could be spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Command
from bellringer.cli.output import as_json, clean, output_option, short_json

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Forecast
    from bellringer.wire.forecast import Proposal

WIDTH: Final = 40
MOST_LINES: Final = 48
FEWEST_LINES: Final = 6  # of buckets that are summed up
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
@click.option("--from", "start", metavar="TIME", help="An RFC 3339 instant.  [default: now]")
@click.option("--to", "end", metavar="TIME", help="An instant, or a time after --from like 7d.  [default: 24h]")
@click.option("--bucket", metavar="TIME", help="How finely to count: 1m, 1h.  [default: as fits the span]")
@output_option("table", "json")
@with_client
def forecast(client: Client, *, start: str | None, end: str | None, bucket: str | None, output: str) -> None:
    """Say how many fires are to come, when it is busiest, and which herds could be spread.

    Times are UTC. Jobs' own bounds (starts_at, ends_at) and freezes are not heeded.
    """
    found = client.forecast(start=start, end=end, bucket=bucket)
    if output == "json":
        click.echo(as_json(found))
        return
    for text in (*_chart(found), *_summary(found), *_proposals(found.proposals)):
        click.echo(clean(text))


@dataclass(frozen=True, slots=True)
class Line:
    """Some buckets in one line: when they begin, their fires, and the fullest of them."""

    at: datetime
    fires: int
    peak: int
    peak_at: datetime


def lines(found: Forecast) -> list[Line]:
    """The buckets, the same number to each line, several where there are too many."""
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
        made.append(Line(at, sum(count for _, count in counts), peak, peak_at))
    return made


def bar(share: float) -> str:
    """A bar of this share of the whole width, to an eighth of a sign; what is there is seen."""
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
        yield f"nothing fires from {until}"
    else:
        peak = found.peak
        yield f"{found.total:,} fires from {until}"
        yield f"peak: {peak.fires:,} in {found.bucket} at {peak.at:%Y-%m-%d %H:%M:%S}Z, most in pool {peak.pool}"
    if found.left_out:
        yield f"not counted: {found.left_out:,} jobs, whose schedules are too many"
    if found.timers_until:
        yield f"not counted: timers from {found.timers_until:%Y-%m-%d %H:%M:%S}Z on, which are too many"


def _proposals(made: Sequence[Proposal]) -> Iterator[str]:
    if made:
        yield "to spread:"
    for one in made:
        yield f"  {one.at:%a %H:%M}  {one.jobs:,} jobs  {one.description}   {short_json(one.schedule)}"
        yield f"    try {short_json(one.suggestion)}: {one.before:,} → {one.after:,} there, peak {one.peak:,}"
