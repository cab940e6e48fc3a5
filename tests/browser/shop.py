"""What the console's tests look at: tasks that work, that fail while a file says so, and that take their time.

`bellringer dev` reads it from a folder of its own, so it imports nothing of the tests.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from bellringer import App, Context

BROKEN = Path("broken")
app = App(name="shop")


@app.task(name="shop.pack", tags=["shop"])
def pack(ctx: Context, order: int, note: str = "") -> dict[str, str | int]:
    """Pack an order; it always can."""
    ctx.log.info("packing", order=order, note=note)
    return {"packed": order, "note": note}


@app.task(name="shop.ship", retry=1, tags=["shop"])
def ship(ctx: Context, order: int, to: str = "Paris") -> str:
    """Ship an order, if the truck runs."""
    ctx.log.info("shipping", order=order, to=to)
    if BROKEN.exists():
        raise RuntimeError(BROKEN.read_text())
    return f"order {order} goes to {to}"


@app.task(name="shop.wait", timeout="5m")
async def wait(ctx: Context, seconds: float = 60.0) -> None:
    """Take a while, and say how far it has come."""
    await ctx.progress(1, 2, note="half of it")
    await asyncio.sleep(seconds)


@app.task(name="shop.give")
def give(value: object = None) -> object:
    """Give back what it was given."""
    return value


@app.task(name="shop.weigh", retry=1)
def weigh(ctx: Context, order: int) -> int:
    """Weigh an order; the third cannot be weighed while something is broken."""
    ctx.log.info("weighing", order=order)
    if order == 3 and BROKEN.exists():
        raise RuntimeError(BROKEN.read_text())
    return order * 10
