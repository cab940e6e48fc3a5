"""What the second wall and the audit cost: `python -m bellringer.bench.walls`.

The same calls with and without, taken in turns, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from statistics import median

import click
import msgspec

from bellringer.bench.database import create, drop, server
from bellringer.jobs import Definition
from bellringer.lifecycle import send
from bellringer.lifecycle.register import register
from bellringer.schedule import parse
from bellringer.store import runs
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import ScopedStore, open_tenants

ROUNDS = 400
TENANT = 1
Step = Callable[[int], Awaitable[object]]


def _actor(n: int) -> str:
    """Every request has an id of its own, so every change tells its connection anew."""
    return msgspec.json.encode({"who": "key:bench", "origin": "192.0.2.1", "request_id": f"{n:032x}"}).decode()


def _creating(store: Store, names: Names, scope: Store | None, label: str) -> Step:
    async def create(n: int) -> None:
        made = Definition(name=f"{label} {n}", task="bench", schedules=(parse({"every": "1h"}),))
        where = store if scope is None else ScopedStore(scope, TENANT, _actor(n))
        await register(where, names, [made], tenant_id=TENANT, who="bench")

    return create


async def _reading(store: Store, names: Names, scope: Store | None) -> Step:
    order = send.Order(task="bench")
    keys = [(await send.send(store, names, order, tenant_id=TENANT)).key for _ in range(100)]

    async def read(n: int) -> None:
        where = store if scope is None else ScopedStore(scope, TENANT, None)
        assert await runs.get(where, keys[n % 100], TENANT) is not None

    return read


async def _measure(steps: dict[str, Step]) -> dict[str, float]:
    """The median of each in milliseconds."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for n in range(ROUNDS):
        for name, step in steps.items():
            started = time.perf_counter()
            await step(n)
            taken[name].append((time.perf_counter() - started) * 1000)
    return {name: round(median(values[20:]), 3) for name, values in taken.items()}


async def _main(plain: str, audited: str) -> dict[str, dict[str, float]]:
    bare, full = await Store.open(plain), await Store.open(audited)
    scope = await open_tenants(audited)
    try:
        await bare.pool.execute("alter table jobs disable trigger audited_start")
        names, other = Names(full), Names(bare)
        create = await _measure(
            {
                "plain": _creating(bare, other, None, "plain"),
                "audit": _creating(full, names, None, "audit"),
                "audit_and_wall": _creating(full, names, scope, "wall"),
            }
        )
        read = await _measure({"plain": await _reading(full, names, None), "wall": await _reading(full, names, scope)})
    finally:
        for store in (bare, full, scope):
            await store.close()
    return {"create_ms": create, "read_run_ms": read}


@click.command()
def main() -> None:
    """Print the medians as JSON."""

    async def measured(dsn: str) -> dict[str, dict[str, float]]:
        plain, audited = await create(dsn), await create(dsn)
        try:
            return await _main(plain, audited)
        finally:
            await drop(dsn, plain)
            await drop(dsn, audited)

    with server() as dsn:
        click.echo(json.dumps(asyncio.run(measured(dsn))))


if __name__ == "__main__":
    main()
