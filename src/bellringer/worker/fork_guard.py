"""Keeps processes forked by a handler from running the worker's code.

A fork copies the worker with a single thread, the handler's. The copy can continue inside the handler, as the children
of `multiprocessing` do. It must not return from the handler into the worker's code, where it would execute other
attempts again and settle this one twice. The copy also must not outlive the worker or keep its connections open.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from bellringer.store.dsn import endpoints

FORK_EXIT_CODE: Final = 70  # exit code of a forked process that returned from its handler
_PR_SET_PDEATHSIG: Final = 1


class _Thread(threading.local):
    """The event loop that runs handlers in this thread."""

    loop: asyncio.AbstractEventLoop | None = None


class _Process:
    """State of this process and the cleanup that its forks have to do."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_copy = False
        self.lock = threading.Lock()
        self.guards = 0  # threads that run handlers
        self.ports: set[int] = set()
        self.cleanups: list[Callable[[], None]] = []
        self.prctl: Any = None
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):  # loaded now: a forked process should not load libraries
                self.prctl = ctypes.CDLL(None).prctl


_thread: Final = _Thread()
_process: Final = _Process()


def close_connections_in_forks(dsn: str) -> None:
    """Register a database whose connections forked processes must close."""
    with suppress(ValueError):
        _process.ports |= {port for _, port in endpoints(dsn)}


@contextmanager
def handler_thread(loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
    """Mark the current thread as one that runs handlers, on this loop if given."""
    _thread.loop = loop
    with _process.lock:
        _process.guards += 1
    try:
        yield
    finally:
        with _process.lock:
            _process.guards -= 1
        _thread.loop = None


def exit_if_forked() -> None:
    """In a forked process: exit at once, without the worker's cleanup.

    Also compares the process id, because C code can fork without Python's fork hooks.
    """
    if _process.is_copy or os.getpid() != _process.pid:
        os._exit(FORK_EXIT_CODE)


def run_in_forks(cleanup: Callable[[], None]) -> None:
    """Register a function that forked processes call first."""
    _process.cleanups.append(cleanup)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends. Has an effect only on Linux."""
    if _process.prctl is not None:
        _process.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(FORK_EXIT_CODE)


def _after_fork() -> None:
    parent, _process.pid = _process.pid, os.getpid()
    if not _process.guards:
        return  # this program does not run handlers (yet)
    _process.is_copy = True
    for cleanup in _process.cleanups:
        cleanup()
    die_with_parent(parent)
    _close_sockets(_process.ports)
    if (loop := _thread.loop) is not None:
        # The loop's other callbacks belong to other attempts and must run only in the worker.
        getattr(loop, "_ready", []).clear()
        loop.call_soon(exit_if_forked)


def _close_sockets(ports: set[int]) -> None:
    """Close connections to these ports in this process; the worker's descriptors are not affected."""
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError, ValueError):
                if _peer_port(int(name)) in ports:
                    os.close(int(name))


def _peer_port(descriptor: int) -> int | None:
    """Return the remote port of a connected TCP socket or of PostgreSQL's Unix socket."""
    if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
        return None
    connection = socket.socket(fileno=descriptor)
    try:
        peer = connection.getpeername()
    finally:
        connection.detach()
    if isinstance(peer, tuple):
        return int(peer[1])
    _, found, port = str(peer).rpartition(".s.PGSQL.")
    return int(port) if found else None


os.register_at_fork(after_in_child=_after_fork)
