"""Where the installation runs, and how much others change, stays with the operators of the whole installation."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.integration.api.test_authentication import ROOT, by, made

from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending, Outcome
from bellringer.engine.audit_seal import seal_entries
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.settle import decide, settle
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration

HOST, PID = "build-box-7.corp.internal", 424242
API = "/api/v1"


@pytest.fixture
async def client(store: Store, catalog: Catalog, tenants: Store) -> Any:
    authenticator = Authenticator(store, catalog, AuthSettings(root_key=ROOT))
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), authenticator=authenticator)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20
    ) as opened:
        yield opened


@pytest.fixture
async def worker_id(store: Store, catalog: Catalog) -> int:
    """A worker that is called by its host and process, as one that nobody has named."""
    tasks = await catalog.task_ids(["demo"])
    who = WorkerRegistration(
        name=f"{HOST}-{PID}", host=HOST, pid=PID, version="1", pools={"short": 4}, task_ids=[tasks["demo"]]
    )
    await store.pool.execute("update tasks set schema = '{\"type\": \"object\"}' where name = 'demo'")
    return await workers.join(store, who)


def hides(text: str) -> bool:
    return HOST not in text and str(PID) not in text


async def test_only_operators_of_the_installation_see_hosts_and_processes(
    client: httpx2.AsyncClient, store: Store, catalog: Catalog, worker_id: int
) -> None:
    everyone = {
        "tenant viewer": await made(store, "viewer", name="tv"),
        "tenant admin": await made(store, "admin", name="ta"),
        "installation viewer": await made(store, "viewer", None, name="iv"),
    }
    operator = await made(store, "operator", None, name="io")
    run = (await client.post(f"{API}/jobs/execute", json={"task": "demo"}, headers=by(ROOT))).json()
    pools, tasks = await catalog.pool_ids(["short"]), await catalog.task_ids(["demo"])
    seat = ClaimSpec(worker_id=worker_id, pool_id=pools["short"], task_ids=[tasks["demo"]])
    taken, _ = await claim(store, seat, 10, TenantCursor())
    paths = [f"{API}/workers", f"{API}/workers/{worker_id}", f"{API}/tasks/demo", f"{API}/runs/{run['run_id']}/explain"]
    for who, key in everyone.items():
        for path in paths:
            answer = await client.get(path, headers=by(key))
            assert answer.status_code == 200, (who, path, answer.text)
            assert hides(answer.text), (who, path, answer.text)
    shown = (await client.get(f"{API}/workers/{worker_id}", headers=by(operator))).json()
    assert (shown["name"], shown["host"], shown["pid"]) == (f"{HOST}-{PID}", HOST, PID)
    assert HOST in (await client.get(f"{API}/tasks/demo", headers=by(operator))).text
    hidden = (await client.get(f"{API}/workers/{worker_id}", headers=by(everyone["tenant viewer"]))).json()
    assert (hidden["name"], hidden["host"], hidden["pid"]) == (f"worker-{worker_id}", None, None)

    await settle(store, worker_id, [decide(taken[0], Ending(outcome=Outcome.OK))])
    for path in (f"{API}/runs/{run['run_id']}", f"{API}/runs/{run['run_id']}/attempts", f"{API}/runs"):
        text = (await client.get(path, headers=by(everyone["tenant viewer"]))).text
        assert hides(text), (path, text)
    [listed] = (await client.get(f"{API}/runs", headers=by(everyone["tenant viewer"]))).json()["items"]
    assert (listed["worker_id"], listed["worker"]) == (worker_id, f"worker-{worker_id}")
    [listed] = (await client.get(f"{API}/runs", headers=by(operator))).json()["items"]
    assert listed["worker"] == f"{HOST}-{PID}"
    attempt = (await client.get(f"{API}/runs/{run['run_id']}", headers=by(operator))).json()["attempts"][0]
    assert (attempt["worker_id"], attempt["worker"]) == (worker_id, f"worker-{worker_id}")


async def test_reasons_name_no_machine_of_the_cluster(client: httpx2.AsyncClient, store: Store) -> None:
    await store.pool.execute(
        """insert into nodes (node_id, name, host, pid, version, started_at, seen_at, waits_for)
           select gen_random_uuid(), $1, $2, $3, '1', now(), now(), 'kafka at broker-1.corp.internal:9092'""",
        f"{HOST}-{PID}", HOST, PID,
    )  # fmt: skip
    await store.pool.execute(
        "update leases set holder = (select node_id from nodes limit 1), expires_at = now() + interval '1 hour'"
    )
    viewer = await made(store, "viewer")
    job = {"name": "bell", "task": "demo", "schedule": {"every": "1h"}}
    assert (await client.post(f"{API}/jobs", json=job, headers=by(ROOT))).status_code == 202
    for _ in range(2):
        why = (await client.get(f"{API}/jobs/bell/why", headers=by(viewer))).text
        assert hides(why), why
        assert "broker-1" not in why
        assert "shard" in why
        await store.pool.execute("update leases set holder = null")


async def test_seals_show_tenants_no_sizes(client: httpx2.AsyncClient, store: Store) -> None:
    await store.pool.execute("insert into tenants (name) values ('other')")
    for n in range(3):
        job = {"name": f"j{n}", "task": "demo"}
        await client.post(f"{API}/jobs", json=job, headers={**by(ROOT), "X-Tenant": "other"})
    await seal_entries(store)
    admin = await made(store, "admin")
    told = (await client.get(f"{API}/audit/seals", headers=by(admin))).json()["items"]
    assert [(len(item["hash"]), item["entries"]) for item in told] == [(64, None)]
    whole = (await client.get(f"{API}/audit/seals", headers=by(ROOT))).json()["items"]
    assert whole[0]["entries"] >= 3
    assert json.dumps(told[0]["hash"]) == json.dumps(whole[0]["hash"])
