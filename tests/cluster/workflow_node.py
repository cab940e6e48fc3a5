"""One worker whose tasks take a moment and are written down, for tests that kill it in the middle of workflows.

`workflow_node.py DSN NAME FOLDER`: each execution is a line in a file of the folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry, make_task
from bellringer.store.connection_pool import Store
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings

ELEMENTS = 20


class Diary:
    """What was executed, in a file of this process, which a kill leaves whole."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, ctx: Context) -> None:
        os.write(self._file, f"{ctx.run_id} {ctx.attempt}\n".encode())


async def main(dsn: str, name: str, folder: Path) -> None:
    diary = Diary(folder)

    async def split(ctx: Context) -> list[int]:
        diary.note(ctx)
        await asyncio.sleep(0.05)
        return list(range(ELEMENTS))

    async def work(ctx: Context, x: int = 0) -> int:
        diary.note(ctx)
        await asyncio.sleep(0.5)
        return x

    async def gather(ctx: Context, xs: list[int], left: int, right: int) -> int:
        diary.note(ctx)
        return sum(xs) + left + right

    registry = Registry()
    for function in (split, work, gather):
        registry.add(make_task(function, name=function.__name__))
    store = await Store.open(dsn)
    settings = WorkerSettings(pools={"short": 20}, name=name, grace=timedelta(seconds=1))
    await Worker(store, registry, SystemClock(), settings).run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
