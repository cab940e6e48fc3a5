"""The jobs of a small shop, to look at: `bellringer dev --demo`.

Seven jobs, each there to show one thing: a rhythm, a cron time, a one-shot, retries that help, retries that do
not, progress with log lines, and a workflow.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

from bellringer.clock import SystemClock
from bellringer.errors import NotFound
from bellringer.policies import Retry
from bellringer.schedule import at, cron, every
from bellringer.sdk.app import App
from bellringer.sdk.values import RUN_AT, Node
from bellringer.sdk.workflows import Workflow
from bellringer.worker.context import Context


class GatewayBusy(Exception):
    """The warehouse answers 503: worth another try."""


class CardExpired(Exception):
    """The bank says no: however often we try."""


class Shop(App):
    """An app that also plans two jobs by the time of its first start; later starts leave them alone."""

    async def adeclare(self) -> int:
        changed = await super().adeclare()
        now = SystemClock().now().replace(microsecond=0)
        if not await self._knows("welcome"):
            soon = at(now + timedelta(seconds=10))
            await welcome.aschedule(soon, customer="Ada Lovelace", email="ada@example.com", id="welcome")
            changed += 1
        if not await self._knows("charge-card"):
            slowly = every("10m", anchor=now + timedelta(seconds=15) - timedelta(minutes=10))
            await charge_card.aschedule(slowly, order=1042, amount="49.90 EUR", id="charge-card")
            changed += 1
        return changed

    async def _knows(self, job: str) -> bool:
        try:
            await self.jobs[job].aget()
        except NotFound:
            return False
        return True


app = Shop(name="bellringer demo")


@app.schedule(every("5s"), name="heartbeat")
@app.task(name="shop.heartbeat", tags=["demo"])
async def heartbeat() -> str:
    """The shop is open: a short run every five seconds."""
    await asyncio.sleep(random.uniform(0.005, 0.03))  # noqa: S311
    return "open"


@app.schedule(cron("* * * * *", tz="Europe/Paris"), name="sales-report")
@app.task(name="shop.sales_report", timeout="30s", tags=["demo"])
def sales_report() -> dict[str, Any]:
    """Sum up the last minute's sales, at the start of every minute."""
    orders = [round(random.uniform(5, 120), 2) for _ in range(random.randint(3, 9))]  # noqa: S311
    return {"orders": len(orders), "total": f"{sum(orders):.2f} EUR"}


@app.schedule(every("20s"), name="rebuild-search")
@app.task(name="shop.rebuild_search", timeout="1m", tags=["demo"])
async def rebuild_search(ctx: Context, products: int = 240) -> str:
    """Index the products in steps, and say how far it has come."""
    ctx.log.info("rebuilding the search index", products=products)
    for done in range(0, products, 40):
        await asyncio.sleep(0.25)
        await ctx.progress(done + 40, products, note=f"indexed {done + 40} of {products}")
    ctx.log.info("the search index is live")
    return f"{products} products"


@app.schedule(every("30s"), name="sync-inventory", kwargs={"warehouse": "Rotterdam"})
@app.task(name="shop.sync_inventory", retry=Retry(delays=["1s", "3s", "10s"]), tags=["demo"])
async def sync_inventory(ctx: Context, warehouse: str) -> str:
    """Ask a warehouse that is busy twice and answers the third time: retries that help."""
    if ctx.attempt < 3:
        ctx.log.warning("the warehouse is busy", warehouse=warehouse, attempt=ctx.attempt)
        raise GatewayBusy(f"503 from the warehouse in {warehouse}")
    return f"{random.randint(900, 1100)} items in {warehouse}"  # noqa: S311


@app.task(name="shop.extract", tags=["demo"])
async def extract(region: str) -> list[dict[str, Any]]:
    """List the shops of a region that have sold something."""
    await asyncio.sleep(0.1)
    return [{"shop": f"{region}-{number}", "orders": random.randint(1, 40)} for number in range(1, 6)]  # noqa: S311


@app.task(name="shop.transform", retry=Retry(delays=["1s"]), tags=["demo"])
async def transform(ctx: Context, sales: dict[str, Any]) -> float:
    """Turn the orders of one shop into money."""
    ctx.log.info("counting", shop=sales["shop"], orders=sales["orders"])
    await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311
    amount: float = round(sales["orders"] * 19.99, 2)
    return amount


@app.task(name="shop.load", tags=["demo"])
def load(amounts: list[float], until: str) -> str:
    """Write the sum where reports find it."""
    return f"{sum(amounts):.2f} EUR from {len(amounts)} shops until {until[:16]}"


@app.schedule(every("1m"))
@app.workflow(name="etl", max_parallel=3, tags=["demo"])
def etl(wf: Workflow, region: str = "eu", until: str = RUN_AT) -> Node:
    """Sum up what the shops of a region have sold: one run for each shop, three at a time."""
    shops = wf.add(extract, region)
    amounts = wf.map(transform, shops)
    return wf.add(load, amounts, until=until)


@app.task(name="shop.welcome", tags=["demo"])
def welcome(customer: str, email: str) -> str:
    """Greet a new customer, once, some seconds after the first start."""
    return f"welcome mail for {customer} to {email}"


@app.task(name="shop.charge_card", retry=Retry(delays=["2s", "4s"]), tags=["demo"])
def charge_card(order: int, amount: str) -> None:
    """Charge a card that has expired: after three attempts the run is among the dead letters."""
    raise CardExpired(f"order {order}: the bank declined {amount}, the card has expired")
