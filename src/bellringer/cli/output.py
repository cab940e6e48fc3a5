"""The output of commands: tables and times for people, JSON for programs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])

PIPE_WIDTH: Final = 10_000  # columns, if stdout is not a terminal: nothing is truncated
COLUMN_GAP: Final = 2
MIN_TEXT_WIDTH: Final = 14
LAST_RESORT_TEXT_WIDTH: Final = 6  # if only columns are left that must be shown
# Columns that a narrow terminal shows in any case, besides the first one.
KEPT_COLUMNS: Final = frozenset({"STATE", "STATUS", "NAME", "JOB", "NEXT", "DUE", "AT", "RUN", "ID", "KIND", "NODE"})
# Columns whose text may be shortened.
TEXT_COLUMNS: Final = frozenset(
    {
        *("NAME", "JOB", "TASK", "SCHEDULE", "WHAT", "ERROR", "REASON", "URL", "DETAIL", "MESSAGE", "DESCRIPTION"),
        *("DEFAULTS", "POOLS", "NODE", "OWNER", "TAGS", "BY", "WHO", "SUBJECT", "RESULT", "WHY", "TARGET", "CHANGED"),
        *("NOTE", "KINDS", "MATCHES", "ORIGINS", "TASKS", "SCOPES", "QUOTAS", "TITLE", "VALUE", "SETTING", "SOURCE"),
    }
)
# Columns with a time, which are left out last.
TIME_COLUMNS: Final = frozenset(
    {
        *("WHEN", "SINCE", "STARTED", "ENDED", "FROM", "TO", "DIED", "SEEN", "EXPIRES IN", "LAST", "LAST PING"),
        *("LAST USED", "OPENED", "RESOLVED", "SENT", "MADE", "OLDEST", "ORPHANED", "ETA"),
    }
)
_COLORS: Final = {
    "active": "green",
    "succeeded": "green",
    "live": "green",
    "running": "cyan",
    "retrying": "yellow",
    "draining": "yellow",
    "paused": "yellow",
    "disabled": "dim",
    "done": "dim",
    "cancelled": "dim",
    "skipped": "dim",
    "dead": "red",
    "lost": "red",
    "free": "red",
}


def output_option(*formats: str) -> Callable[[F], F]:
    """The option -o with the formats that the command supports; the first is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format.",
    )


LIST: Final = ("table", "json", "jsonl", "name")
ONE: Final = ("table", "json", "name")


def print_list(
    output: str,
    items: Sequence[Any],
    *,
    head: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    name: Callable[[Any], str],
    empty: str,
) -> None:
    """Print a list in the chosen format."""
    if output == "json":
        click.echo(to_json(list(items)))
    elif output == "jsonl":
        for item in items:
            click.echo(msgspec.json.encode(item))
    elif output == "name":
        for item in items:
            click.echo(name(item))
    elif items:
        print_table(head, [row(item) for item in items])
    else:
        click.echo(empty, err=True)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table. On a narrow terminal, long texts are shortened first, then less important columns left out."""
    from rich.table import Table
    from rich.text import Text

    cells = [[sanitize(cell) for cell in row] for row in rows]
    widths = [max(_width(row[i]) for row in (head, *cells)) for i in range(len(head))]
    fitting = fit_columns(head, widths, shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold", show_edge=False)
    for index, width in fitting.items():
        table.add_column(head[index], no_wrap=True, overflow="ellipsis", min_width=width, max_width=width)
    for row in cells:
        table.add_row(*(Text(row[index], style=_COLORS.get(row[index], "")) for index in fitting))
    _print(table)
    if left_out := [title for index, title in enumerate(head) if index not in fitting]:
        click.echo(f"(no room for {', '.join(left_out)}: use a wider terminal, or -o json)", err=True)


def fit_columns(head: Sequence[str], widths: Sequence[int], available: int) -> dict[int, int]:
    """Returns the index and width of the columns that fit into `available` characters.

    States, times and ids are never shortened. Texts are shortened down to MIN_TEXT_WIDTH; if that is not enough, other
    columns are left out from the right, then texts that do not identify the row, then times. If even the columns that
    must be shown are too wide, their texts are shortened further.
    """
    kept = dict(enumerate(widths))
    droppable = [i for i in reversed(kept) if i and head[i] not in KEPT_COLUMNS]
    droppable.sort(key=lambda i: (head[i] in TIME_COLUMNS, head[i] in TEXT_COLUMNS))
    while _excess(kept, available) > _shrinkable(head, kept) and droppable:
        del kept[droppable.pop(0)]
    for shortest in (MIN_TEXT_WIDTH, LAST_RESORT_TEXT_WIDTH):
        while (excess := _excess(kept, available)) > 0 and (texts := _longest_texts(head, kept, shortest)):
            longest, *others = texts
            floor = max(kept[others[0]] if others else 0, shortest)
            kept[longest] -= max(min(excess, kept[longest] - floor), 1)
    return kept


def _excess(widths: Mapping[int, int], available: int) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1) - available


def _shrinkable(head: Sequence[str], widths: Mapping[int, int]) -> int:
    return sum(widths[index] - MIN_TEXT_WIDTH for index in _longest_texts(head, widths))


def _longest_texts(head: Sequence[str], widths: Mapping[int, int], shortest: int = MIN_TEXT_WIDTH) -> list[int]:
    texts = [i for i, width in widths.items() if head[i] in TEXT_COLUMNS and width > shortest]
    return sorted(texts, key=lambda i: widths[i], reverse=True)


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one item, a field per line; empty fields are left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for title, value in fields.items():
        if value not in {"", "–"}:
            table.add_row(title, Text(sanitize(value), style=_COLORS.get(value, "")))
    _print(table)


def _print(table: Any) -> None:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout, width=None if is_terminal else PIPE_WIDTH, highlight=False, markup=False, emoji=False
    )
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=is_terminal or None)


def print_warnings(warnings: Any, prefix: str = "") -> None:
    """Print the warnings of an accepted request to stderr."""
    for warning in warnings or ():
        hint = f"; {warning.hint}" if warning.hint else ""
        click.echo(sanitize(f"warning: {prefix}{warning.detail}{hint}"), err=True)


def sanitize(text: str) -> str:
    """Replace control characters in text from others, so that it cannot control the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)


def to_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def to_compact_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def format_seconds(seconds: float) -> str:
    """Format a duration with its two largest units: "850 ms", "3 s", "4m 12s", "2h 5m", "3d 4h"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 >= 0.05 else f"{seconds:.0f} s"
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def format_bytes(count: int) -> str:
    """Format a size: "512 B", "3.4 MB", "1.2 GB"."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def format_age(seconds: float) -> str:
    """ "281 ms ago", "3 s ago"; "now" for a time that is not over by the clock that measured it."""
    return f"{format_seconds(seconds)} ago" if seconds > 0 else "now"


def format_relative(moment: datetime | None, now: datetime) -> str:
    """ "in 4m 12s", "3 s ago", "now"; "–" for none."""
    if moment is None:
        return "–"
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 0.5:
        return "now"
    whole = float(round(abs(seconds)))
    return f"in {format_seconds(whole)}" if seconds > 0 else f"{format_seconds(whole)} ago"


def format_between(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return "–"
    return format_seconds(max((end - start).total_seconds(), 0.0))


def format_local(moment: datetime | None) -> str:
    """Format an instant in the local time zone, with its offset."""
    if moment is None:
        return "–"
    return moment.astimezone().isoformat(sep=" ", timespec="milliseconds")
