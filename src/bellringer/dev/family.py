"""Processes that are started, looked after and stopped together, from a start to the signal that ends them."""

from __future__ import annotations

import http.client
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from bellringer.dev.children import Child, cause
from bellringer.dev.lines import say
from bellringer.errors import Unavailable

STOP_LIMIT: Final = 12.0  # seconds from asking the children to stop to ending them
READY_LIMIT: Final = 60.0
LOOK: Final = 0.05


class Asked(Exception):
    """Unwinds whatever we are at."""


class ChildFailed(Exception):
    """A child ended before it was ever ready, so there is no sense in starting it again."""

    def __init__(self, child: Child, code: int) -> None:
        self.child = child
        self.code = code if code > 0 else 1


class Family:
    """All children of one parent. Everything happens in its main thread, one step after the other.

    `gone` is told of each child that died, with the number that it had, before it is started again; or, without
    `restarts`, before it is let be. `besides` is done at each look.
    """

    def __init__(
        self,
        *,
        gone: Callable[[Child, int], None],
        besides: Callable[[], None],
        restarts: bool = True,
    ) -> None:
        self._gone = gone
        self._besides = besides
        self._restarts = restarts
        self._asked = 0
        self._children: list[Child] = []

    def heed_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a hang-up stays ignored
                signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked += 1
        if self._asked > 1:  # a second Ctrl-C does not wait for the grace
            for child in self._children:
                child.kill()

    def until_asked(self) -> None:
        if self._asked:
            raise Asked

    def add(self, child: Child) -> None:
        self._children.append(child)
        child.start()

    def wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_LIMIT
        while not is_ready():
            self.look()
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} was not ready after {READY_LIMIT:.0f} s", hint="see the lines above")
            time.sleep(LOOK)

    def keep(self) -> None:
        """Look after all until a signal comes."""
        while True:
            self.look()
            time.sleep(LOOK)

    def look(self) -> None:
        """One look at everything: what died is started again."""
        self.until_asked()
        for child in list(self._children):
            pid = child.pid
            died = child.check()
            if died is None:
                continue
            self.until_asked()
            self._gone(child, pid)
            code, pause = died
            if not child.was_ready:
                if code < 0:
                    say(f"  {child.name} {cause(code)} before it was ready")
                raise ChildFailed(child, code)
            if self._restarts:
                say(f"  {child.name} {cause(code)}; it starts again in {pause:g} s")
            else:
                self._children.remove(child)
                say(f"  {child.name} {cause(code)}")
        self._besides()

    def stop(self, some: Sequence[Child] | None = None) -> None:
        """Ask some of them, or all, to stop; answers when they are gone."""
        children = self._children if some is None else some
        for child in children:
            child.ask()
        deadline = time.monotonic() + STOP_LIMIT
        while any(child.runs for child in children) and time.monotonic() < deadline:
            time.sleep(LOOK)
        for child in children:
            child.end()


def answers(url: str) -> bool:
    """Whether a server says that it is ready; before it listens, the request waits for it a moment."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=0.5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
