"""The options by which a job is created and updated: its schedule and its policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from bellringer.cli.groups import fail

F = TypeVar("F", bound=Callable[..., Any])

KINDS: Final = ("cron", "rrule", "every", "at", "delay")
# What goes with a kind of schedule, and by which name its document has it.
OF_SCHEDULE: Final = {
    "tz": ("cron", "rrule"),
    "gap": ("cron", "rrule"),
    "fold": ("cron", "rrule"),
    "calendar": ("cron", "rrule"),
    "shift": ("cron", "rrule"),
    "start": ("rrule",),
    "seconds": ("cron",),
}
PLAIN: Final = (
    "pool", "priority", "timeout", "misfire", "max_catchup", "catchup_window", "catchup_rate", "overlap",
    "max_concurrency", "concurrency_key", "concurrency_limit", "jitter", "late_after", "starts_at", "ends_at",
    "expected_duration", "region",
)  # fmt: skip

_SCHEDULE = (
    click.option("--cron", metavar="EXPR", help="Five fields: minute, hour, day of month, month, day of week."),
    click.option("--rrule", metavar="RULE", help="Such as 'FREQ=WEEKLY;INTERVAL=2;BYDAY=FR', with --start."),
    click.option("--start", metavar="TIME", help="The first time of --rrule in its zone, such as 2026-01-02T09:00."),
    click.option("--tz", metavar="ZONE", help="The zone of its times, such as Europe/Paris.  [default: UTC]"),
    click.option("--seconds", is_flag=True, help="--cron has six fields, the second first."),
    click.option("--gap", metavar="WORD", help="A time that the clock skips: next or skip."),
    click.option("--fold", metavar="WORD", help="A time that the clock shows twice: first, second or both."),
    click.option("--calendar", metavar="NAME", help="The days off that it heeds."),
    click.option("--shift", metavar="WORD", help="On a day off: skip, next or previous."),
    click.option("--every", metavar="TIME", help="At this interval: 10s, 15m, 1h30m, 1d."),
    click.option("--at", metavar="INSTANT", help="Once, at this RFC 3339 instant."),
    click.option("--delay", metavar="TIME", help="This long after the previous run has ended."),
)
_POLICIES = (
    click.option("--pool", help="Who runs it.  [default: long, if it takes more than a minute; else short]"),
    click.option("--expected-duration", metavar="TIME", help="How long a run takes, as far as you know."),
    click.option("--priority", type=click.IntRange(0, 9), help="Higher goes first.  [default: 5]"),
    click.option("--timeout", metavar="TIME", help="The longest that an attempt may take."),
    click.option("--attempts", type=click.IntRange(1), help="How often to try.  [default: 3]"),
    click.option("--misfire", metavar="WORD", help="Nobody fired it in time: fire_once, skip or fire_all."),
    click.option("--max-catchup", type=click.IntRange(1), help="Of fire_all: the latest so many.  [default: 100]"),
    click.option("--catchup-window", metavar="TIME", help="Of fire_all: none older than this.  [default: 7d]"),
    click.option("--catchup-rate", type=float, metavar="N", help="Of fire_all: at most so many a minute."),
    click.option("--overlap", metavar="WORD", help="Its last run is not over: skip, allow, queue, collapse, replace."),
    click.option("--max-concurrency", type=click.IntRange(1), help="How many of its runs may be under way at once."),
    click.option("--concurrency-key", metavar="KEY", help="A limit that it shares with the jobs of this key."),
    click.option("--concurrency-limit", type=click.IntRange(1), help="How many runs of the key.  [default: 1]"),
    click.option("--jitter", metavar="TIME", help="Start within so long after its time."),
    click.option("--late-after", metavar="TIME", help="When a run that has not started is late."),
    click.option("--starts-at", metavar="INSTANT", help="Not before this RFC 3339 instant."),
    click.option("--ends-at", metavar="INSTANT", help="Not after this RFC 3339 instant."),
    click.option("--region", metavar="NAME", help="Where it lives: the region whose schedulers fire it."),
    click.option("--tag", "tags", multiple=True, help="A tag; may be repeated."),
)  # fmt: skip


def definition_options(function: F) -> F:
    for option in reversed((*_SCHEDULE, *_POLICIES)):
        function = option(function)
    return function


def read_schedule(given: dict[str, Any]) -> dict[str, Any] | None:
    """The one schedule that the options name; read here first, so that a mistake is pointed at."""
    kinds = [kind for kind in KINDS if given[kind] is not None]
    if len(kinds) > 1:
        fail(f"--{kinds[0]} and --{kinds[1]} are both given", "a job made here takes one schedule")
    options = {name: given[name] for name in OF_SCHEDULE if given[name]}
    for name in options:
        if not set(kinds) & set(OF_SCHEDULE[name]):
            fail(f"--{name} goes with --{' or --'.join(OF_SCHEDULE[name])}")
    if not kinds:
        return None
    from bellringer.cli.cron import pointing_at
    from bellringer.schedule import parse

    document = {kinds[0]: given[kinds[0]], **options}
    with pointing_at(given[kinds[0]]):
        parse(document)
    return document
