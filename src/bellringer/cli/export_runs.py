"""`bellringer runs export`: writes runs to a file, page by page."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
import msgspec

from bellringer.cli.progress import show_progress

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.runs import RunItem

PAGE: Final = 200
COLUMNS: Final = (
    "run_id",
    "job",
    "job_id",
    "task",
    "state",
    "cause",
    "scheduled_for",
    "started_at",
    "finished_at",
    "lateness_ms",
    "attempt",
    "pool",
    "priority",
    "worker_id",
    "revision",
    "reason",
    "error",
)


def export_runs(client: Client, path: str, kind: str, *, zstd: bool, filters: dict[str, Any]) -> int:
    """Writes all matching runs; returns how many. A file gets its name when it is complete."""
    count = 0
    with _open(path, zstd=zstd) as file, show_progress("exporting", "runs") as progress:
        if kind == "csv":
            file.write(_csv_line(COLUMNS))
        for run in _runs(client, filters):
            document = msgspec.to_builtins(run)
            if kind == "csv":
                file.write(_csv_line([_cell(document.get(name)) for name in COLUMNS]))
            else:
                file.write(msgspec.json.encode(run) + b"\n")
            count += 1
            progress.advance()
    return count


def _runs(client: Client, filters: dict[str, Any]) -> Iterator[RunItem]:
    cursor: str | None = None
    while True:
        page = client.runs(limit=PAGE, cursor=cursor, **filters)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _csv_line(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


@contextmanager
def _open(path: str, *, zstd: bool) -> Iterator[IO[bytes]]:
    if path == "-":
        with _compressed(sys.stdout.buffer, zstd=zstd) as file:
            yield file
        sys.stdout.buffer.flush()
        return
    part = Path(f"{path}.part")
    try:
        with part.open("wb") as plain, _compressed(plain, zstd=zstd) as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _compressed(file: IO[bytes], *, zstd: bool) -> Iterator[IO[bytes]]:
    if not zstd:
        yield file
        return
    try:
        import zstandard
    except ModuleNotFoundError:
        raise click.UsageError("--zstd needs `pip install 'bellringer[archive]'`") from None
    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as compressed:
        yield compressed
