"""`bellringer runs send`: run a task once, or every task of a file."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

import click
import msgspec

from bellringer.cli.command_groups import USAGE, Command, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import argument_options, read_arguments, wait_options
from bellringer.cli.output import ONE, output_option, print_warnings, sanitize, to_json
from bellringer.cli.progress import show_progress
from bellringer.errors import BellringerError, Conflict, InvalidInput, Unavailable

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.runs import BulkSent

ITEMS_PER_REQUEST: Final = 10_000
BYTES_PER_REQUEST: Final = 12 * 1024 * 1024  # of lines; the server accepts 16 MiB
RETRY_SECONDS: Final = (0.5, 2.0, 5.0)
MAX_SHOWN_ERRORS: Final = 20
_POINTER: Final = re.compile(r"/items/(\d+)(.*)", re.DOTALL)


@click.command(
    cls=Command,
    examples="""
    bellringer runs send shop.resize --arg photo=7 --delay 2h
    bellringer runs send shop.resize --arg photo=7 --wait
    bellringer runs send --file tasks.ndjson
    export-tasks | bellringer runs send --file - --per-item
    """,
)
@click.argument("task", required=False)
@click.option("--file", "path", metavar="FILE", help="Send every line of this file; - reads stdin.")
@click.option(
    "--atomic/--per-item",
    default=None,
    help="Of a file: refuse a request of 10,000 lines if one is invalid, or send its valid lines.  [default: --atomic]",
)
@argument_options
@click.option("--at", metavar="INSTANT", help="Run at this RFC 3339 instant.")
@click.option("--delay", metavar="TIME", help="Run after this time, such as 30s or 2h.")
@click.option("--expires-in", metavar="TIME", help="Do not run if not started this long after its time, such as 10m.")
@click.option(
    "--send-key", metavar="TEXT", help="Send only once: a second send with this key within a day does nothing."
)
@click.option("--priority", type=click.IntRange(0, 9), help="Priority; higher runs first.  [default: that of the task]")
@click.option("--pool", metavar="NAME", help="Pool of workers.  [default: that of the task]")
@wait_options
@output_option(*ONE)
@with_client
def send(
    client: Client,
    /,
    *,
    task: str | None,
    path: str | None,
    atomic: bool | None,
    named: Sequence[str],
    args_json: str | None,
    send_key: str | None,
    wait: bool,
    timeout: float | None,
    output: str,
    **options: Any,
) -> None:
    """Run a task without a job, or every task of a file.

    A file has one JSON object per line, with the fields of POST /api/v1/jobs/execute: task, args, kwargs, at, delay,
    key, priority, pool, retry, timeout, expires_in and others. It is sent in requests of up to 10,000 lines. Each
    request is stored completely or not at all (--atomic), not the whole file: after an error, the lines before that
    request have been sent. Give items a key to make it safe to send a file again.
    """
    from bellringer.cli.runs import wait_and_print

    given = {name: value for name, value in options.items() if value is not None}
    if path is None:
        if task is None:
            fail("give a task, or --file", "see `bellringer runs send --help`")
        if atomic is not None:
            fail("--atomic and --per-item are options of --file")
        args, kwargs = read_arguments(named, args_json)
        run_id = _send_one(client, task, output, wait=wait, args=args or [], kwargs=kwargs, key=send_key, **given)
        if wait:
            wait_and_print(client, run_id, timeout, output)
    elif task is not None or named or args_json is not None or send_key is not None or wait or given:
        fail("with --file, the task and its options are in the lines of the file")
    else:
        _FileSender(client, atomic=atomic is not False, output=output).send(path)


def _send_one(client: Client, task: str, output: str, *, wait: bool, **options: Any) -> str:
    """Send a task; print its run, unless it is printed at its end. Returns the id of the run."""
    from bellringer.cli.runs import print_run

    run = client.execute(task, **options)
    print_warnings(run.warnings)
    if run.created is False:
        click.echo("the key has a run already", err=True)
    if not wait:
        print_run(run, output)
    return run.run_id


@dataclass(slots=True)
class _Chunk:
    """The items of one request, and the lines where they are."""

    items: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    size: int = 0  # bytes

    @property
    def is_full(self) -> bool:
        return bool(self.items) and (len(self.items) >= ITEMS_PER_REQUEST or self.size >= BYTES_PER_REQUEST)


class _FileSender:
    """Sends a file without holding more of it than one request."""

    def __init__(self, client: Client, *, atomic: bool, output: str) -> None:
        self._client = client
        self._atomic = atomic
        self._output = output
        self._warned: set[str] = set()
        self._shown_errors = 0
        self.created = self.existing = self.failed = 0
        self.last_line = 0  # of the requests that were accepted

    def send(self, path: str) -> None:
        try:
            with (
                click.open_file(path, "rb") as file,
                # Measured in bytes, because the number of lines is not known.
                show_progress("sending", "tasks", _size_of(file)) as progress,
            ):
                for chunk in _read(file, self._refuse_line):
                    self._send(chunk)
                    progress.advance(len(chunk.items), size=chunk.size)
        except (BellringerError, OSError) as error:
            sent = f"lines 1 to {self.last_line:,} have been sent" if self.last_line else "nothing has been sent"
            click.echo(sanitize(sent), err=True)
            if isinstance(error, OSError):
                fail(f"cannot read {path}: {error.strerror or error}")
            raise
        self._report()
        if self.failed:
            click.get_current_context().exit(USAGE)

    def _send(self, chunk: _Chunk) -> None:
        try:
            sent = self._request(chunk)
        except InvalidInput as error:
            faults: Sequence[BellringerError] = getattr(error, "faults", (error,))
            for fault in faults[1:]:
                click.echo(sanitize(f"error: {_place(fault, chunk)}"), err=True)
            raise InvalidInput(_place(faults[0], chunk), hint=faults[0].hint, code=error.code) from None
        self.created += sent.created
        self.existing += sent.existing
        self.failed += sent.failed
        self.last_line = chunk.lines[-1]
        for warning in sent.warnings or ():
            if warning.detail not in self._warned:
                self._warned.add(warning.detail)
                print_warnings([warning])
        for item in sent.items or ():
            if item.errors:
                self._show_error(f"line {chunk.lines[item.index]:,}: {item.detail}")
            elif self._output == "name":
                click.echo(item.run_id)

    def _request(self, chunk: _Chunk) -> BulkSent:
        """Send a chunk. It is repeated after a lost response: its key prevents a second effect."""
        from uuid import uuid4

        key, pauses = str(uuid4()), iter(RETRY_SECONDS)
        while True:
            try:
                return self._client.send_many(chunk.items, self._atomic, idempotency_key=key)
            except (Unavailable, Conflict) as error:
                pause = next(pauses, None)
                if pause is None or (isinstance(error, Conflict) and error.code != "in_progress"):
                    raise
                time.sleep(pause)

    def _refuse_line(self, number: int, problem: str) -> None:
        """A line that is not JSON ends an atomic send; otherwise it is one of the invalid lines."""
        if self._atomic:
            raise InvalidInput(f"line {number:,}: {problem}", code="json_invalid")
        self.failed += 1
        self._show_error(f"line {number:,}: {problem}")

    def _show_error(self, text: str) -> None:
        self._shown_errors += 1
        if self._shown_errors <= MAX_SHOWN_ERRORS:
            click.echo(sanitize(f"error: {text}"), err=True)

    def _report(self) -> None:
        if self._shown_errors > MAX_SHOWN_ERRORS:
            click.echo(f"error: and {self._shown_errors - MAX_SHOWN_ERRORS:,} more", err=True)
        counts = {"created": self.created, "existing": self.existing, "failed": self.failed}
        if self._output == "json":
            click.echo(to_json(counts))
        elif self._output == "table":
            click.echo(", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name == "created"))


def _read(file: IO[bytes], refuse: Callable[[int, str], None]) -> Iterator[_Chunk]:
    """Yield the items of a file in chunks. Empty lines are skipped; `refuse` is called for a line that is no JSON."""
    chunk = _Chunk()
    for number, line in enumerate(file, start=1):
        chunk.size += len(line)
        if line.strip():
            try:
                item = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                refuse(number, f"not JSON: {error}")
                continue
            chunk.items.append(item)
            chunk.lines.append(number)
        if chunk.is_full:
            yield chunk
            chunk = _Chunk()
    if chunk.items:
        yield chunk


def _place(fault: BellringerError, chunk: _Chunk) -> str:
    """The message of a fault with its line and its position in the line."""
    found = _POINTER.fullmatch(fault.pointer)
    if found is None or int(found[1]) >= len(chunk.lines):
        return f"lines {chunk.lines[0]:,} to {chunk.lines[-1]:,}: {fault.message}"
    where = f" ({found[2]})" if found[2] else ""
    return f"line {chunk.lines[int(found[1])]:,}{where}: {fault.message}"


def _size_of(file: IO[bytes]) -> int | None:
    """The size of a regular file; None for a pipe."""
    if not file.seekable():
        return None
    start = file.tell()
    size = file.seek(0, 2)
    file.seek(start)
    return size
