"""`bellringer top`: a live view of pools, tasks, workers and nodes in the terminal."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.command_groups import Command
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages
from bellringer.cli.top_view import VIEWS, TopSample, TopState, render, render_plain

if TYPE_CHECKING:
    from bellringer.client import Client

MAX_ITEMS: Final = 1_000  # pools and tasks that are read
KEY_POLL_SECONDS: Final = 0.1  # also how soon a new size of the window is noticed
ENTER: Final = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE_END: Final = "\x1b[K"
CLEAR_BELOW: Final = "\x1b[J"
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)


@click.command(
    cls=Command,
    examples="""
    bellringer top
    bellringer top --view tasks --interval 1
    bellringer top --once
    """,
)
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 60),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two refreshes.",
)
@click.option("--view", type=click.Choice(VIEWS), default="pools", show_default=True, help="The view to begin with.")
@click.option("--once", is_flag=True, help="Print all views once as plain text, as without a terminal.")
@with_client
def top(client: Client, *, interval: float, view: str, once: bool) -> None:
    """Show pools, tasks, workers and nodes, refreshed every few seconds.

    Keys: q quits, p pauses the refresh, tab or 1 to 4 switch the view, s sorts by the next column, r reverses the
    order. NO_COLOR turns colors off.
    """
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        for line in render_plain(take_sample(client)):
            click.echo(line)
        return
    try:
        import termios  # noqa: F401 - not on Windows
    except ImportError:
        click.echo("\n".join(render_plain(take_sample(client))))
        return
    _Screen(client, interval, TopState(view=view)).run()


def take_sample(client: Client) -> TopSample:
    """Reads everything that a screen shows."""
    overview = client.overview()
    return TopSample(
        at=time.monotonic(),
        taken=overview.now,
        cluster=client.cluster(),
        pools=fetch_pages(client.pools, MAX_ITEMS, output=""),
        tasks=fetch_pages(client.tasks, MAX_ITEMS, output=""),
        workers=client.workers().items,
        overview=overview,
    )


class _Screen:
    """The loop of the live view: one thread reads samples, this one draws and reads keys."""

    def __init__(self, client: Client, interval: float, state: TopState) -> None:
        self._client = client
        self._interval = interval
        self._state = state
        self._color = not os.environ.get("NO_COLOR")
        self._sample: TopSample | None = None
        self._before: TopSample | None = None
        self._error = ""
        self._stopped = threading.Event()
        self._running = threading.Event()
        self._running.set()

    def run(self) -> None:
        reader = threading.Thread(target=self._read, name="bellringer top", daemon=True)
        with _raw_terminal():
            reader.start()
            try:
                self._loop()
            except KeyboardInterrupt:
                pass
            finally:
                self._stopped.set()
                self._running.set()
        reader.join(timeout=1.0)

    def _loop(self) -> None:
        drawn: object = None
        while True:
            now = (self._sample, self._state, self._error, shutil.get_terminal_size())
            if now != drawn:
                self._draw()
                drawn = now
            for key in _read_keys(KEY_POLL_SECONDS):
                if key in {"q", "Q", "\x03"}:
                    return
                self._state = self._state.press(key)
            if self._state.paused:
                self._running.clear()
            else:
                self._running.set()

    def _draw(self) -> None:
        width, height = shutil.get_terminal_size()
        state = replace(self._state, error=self._error)
        lines = render(self._sample, self._before, state, width, height, color=self._color)
        text = f"{CLEAR_LINE_END}\r\n".join(lines)
        sys.stdout.write(f"{HOME}{text}{CLEAR_LINE_END}{CLEAR_BELOW}")
        sys.stdout.flush()

    def _read(self) -> None:
        """Takes a sample every interval. A failure is shown, and the next sample is tried as usual."""
        from bellringer.errors import BellringerError

        while not self._stopped.is_set():
            try:
                sample = take_sample(self._client)
            except BellringerError as error:
                self._error = error.message
            except OSError as error:
                self._error = str(error)
            else:
                self._before, self._sample, self._error = self._sample, sample, ""
            self._stopped.wait(self._interval)
            self._running.wait()


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Reads keys without echo and without waiting for a line; restores the terminal afterwards."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    sys.stdout.write(ENTER)
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read_keys(timeout: float) -> list[str]:
    """Returns the keys that were pressed, an escape sequence as one; none after the timeout."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout)
    if not ready:
        return []
    data = os.read(sys.stdin.fileno(), 64)
    if not data:  # the terminal is gone
        return ["q"]
    return _KEY.findall(data.decode("utf-8", "replace"))
