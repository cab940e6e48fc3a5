"""An app whose handlers run in processes of their own, and misbehave in every way."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from bellringer.core.tasks import Discard, Registry, Snooze, make_task


class App:
    def __init__(self) -> None:
        self.registry = Registry()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.registry.add(make_task(function, name=function.__name__, isolation="process"))
        return function


app = App()


@app.task
def pid() -> Any:
    return os.getpid()


@app.task
async def add(ctx: Any, a: int, since: datetime) -> Any:
    await asyncio.sleep(0)
    return [a + 1, type(since).__name__, ctx.attempt, ctx.lateness.total_seconds(), ctx.job]


@app.task
def fail() -> Any:
    raise ValueError("broken \0 \ud800")


@app.task
def noisy() -> Any:
    print("on stdout")
    print('{"type":"end"}')
    os.write(1, b"raw\n")
    print("on stderr", file=sys.stderr)
    return "quiet"


@app.task
def leave(code: int) -> Any:
    os._exit(code)


@app.task
def leave_politely(code: int) -> Any:
    sys.exit(code)


@app.task
def die(number: int) -> Any:
    os.kill(os.getpid(), number)
    time.sleep(60)


@app.task
def babble() -> Any:
    for number in range(3, 50):
        with suppress(OSError):
            os.write(number, b"not a message\n")


@app.task
def close_everything() -> Any:
    os.closerange(3, 100)
    threading.Event().wait()


@app.task
def hang(ctx: Any, note: str, polite: bool) -> Any:
    try:
        if not polite:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctx.log.info("hanging", pid=os.getpid())
        threading.Event().wait()
    finally:
        Path(note).write_text(f"cleaned up, cancelled={ctx.cancelled}")


@app.task
async def hang_async(ctx: Any, note: str) -> Any:
    try:
        ctx.log.info("hanging", pid=os.getpid())
        await asyncio.Event().wait()
    finally:
        await asyncio.to_thread(Path(note).write_text, "cleaned up")


@app.task
def breed(ctx: Any) -> Any:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ctx.log.info("bred", pid=child.pid)
    threading.Event().wait()


@app.task
def chatty(ctx: Any) -> Any:
    ctx.log.warning("hello", n=1)
    for done in range(1000):
        ctx.progress(done + 1, 1000)
    return "done"


@app.task
def pulse(ctx: Any, beats: int) -> Any:
    for _ in range(beats):
        time.sleep(0.05)
        ctx.heartbeat()
    threading.Event().wait()


@app.task
def snooze() -> Any:
    return Snooze("30s")


@app.task
def discard() -> Any:
    return Discard("gone")


@app.task
def huge() -> Any:
    return "x" * 5000


@app.task
def large() -> Any:
    return "\u00e9" * 1900


@app.task
def fork() -> Any:
    return os.fork()


@app.task
def fork_in_c() -> Any:
    return ctypes.CDLL(None).fork()


@app.task
async def fork_async() -> Any:
    pid = os.fork()
    await asyncio.sleep(0)
    return pid


@app.task
def forge(token: str, value: int) -> Any:
    """Write the end of an attempt, as this process or in the name of one that it forked."""
    ending = {"outcome": "ok", "result": value}
    message = {"token": token, "pid": os.getpid(), "message": {"type": "end", "ending": ending}}
    for number in range(3, 50):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, json.dumps(message).encode() + b"\n")
    return "own"


@app.task
def variables(names: list[str]) -> Any:
    return [os.environ.get(name) for name in names]


@app.task
def sockets() -> Any:
    return [name for name in os.listdir("/proc/self/fd") if is_connected(int(name))]


def is_connected(number: int) -> bool:
    try:
        connection = socket.socket(fileno=number)
    except OSError:
        return False
    try:
        return isinstance(connection.getpeername(), tuple)
    except OSError:
        return False
    finally:
        connection.detach()


@app.task
def eat(mebibytes: int) -> Any:
    return len(bytearray(mebibytes << 20))


@app.task
def leave_a_thread(ctx: Any) -> Any:
    def speak() -> None:
        for number in range(200):
            ctx.log.info("still here", number=number)
            time.sleep(0.005)

    threading.Thread(target=speak, daemon=True).start()
    return "left"
