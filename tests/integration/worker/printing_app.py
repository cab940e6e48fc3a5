"""An app whose handlers run in child processes and write output in every way."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from bellringer.core.tasks import Registry, make_task

logging.basicConfig(format="app: %(run_id)s %(message)s", stream=sys.stderr)


class App:
    def __init__(self) -> None:
        self.registry = Registry()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        self.registry.add(make_task(function, name=name, isolation="process", capture_output=name != "plain"))
        return function


app = App()


@app.task
def everywhere(ctx: Any) -> None:
    print("one", 1)
    ctx.log.info("two")
    print("three", file=sys.stderr)
    logging.getLogger("shop").info("four")
    warnings.warn("five", UserWarning, stacklevel=1)
    thread = threading.Thread(target=print, args=("six",))
    thread.start()
    thread.join()
    sys.stdout.write("seven")


@app.task
async def coroutine() -> None:
    await asyncio.gather(*(asyncio.to_thread(print, f"call {number}") for number in range(3)))


@app.task
def programs() -> None:
    subprocess.run(["echo", "echoed"], check=True)
    subprocess.run(["sh", "-c", "echo failed >&2"], check=True)
    os.write(1, b"raw \xff\n")
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
    copy = multiprocessing.get_context("fork").Process(target=print, args=("copied",))
    copy.start()
    copy.join()


@app.task
def in_turn() -> None:
    for number in range(3):
        print("print", number)
        subprocess.run(["echo", "echo", str(number)], check=True)


@app.task
def crash() -> None:
    print("before the crash")
    os.write(1, b"unfinished")
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@app.task
def leaves_a_program() -> None:
    subprocess.Popen(["sh", "-c", "echo early; sleep 1; echo late"])
    time.sleep(0.5)


@app.task
def say(text: str) -> None:
    print(text)


@app.task
def warn(text: str) -> None:
    logging.getLogger("shop").warning(text)


@app.task
def floods() -> None:
    for number in range(3_000):
        print(number)
    subprocess.run(["sh", "-c", "yes | head -c 5000000"], check=True)


@app.task
def breaks_streams() -> None:
    print("before")
    sys.stdout.close()
    sys.stderr = None
    os.close(1)
    os.close(2)


@app.task
def slow() -> None:
    print("first")
    time.sleep(60)


@app.task
def plain() -> None:
    print("not captured")
