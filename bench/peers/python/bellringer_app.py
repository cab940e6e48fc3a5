"""The app that `bellringer worker` runs."""

from __future__ import annotations

from bellringer import App
from bench.peers.recorder import record

app = App(name="bench")


@app.task
async def noop(batch: int, number: int, due_us: int) -> None:
    record(batch, number, due_us)
