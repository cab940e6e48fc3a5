"""`bellringer jobs backfill` and `bellringer backfills`, against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from asyncio.subprocess import PIPE
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from bellringer.core.jobs import Definition
from bellringer.core.leases import Holding
from bellringer.core.policies import Overlap
from bellringer.core.runs import Ending, Outcome
from bellringer.engine.backfill import run_backfills
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.register import create
from bellringer.engine.settle import decide, settle
from bellringer.schedule import cron
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.workers import WorkerRegistration

DAY = ("--from", "2026-01-05", "--to", "2026-01-06")
DIED = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "", "lineage": ["ResultNotStorable"]})


@pytest.fixture(autouse=True)
async def _hourly(store: Store, catalog: Catalog) -> None:
    """There is the job `hourly`."""
    schedule = cron("0 * * * *", tz="Europe/Paris")
    hourly = Definition(name="hourly", task="demo", schedules=(schedule,), overlap=Overlap.ALLOW)
    await create(store, catalog, [hourly], tenant_id=1, who="me")


class Engine:
    """A scheduler and a worker that work off backfills in the background."""

    def __init__(self, store: Store, catalog: Catalog, ending: Ending) -> None:
        self._store, self._catalog, self._ending = store, catalog, ending

    async def run(self) -> None:
        store, holder = self._store, uuid4()
        holding = Holding(holder, await PostgresLeases(store, timedelta(minutes=5)).acquire(holder, 64))
        task, pool = await self._catalog.task_ids(["demo"]), await self._catalog.pool_ids(["short"])
        who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[task["demo"]])
        seat = ClaimSpec(worker_id=await workers.join(store, who), pool_id=pool["short"], task_ids=[task["demo"]])
        while True:
            await run_backfills(store, self._catalog, holding, await store.now())
            taken, _ = await claim(store, seat, 10, TenantCursor())
            await settle(store, seat.worker_id, [decide(c, self._ending) for c in taken])
            await asyncio.sleep(0.02)


async def call(url: str, *arguments: str, code: int = 0) -> tuple[str, str]:
    """In a process of its own; answers what it printed, and what it said beside."""
    command = (sys.executable, "-m", "bellringer", *arguments, "--url", url)
    environ = {**os.environ, "TZ": "UTC"}
    called = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, stdin=asyncio.subprocess.DEVNULL, env=environ
    )
    shown, beside = await called.communicate()
    assert called.returncode == code, (shown, beside)
    return shown.decode(), beside.decode()


async def test_a_dry_run_shows_what_would_be_done(url: str, store: Store) -> None:
    shown, beside = await call(url, "jobs", "backfill", "hourly", *DAY, "--dry-run")
    facts = dict(
        line.split(maxsplit=1) for line in shown.replace("already ran", "ran").replace("to run", "run").splitlines()
    )
    assert (facts["occurrences"], facts["ran"], facts["run"]) == ("24", "0", "24")
    assert facts["first"] == "2026-01-04 23:00:00.000+00:00"  # midnight in Paris
    assert len(facts["plan"]) == 16
    assert beside == ""
    document = json.loads((await call(url, "jobs", "backfill", "hourly", *DAY, "--dry-run", "-o", "json"))[0])
    assert document["plan"] == facts["plan"]
    assert await store.pool.fetchval("select count(*) from backfills") == 0


async def test_no_one_can_be_asked_without_a_terminal(url: str, store: Store) -> None:
    _, beside = await call(url, "jobs", "backfill", "hourly", *DAY, code=2)
    assert beside.splitlines()[-1] == "hint: add --yes"
    assert await store.pool.fetchval("select count(*) from backfills") == 0


async def test_it_is_started_with_the_terms_that_were_given(url: str, store: Store) -> None:
    terms = ("--parallel", "4", "--order", "newest", "--reprocess", "all", "--rate", "30")
    shown, beside = await call(url, "jobs", "backfill", "hourly", *DAY, *terms, "--yes", "-o", "name")
    assert (shown, beside) == ("bf_1\n", "")
    row = await store.pool.fetchrow("select parallelism, newest_first, reprocess, rate, total from backfills")
    assert row is not None
    assert tuple(row) == (4, True, "all", 30.0, 24)
    listed, _ = await call(url, "backfills", "list", "--job", "hourly")
    assert "bf_1" in listed
    assert "0 of 24" in listed
    assert json.loads((await call(url, "backfills", "get", "bf_1", "-o", "json"))[0])["total"] == 24


async def test_a_plan_of_a_job_without_overlap_warns_that_its_runs_are_not_parallel(
    url: str, store: Store, catalog: Catalog
) -> None:
    alone = Definition(name="alone", task="demo", schedules=(cron("0 * * * *"),))
    await create(store, catalog, [alone], tenant_id=1, who="me")
    asked = ("jobs", "backfill", "alone", *DAY, "--dry-run", "-o", "json")
    shown, beside = await call(url, *asked, "--parallel", "3")
    [warning] = json.loads(shown)["warnings"]
    assert (warning["code"], warning["pointer"]) == ("no_overlap", "/parallelism")
    assert beside == (
        "warning: the job's overlap is skip, so one run executes at a time, not 3; "
        "to run more, use `bellringer jobs update alone --overlap allow`\n"
    )
    shown, beside = await call(url, *asked)
    assert "warnings" not in json.loads(shown)
    assert beside == ""
    await call(url, "jobs", "update", "alone", "--overlap", "allow")
    assert (await call(url, *asked, "--parallel", "3"))[1] == ""


async def test_the_id_of_a_backfill_is_recognized(url: str) -> None:
    _, beside = await call(url, "why", "bf_1", code=4)
    assert "hint: bf_1 is the id of a backfill: `bellringer backfills get bf_1` shows it" in beside


async def test_the_hint_for_a_bound_names_the_accepted_forms(url: str) -> None:
    _, beside = await call(url, "jobs", "backfill", "hourly", "--from", "yesterday", "--to", "2026-01-06", code=2)
    assert 'hint: write it like "2026-12-01" or "2026-12-01T09:00" in the time zone of the job' in beside


async def test_a_plan_that_no_longer_holds_is_refused(url: str, store: Store) -> None:
    _, beside = await call(url, "jobs", "backfill", "hourly", *DAY, "--plan", "0123456789abcdef", "--yes", code=5)
    assert "have changed since the plan was computed" in beside
    assert await store.pool.fetchval("select count(*) from backfills") == 0


async def test_there_may_be_nothing_to_run(url: str, store: Store) -> None:
    _, beside = await call(url, "jobs", "backfill", "hourly", *DAY, "--reprocess", "failed")
    assert beside == "no occurrences to run\n"


@pytest.mark.parametrize(("ending", "code", "word"), [(Ending(outcome=Outcome.OK), 0, "succeeded"), (DIED, 3, "dead")])
async def test_it_can_be_waited_for(
    url: str, store: Store, catalog: Catalog, ending: Ending, code: int, word: str
) -> None:
    engine = asyncio.create_task(Engine(store, catalog, ending).run())
    asked = ("jobs", "backfill", "hourly", *DAY, "--parallel", "5", "--yes", "--wait", "-o", "json")
    shown, _ = await call(url, *asked, code=code)
    engine.cancel()
    done = json.loads(shown)
    assert (done["state"], done["made"], done["running"], done[word]) == ("done", 24, 0, 24)


async def test_it_is_steered(url: str, store: Store) -> None:
    await call(url, "jobs", "backfill", "hourly", *DAY, "--yes")
    assert (await call(url, "backfills", "pause", "bf_1"))[0] == "paused bf_1\n"
    assert await store.pool.fetchval("select state from backfills") == "paused"
    assert (await call(url, "backfills", "resume", "bf_1"))[0] == "resumed bf_1\n"
    shown, _ = await call(url, "backfills", "cancel", "bf_1", "--reason", "wrong month")
    assert shown == "cancelled bf_1, 0 of its runs are still running\n"
    facts, _ = await call(url, "backfills", "get", "bf_1")
    assert "wrong month" in facts
    await call(url, "backfills", "resume", "bf_1", code=5)
    await call(url, "backfills", "get", "bf_2", code=4)


async def test_an_interrupt_leaves_it_running_and_says_so(url: str, store: Store, tmp_path: Path) -> None:
    """On a terminal it waits by itself."""
    ours, theirs = pty.openpty()
    command = (sys.executable, "-m", "bellringer", "jobs", "backfill", "hourly", *DAY, "--yes", "--url", url)
    called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=theirs, start_new_session=True)
    os.close(theirs)
    heard = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        while b"0 of 24" not in heard:
            heard += await loop.run_in_executor(None, os.read, ours, 4096)
        called.send_signal(signal.SIGINT)
        while b"cancel bf_1" not in heard:
            heard += await loop.run_in_executor(None, os.read, ours, 4096)
        await called.communicate()
    os.close(ours)
    assert called.returncode == 130
    assert b"bf_1 continues in the background" in heard
    assert await store.pool.fetchval("select state from backfills") == "running"
