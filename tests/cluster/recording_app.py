"""A task that records its executions outside the database: a line in a file of the executing process.

The folder of these files is RECORD_FOLDER. A kill leaves the lines that were written.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bellringer import App, Context

FOLDER_VARIABLE = "RECORD_FOLDER"
app = App()


class Execution(NamedTuple):
    """One start of the handler."""

    number: int
    run_id: str
    started_ns: int  # since 1970


@app.task(name="record")
async def record(ctx: Context, number: int) -> None:
    os.write(_file(), f"{number} {ctx.run_id} {time.time_ns()}\n".encode())


@cache
def _file() -> int:
    return os.open(Path(os.environ[FOLDER_VARIABLE]) / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def read_executions(folder: Path) -> list[Execution]:
    lines = [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()]
    return [Execution(int(number), run_id, int(started_ns)) for number, run_id, started_ns in lines]
