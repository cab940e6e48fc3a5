"""The app whose tasks measurements execute: they do nothing, so that what is measured is ours."""

from __future__ import annotations

import asyncio

from bellringer.sdk.app import App

app = App()


@app.task(name="bench.noop")
async def noop() -> None:
    """Nothing."""


@app.task(name="bench.nap")
async def nap(seconds: float = 0.1) -> None:
    """Wait, as a handler does for others."""
    await asyncio.sleep(seconds)
