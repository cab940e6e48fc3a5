"""The tasks of a chaos history. Each execution writes one line when it starts and one when it ends.

The lines go to a file of the executing process in the folder CHAOS_SINK, past Bellringer and its database: they are the
independent record that the oracle compares with what was accepted.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bellringer import App, Context, Retry
from bellringer.sdk.workflows import Workflow

# For tasks that fail, or whose processes crash with their worker. The others have the default policy: histories lose
# many attempts, and no run may die of that.
PATIENT: Final = Retry(100, base="1s", cap="2s")

app = App(name="chaos")
_files: dict[int, int] = {}
_lock = threading.Lock()  # handlers run in threads, and coroutines on loops of their own


@contextmanager
def recorded(ctx: Context, tag: str) -> Iterator[None]:
    """Write that an execution starts, and how it ends."""
    _write(ctx, tag, "start")
    try:
        yield
    except BaseException as error:
        _write(ctx, tag, type(error).__name__)
        raise
    _write(ctx, tag, "ok")


def _write(ctx: Context, tag: str, what: str) -> None:
    pid = os.getpid()
    with _lock:
        if pid not in _files:  # a forked child writes to a file of its own
            path = Path(os.environ["CHAOS_SINK"]) / f"{pid}-{time.monotonic_ns()}"
            _files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = {
        "what": what,
        "run": ctx.run_id,
        "attempt": ctx.attempt,
        "pid": pid,
        "task": ctx.task,
        "tag": tag,
        "due": ctx.scheduled_for.timestamp(),
        "wall": time.time(),
        "monotonic": time.monotonic(),
    }
    os.write(_files[pid], f"{json.dumps(line)}\n".encode())


@app.task(name="quick")
async def quick(ctx: Context, tag: str) -> str:
    with recorded(ctx, tag):
        await asyncio.sleep(0.01)
    return tag


@app.task(name="plain")
def plain(ctx: Context, tag: str) -> str:
    with recorded(ctx, tag):
        time.sleep(0.02)
    return tag


@app.task(name="flaky", retry=PATIENT)
async def flaky(ctx: Context, tag: str) -> str:
    with recorded(ctx, tag):
        if ctx.attempt == 1:
            raise RuntimeError("the first attempt fails")
    return tag


@app.task(name="slow")
async def slow(ctx: Context, tag: str, seconds: float) -> str:
    with recorded(ctx, tag):
        await asyncio.sleep(seconds)
    return tag


@app.task(name="long")
async def long(ctx: Context, tag: str) -> str:
    with recorded(ctx, tag):
        await asyncio.sleep(25)
    return tag


@app.task(name="once", delivery="at_most_once")
async def once(ctx: Context, tag: str) -> str:
    with recorded(ctx, tag):
        await asyncio.sleep(0.5)
    return tag


@app.task(name="isolated", retry=PATIENT, isolation="process")
def isolated(ctx: Context, tag: str) -> str:
    with recorded(ctx, tag):
        time.sleep(0.1)
    return tag


@app.task(name="step")
async def step(ctx: Context, tag: str, node: str) -> str:
    """A node of the workflow below; the tag of its execution names the node too."""
    with recorded(ctx, f"{tag}/{node}"):
        await asyncio.sleep(0.3)
    return node


NODES: Final = ("load", "left", "right", "join")


@app.workflow(name="diamond")
def diamond(wf: Workflow, tag: str) -> object:
    load = wf.add(step, tag=tag, node="load", name="load")
    left = wf.add(step, tag=tag, node="left", name="left", after=load)
    right = wf.add(step, tag=tag, node="right", name="right", after=load)
    return wf.add(step, tag=tag, node="join", name="join", after=[left, right])
