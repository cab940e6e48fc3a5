"""An app whose handlers misbehave in every way, each as a coroutine, in a thread and in a process of its own."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bellringer import App, Context

app = App()

Deed = Callable[[Context], Any]


def bad(deed: Deed) -> Deed:
    """Register a deed in all three modes; timeouts and retries come with the run."""
    name = deed.__name__

    async def coroutine(ctx: Context) -> Any:
        return deed(ctx)

    def thread(ctx: Context) -> Any:
        return deed(ctx)

    def process(ctx: Context) -> Any:
        return deed(ctx)

    app.task(name=f"{name}-coroutine")(coroutine)
    app.task(name=f"{name}-thread")(thread)
    app.task(name=f"{name}-process", isolation="process")(process)
    return deed


@app.task(name="quick-coroutine")
async def quick(number: int) -> int:
    await asyncio.sleep(0.01)
    return number * 2


@app.task(name="quick-thread")
def quick_thread(number: int) -> int:
    return number * 2


@app.task(name="quick-process", isolation="process")
def quick_process(number: int) -> int:
    return number * 2


@app.task(name="patient-coroutine")
async def patient() -> str:
    await asyncio.sleep(1)
    return "finished"


@app.task(name="patient-thread")
def patient_thread() -> str:
    time.sleep(1)
    return "finished"


@bad
def blocks(_ctx: Context) -> None:
    time.sleep(60)


@bad
def spins(_ctx: Context) -> None:
    until = time.monotonic() + 8  # a thread cannot be stopped: the other deeds shall not wait for ever
    while time.monotonic() < until:
        pass


@bad
def forks(_ctx: Context) -> int:
    return os.fork()


@bad
def forks_and_stays(_ctx: Context) -> int:
    pid = os.fork()
    if pid == 0:
        Path(f"peers-{os.getpid()}").write_text(f"{list(map(peer_of, os.listdir('/proc/self/fd')))}.")
        while True:
            time.sleep(1)
    return pid


def peer_of(descriptor: str) -> Any:
    """Where a socket leads to."""
    try:
        connection = socket.socket(fileno=int(descriptor))
    except OSError:
        return None
    try:
        return connection.getpeername()
    except OSError:
        return None
    finally:
        connection.detach()


@bad
def prints_endlessly(_ctx: Context) -> str:
    for _ in range(30):
        sys.stdout.write("x" * 100_000)
    for number in range(3_000):
        print(number, file=sys.stderr)
    return "printed"


@bad
def closes_streams(_ctx: Context) -> str:
    sys.stdout.close()
    sys.stderr.close()
    print("\ud800 \x00")
    return "closed"


@bad
def logs_in_a_circle(_ctx: Context) -> str:
    class Circle(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logging.getLogger("circle").warning("again")

    logger = logging.getLogger("circle")
    logger.addHandler(Circle())
    logger.warning("first")
    logger.handlers.clear()
    return "logged"


@bad
def replaces_stdout(_ctx: Context) -> str:
    sys.stdout = io.StringIO()
    print("mine")
    return "replaced"


@bad
def dies(ctx: Context) -> str:
    if ctx.attempt == 1:
        time.sleep(0.3)
        os._exit(3)
    return "tried again"


@bad
def exits(_ctx: Context) -> None:
    sys.exit("enough")


@bad
def interrupts(_ctx: Context) -> None:
    raise KeyboardInterrupt


@bad
def recurses(_ctx: Context) -> None:
    def deeper() -> None:
        deeper()

    deeper()


@bad
def closes(ctx: Context) -> str:
    if ctx.attempt == 1:
        time.sleep(0.3)
        os.closerange(3, 1000)
        time.sleep(20)
    return "tried again"


@bad
def signals(_ctx: Context) -> str:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    return "deaf"


@bad
def leaks(_ctx: Context) -> int:
    for _ in range(20):
        threading.Thread(target=time.sleep, args=(600,), daemon=False).start()  # Python waits for such before it exits
    return threading.active_count()


@bad
def eats(_ctx: Context) -> int:
    return len(bytearray(1 << 50))


@bad
def swells(_ctx: Context) -> str:
    return "x" * (8 << 20)


@bad
def returns_anything(_ctx: Context) -> Any:
    return threading.Lock()


@bad
def chatters(ctx: Context) -> str:
    for number in range(20_000):
        ctx.log.info("x" * 1000, number=number)
    return "said it all"
