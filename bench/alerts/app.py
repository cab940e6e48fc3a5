"""The app of the drill: jobs with a steady load, and tasks that fail, wait and block."""

from __future__ import annotations

import asyncio
import time

from bellringer import App, Retry, every

JOBS = 300  # of one schedule: 64 cohorts at most, which count as 300 overdue jobs
app = App(name="drill", version="1")


@app.task(name="steady", pool="short")
async def steady() -> None:
    """Succeeds."""


for number in range(JOBS):
    app.schedule(every("10s"), name=f"steady-{number}", misfire="skip")(steady)


@app.task(name="fail", retry=Retry(1), pool="short")
async def fail() -> None:
    raise RuntimeError("a failure of the drill")


@app.task(name="nap", pool="short", retry=Retry(3, base="1s"))
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(name="block", pool="short", retry=Retry(1))
async def block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - it blocks the event loop on purpose
