"""The demo app of `bellringer dev --demo`: the jobs of a small shop.

Each job shows one feature: an interval, a cron schedule, a one-shot, retries that succeed, retries that end in a dead
letter, progress with log lines, and a workflow.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

from bellringer.clock import SystemClock
from bellringer.core.retry_policy import Retry
from bellringer.errors import NotFound
from bellringer.schedule import at, cron, every
from bellringer.sdk.app import App
from bellringer.sdk.workflow_values import RUN_AT, WorkflowNode
from bellringer.sdk.workflows import Workflow
from bellringer.worker.context import Context


class GatewayBusy(Exception):
    """The warehouse responds with 503; a retry may help."""


class CardExpired(Exception):
    """The bank declined the card; a retry does not help."""


class Shop(App):
    """An app that schedules two more jobs relative to its first start; later starts do not change them."""

    async def adeclare(self) -> int:
        changed = await super().adeclare()
        now = SystemClock().now().replace(microsecond=0)
        if not await self._exists("welcome"):
            soon = at(now + timedelta(seconds=10))
            await welcome.aschedule(soon, customer="Ada Lovelace", email="ada@example.com", id="welcome")
            changed += 1
        if not await self._exists("charge-card"):
            slowly = every("10m", anchor=now + timedelta(seconds=15) - timedelta(minutes=10))
            await charge_card.aschedule(slowly, order=1042, amount="49.90 EUR", id="charge-card")
            changed += 1
        return changed

    async def _exists(self, job: str) -> bool:
        try:
            await self.jobs[job].aget()
        except NotFound:
            return False
        return True


app = Shop(name="bellringer demo")


@app.schedule(every("5s"), name="heartbeat")
@app.task(name="shop.heartbeat", tags=["demo"])
async def heartbeat() -> str:
    """Report that the shop is open: a short run every five seconds."""
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
    """Index the products in steps, and report the progress."""
    ctx.log.info("rebuilding the search index", products=products)
    for done in range(0, products, 40):
        await asyncio.sleep(0.25)
        await ctx.progress(done + 40, products, note=f"indexed {done + 40} of {products}")
    ctx.log.info("the search index is live")
    return f"{products} products"


@app.schedule(every("30s"), name="sync-inventory", kwargs={"warehouse": "Rotterdam"})
@app.task(name="shop.sync_inventory", retry=Retry(delays=["1s", "3s", "10s"]), tags=["demo"])
async def sync_inventory(ctx: Context, warehouse: str) -> str:
    """Read the stock of a warehouse that fails twice and succeeds at the third attempt."""
    if ctx.attempt < 3:
        ctx.log.warning("the warehouse is busy", warehouse=warehouse, attempt=ctx.attempt)
        raise GatewayBusy(f"503 from the warehouse in {warehouse}")
    return f"{random.randint(900, 1100)} items in {warehouse}"  # noqa: S311


@app.task(name="shop.extract", tags=["demo"])
async def extract(region: str) -> list[dict[str, Any]]:
    """List the shops of a region and their orders."""
    await asyncio.sleep(0.1)
    return [{"shop": f"{region}-{number}", "orders": random.randint(1, 40)} for number in range(1, 6)]  # noqa: S311


@app.task(name="shop.transform", retry=Retry(delays=["1s"]), tags=["demo"])
async def transform(ctx: Context, sales: dict[str, Any]) -> float:
    """Compute the revenue of one shop."""
    ctx.log.info("counting", shop=sales["shop"], orders=sales["orders"])
    await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311
    amount: float = round(sales["orders"] * 19.99, 2)
    return amount


@app.task(name="shop.load", tags=["demo"])
def load(amounts: list[float], until: str) -> str:
    """Store the total for reports."""
    return f"{sum(amounts):.2f} EUR from {len(amounts)} shops until {until[:16]}"


@app.schedule(every("1m"))
@app.workflow(name="etl", max_parallel=3, tags=["demo"])
def etl(wf: Workflow, region: str = "eu", until: str = RUN_AT) -> WorkflowNode:
    """Sum up the sales of a region: one run per shop, three at a time."""
    shops = wf.add(extract, region)
    amounts = wf.map(transform, shops)
    return wf.add(load, amounts, until=until)


@app.task(name="shop.welcome", tags=["demo"])
def welcome(customer: str, email: str) -> str:
    """Greet a new customer once, a few seconds after the first start."""
    return f"welcome mail for {customer} to {email}"


@app.task(name="shop.charge_card", retry=Retry(delays=["2s", "4s"]), tags=["demo"])
def charge_card(order: int, amount: str) -> None:
    """Charge an expired card: after three attempts, the run becomes a dead letter."""
    raise CardExpired(f"order {order}: the bank declined {amount}, the card has expired")
