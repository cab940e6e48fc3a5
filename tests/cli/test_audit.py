"""`bellringer audit`, against a real server and database."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING

from bellringer.jobs import Definition
from bellringer.lifecycle.register import register
from bellringer.lifecycle.seal import seal
from bellringer.schedule import parse
from bellringer.store.names import Names
from bellringer.store.pool import Store, connect

if TYPE_CHECKING:
    from tests.cli.conftest import Ask


async def verify(dsn: str, code: int) -> str:
    command = (sys.executable, "-m", "bellringer", "audit", "verify", "--dsn", dsn)
    called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    shown, beside = await called.communicate()
    assert called.returncode == code, (shown, beside)
    return shown.decode()


async def test_list_export_and_verify(ask: Ask, store: Store, names: Names, dsn: str) -> None:
    definition = Definition(name="bell", task="demo", schedules=(parse({"every": "1h"}),))
    await register(store, names, [definition], tenant_id=1, who="ada")
    shown, _ = await ask("audit", "list", "--kind", "job")
    assert all(word in shown for word in ("ada", "job.created", "bell"))
    lines, _ = await ask("audit", "export", "--action", "job.created")
    [entry] = [json.loads(line) for line in lines.splitlines()]
    assert (entry["who"], entry["after"]["name"]) == ("ada", "bell")
    assert "whole" in await verify(dsn, 0)
    while await seal(store):
        pass
    assert "whole" in await verify(dsn, 0)
    connection = await connect(dsn)
    await connection.execute("set session_replication_role = replica")
    await connection.execute("update audit set who = 'bob'")
    await connection.close()
    assert "broken at seal 1: an entry of it" in await verify(dsn, 1)
