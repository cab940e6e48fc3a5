"""The app of the benchmarks. Its tasks do nothing, so that only the overhead of Bellringer is measured."""

from __future__ import annotations

import asyncio

from bellringer.sdk.app import App

app = App()


@app.task(name="bench.noop")
async def noop() -> None:
    """Do nothing."""


@app.task(name="bench.nap")
async def nap(seconds: float = 0.1) -> None:
    """Sleep, as a handler that waits for I/O."""
    await asyncio.sleep(seconds)
