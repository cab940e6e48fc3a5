"""The app in the pictures: the jobs of a bookshop. `bellringer dev` reads it, so it imports nothing of the tools."""

from __future__ import annotations

import asyncio
from typing import Any

from bellringer import RUN_AT, App, Context, Retry, Workflow, cron, every

app = App(name="bookshop")


EXPIRED_ORDER = 1042


class CardExpired(Exception):
    """The bank declines the card; a retry does not help."""


@app.schedule(every("1m"), name="sync stock", tags=["warehouse"])
@app.task(name="stock.sync", retry=3)
async def sync_stock(ctx: Context) -> dict[str, int]:
    """Read the stock of the warehouse."""
    ctx.log.info("reading the stock", warehouse="Rotterdam")
    return {"titles": 4180, "changed": 37}


@app.schedule(cron("*/5 * * * *", tz="Europe/Amsterdam"), name="send receipts", tags=["orders"])
@app.task(name="mail.receipts", timeout="2m")
def send_receipts() -> int:
    """Send the receipts of new orders."""
    return 12


@app.schedule(
    cron("*/10 * * * *", tz="Europe/Amsterdam"),
    name="charge subscriptions",
    kwargs={"plan": "monthly", "currency": "EUR"},
    tags=["billing"],
)
@app.task(name="billing.charge", retry=Retry(delays=["2s"]))
async def charge(ctx: Context, plan: str, currency: str) -> None:
    """Charge the cards of subscribers; one of them has expired."""
    ctx.log.info("charging", plan=plan, orders=3)
    for order, amount in ((1040, "12.50"), (1041, "31.00"), (1042, "49.90")):
        await asyncio.sleep(0.2)
        if order == EXPIRED_ORDER:
            ctx.log.warning("declined", order=order, code="expired_card")
            raise CardExpired(f"order {order}: the bank declined {amount} {currency}, the card has expired")
        ctx.log.info("charged", order=order, amount=amount)


@app.schedule(every("2m"), name="refresh prices", tags=["catalog"])
@app.task(name="catalog.prices")
async def refresh_prices() -> str:
    """Fetch the prices of publishers."""
    await asyncio.sleep(0.2)
    return "218 prices"


@app.schedule(cron("30 2 * * *", tz="Europe/Amsterdam"), name="nightly report", kwargs={"days": 30}, tags=["finance"])
@app.task(name="reports.sales", timeout="10m", retry=Retry(5, base="10s", cap="15m"))
def nightly_report(ctx: Context, days: int) -> dict[str, Any]:
    """Sum up the sales of the last days."""
    ctx.log.info("summing up", days=days)
    return {"days": days, "total": "18,204.50 EUR"}


@app.schedule(cron("0 9 * * MON-FRI", tz="Europe/Amsterdam"), name="reorder titles", tags=["warehouse"])
@app.task(name="stock.reorder")
def reorder() -> int:
    """Order titles that are almost sold out."""
    return 9


@app.schedule(cron("0 6 LW * *", tz="Europe/Amsterdam"), name="pay publishers", tags=["billing", "finance"])
@app.task(name="billing.payouts")
def payouts() -> str:
    """Pay the publishers on the last working day of the month."""
    return "31 payouts"


@app.schedule(every("15m"), name="rebuild search", tags=["catalog"])
@app.task(name="catalog.search", timeout="5m")
async def rebuild_search(ctx: Context, titles: int = 4180) -> str:
    """Index the titles in steps, and report the progress."""
    for done in range(0, titles, 418):
        await asyncio.sleep(0.5)
        await ctx.progress(done + 418, titles, note=f"indexed {done + 418:,} of {titles:,} titles")
        ctx.log.info("indexed", titles=done + 418)
    return f"{titles:,} titles"


@app.schedule(every("3m"), name="expire carts", tags=["orders"])
@app.task(name="orders.expire_carts")
async def expire_carts() -> int:
    """Empty the carts that nobody touched for a day."""
    await asyncio.sleep(0.1)
    return 4


@app.schedule(cron("15 * * * *", tz="UTC"), name="fetch exchange rates", tags=["finance"])
@app.task(name="finance.rates", retry=Retry(5, base="30s", cap="10m"))
def fetch_rates() -> str:
    """Fetch the exchange rates of the central bank."""
    return "31 currencies"


@app.schedule(cron("0 1 * * *", tz="Europe/Amsterdam"), name="back up catalog", tags=["catalog"])
@app.task(name="catalog.backup", timeout="1h")
def back_up_catalog() -> str:
    """Copy the catalog to the archive."""
    return "4,180 titles"


@app.schedule(cron("0 10 * * TUE", tz="Europe/Amsterdam"), name="newsletter", jitter="20m", tags=["marketing"])
@app.task(name="mail.newsletter")
def newsletter() -> int:
    """Send the newsletter."""
    return 18_204


@app.schedule(cron("0 8,13,17 * * MON-SAT", tz="Europe/Amsterdam"), name="print pick lists", tags=["warehouse"])
@app.task(name="stock.pick_lists")
def print_pick_lists() -> int:
    """Print the lists of the titles to pack."""
    return 26


@app.schedule(cron("30 6 1 * *", tz="Europe/Amsterdam"), name="close the month", tags=["finance"])
@app.task(name="finance.close_month", timeout="30m")
def close_month() -> str:
    """Close the books of the last month."""
    return "closed"


@app.task(name="sales.extract")
async def extract(region: str) -> list[dict[str, Any]]:
    """List the shops of a region."""
    await asyncio.sleep(0.3)
    return [{"shop": f"{region}-{number}", "orders": 10 * number} for number in range(1, 6)]


@app.task(name="sales.transform")
async def transform(shop: dict[str, Any]) -> float:
    """Compute the revenue of one shop."""
    await asyncio.sleep(0.4)
    return float(round(shop["orders"] * 19.99, 2))


@app.task(name="sales.load")
def load(amounts: list[float], until: str) -> str:
    """Store the total."""
    return f"{sum(amounts):.2f} EUR until {until[:16]}"


@app.task(name="sales.notify")
def notify(total: str) -> str:
    """Tell the team."""
    return total


@app.schedule(cron("0 * * * *", tz="Europe/Amsterdam"))
@app.workflow(name="hourly sales", max_parallel=3, tags=["finance"])
def hourly_sales(wf: Workflow, region: str = "nl", until: str = RUN_AT) -> Any:
    """Sum up the sales of a region: one run per shop, three at a time."""
    amounts = wf.map(transform, wf.add(extract, region))
    total = wf.add(load, amounts, until=until)
    return wf.add(notify, total)


@app.task(name="forecast.read")
async def read_source(source: str) -> int:
    """Read one source of the forecast."""
    await asyncio.sleep({"sales": 0.5, "stock": 0.3, "weather": 0.8}[source])
    return 1200


@app.task(name="forecast.clean")
async def clean_source(rows: int) -> int:
    """Remove returns and duplicates."""
    await asyncio.sleep(0.2)
    return rows - 40


@app.task(name="forecast.train")
async def train(sales: int, stock: int, weather: int) -> str:
    """Fit the model of each category."""
    await asyncio.sleep(0.9)
    return f"model of {sales + stock + weather} rows"


@app.task(name="forecast.publish")
async def publish(model: str, channel: str) -> str:
    """Hand the forecast to a department."""
    await asyncio.sleep(0.15)
    return f"{channel}: {model}"


@app.schedule(cron("0 4 * * *", tz="Europe/Amsterdam"))
@app.workflow(name="sales forecast", tags=["warehouse", "finance"])
def sales_forecast(wf: Workflow) -> None:
    """Forecast the sales of the next weeks from three sources, for two departments."""
    sales, stock, weather = (
        wf.add(clean_source, wf.add(read_source, source, name=f"read {source}"), name=f"clean {source}")
        for source in ("sales", "stock", "weather")
    )
    model = wf.add(train, sales, stock, weather)
    for channel in ("purchasing", "marketing"):
        wf.add(publish, model, channel, name=f"tell {channel}")


@app.task(name="catalog.import")
async def import_publisher(publisher: str) -> int:
    """Import the titles of one publisher; one of them sends a broken file."""
    await asyncio.sleep(0.3)
    if publisher == "Harbour Press":
        raise ValueError("line 218 of titles.csv: the price 'n/a' is not a number")
    return 40


@app.schedule(cron("0 5 * * MON", tz="Europe/Amsterdam"))
@app.workflow(name="weekly catalog", tags=["catalog"])
def weekly_catalog(wf: Workflow) -> Any:
    """Import the titles of all publishers and index them."""
    imports = wf.map(import_publisher, ["Blue Door", "Harbour Press", "Lantern", "North Quay"])
    return wf.add(load, imports, until=RUN_AT)
