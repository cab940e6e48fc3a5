"""`bellringer audit`, against a real server and database."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING

from bellringer.core.jobs import Definition
from bellringer.engine.audit_seal import seal_entries
from bellringer.engine.register import create
from bellringer.schedule import parse_schedule
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Ask


async def verify(dsn: str, code: int) -> str:
    command = (sys.executable, "-m", "bellringer", "audit", "verify", "--dsn", dsn)
    called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    shown, beside = await called.communicate()
    assert called.returncode == code, (shown, beside)
    return shown.decode()


async def test_list_export_and_verify(ask: Ask, store: Store, catalog: Catalog, dsn: str) -> None:
    definition = Definition(name="bell", task="demo", schedules=(parse_schedule({"every": "1h"}),))
    await create(store, catalog, [definition], tenant_id=1, who="ada")
    shown, _ = await ask("audit", "list", "--kind", "job")
    assert all(word in shown for word in ("ada", "job.created", "bell"))
    lines, _ = await ask("audit", "export", "--action", "job.created")
    [entry] = [json.loads(line) for line in lines.splitlines()]
    assert (entry["who"], entry["after"]["name"]) == ("ada", "bell")
    assert "intact" in await verify(dsn, 0)
    while await seal_entries(store):
        pass
    assert "intact" in await verify(dsn, 0)
    connection = await connect(dsn)
    for table in ("audit", "audit_seals", "jobs", "job_revisions"):  # an owner can switch the triggers off
        await connection.execute(f"alter table {table} disable trigger user")
    await connection.execute("update audit set who = 'bob'")
    await connection.close()
    assert "broken at seal 1: one of its entries" in await verify(dsn, 1)
