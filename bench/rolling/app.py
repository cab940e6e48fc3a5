"""A task that writes one line for each of its executions to a file of its process, in the folder ROLLING_RECORD.

Programs of different releases run this file, so it uses nothing but the public interface.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from bellringer import App, Context, Retry

RECORD_VARIABLE = "ROLLING_RECORD"
app = App(name="rolling")


@app.task(name="record", retry=Retry(10, base="1s", cap="2s"))
async def record(ctx: Context, tag: str) -> None:
    line = f"{tag} {ctx.run_id} {ctx.attempt} {ctx.scheduled_for.timestamp():.3f} {time.time():.6f}\n"  # noqa: TID251
    os.write(_file(), line.encode())


@cache
def _file() -> int:
    path = Path(os.environ[RECORD_VARIABLE]) / f"executed-{os.getpid()}"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
