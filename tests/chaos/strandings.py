"""`bellringer verify` on a history: clean as it was played, and not clean once strandings are planted."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from typing import Any

import asyncpg

from .app import quick
from .cluster import Cluster
from .ledger import connect


async def run_verify(cluster: Cluster) -> tuple[int, str]:
    """The exit code of `bellringer verify`, and its lines."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bellringer", "verify", "--from", "1h", "--json"),
        env={**os.environ, "BELLRINGER_DSN": cluster.database.dsn},
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, (out + err).decode()


async def verify(cluster: Cluster) -> list[str]:
    """What verify finds in a history that nobody has touched."""
    code, lines = await run_verify(cluster)
    return [] if code == 0 else [f"verify ends with {code}: {line}" for line in lines.splitlines()]


async def plant_and_verify(cluster: Cluster) -> list[str]:
    """Plant a stranding of each kind, with nobody left who could repair it; returns those that verify does not find."""
    cluster.close_members([*cluster.schedulers, *cluster.workers])
    connection = await connect(cluster.database.dsn)
    try:
        planted = await _plant(connection)
    finally:
        await connection.close()
    code, lines = await run_verify(cluster)
    found = {(told.get("finding"), told.get("job_id")) for told in map(json.loads, lines.splitlines())}
    missed = [what for what, finding, job_id in planted if (finding, job_id) not in found]
    if code != 1:
        missed.append(f"anything: its exit code is {code}")
    return [f"verify does not find {what}" for what in missed]


async def _plant(connection: asyncpg.Connection[Any]) -> list[tuple[str, str, str]]:
    """What was planted: in words, the finding that is expected, and the id of the job or send."""
    lost, *_, live = [row["worker_id"] for row in await connection.fetch("select worker_id from workers order by 1")]
    await connection.execute(
        "update workers set state = 'live', seen_at = clock_timestamp(), confirmed_at = now() - interval '1 h'"
        " where worker_id = $1",
        live,
    )
    await connection.execute("update workers set state = 'lost' where worker_id = $1", lost)
    planted = []
    holders = {"a live worker that does not know it": live, "a lost worker": lost, "no worker there is": 2**31 - 1}
    for holder, worker_id in holders.items():
        run = await quick.asend("stranded")
        await connection.execute(
            "update queue set worker_id = $2, claimed_at = now() - interval '1 h', attempt = 1 where job_id = $1",
            run.key.job_id,
            worker_id,
        )
        planted.append((f"a run that is held by {holder}", "stranded", str(run.key.job_id)))
    ended = await connection.fetchval(
        "select job_id from attempts join runs using (job_id, scheduled_for, slot)"
        " where cause = 'send' and ends_as = 'succeeded' limit 1"
    )
    await connection.execute(  # verify does not judge the latest minute
        "update attempts set outcome = 'cancelled', ends_as = 'cancelled',"
        " scheduled_for = scheduled_for - interval '2 min' where job_id = $1 and ends_as = 'succeeded'",
        ended,
    )
    planted.append(("a run that was cancelled without a request", "unrequested", str(ended)))
    return planted
