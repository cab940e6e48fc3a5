"""Regions: which shards are whose, and jobs that have a home."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from bellringer.cli.cluster import read_regions
from bellringer.core.jobs import shard_of
from bellringer.store import leases
from bellringer.store.connection_pool import Store
from bellringer.store.leases import NodeHeartbeat

REGIONS = {"eu": "0-31", "us": "32-47,63"}


@pytest.fixture
async def regions(api: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await api.put("/api/v1/cluster/regions", json={"regions": REGIONS})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def create(api: httpx2.AsyncClient, name: str, **more: Any) -> httpx2.Response:
    return await api.post("/api/v1/jobs", json={"name": name, "task": "demo", **more})


async def test_shards_are_given_to_regions_and_that_is_audited_once(
    api: httpx2.AsyncClient, regions: dict[str, Any]
) -> None:
    assert regions == {"regions": REGIONS, "others": "48-62"}
    assert (await api.get("/api/v1/cluster/regions")).json() == regions
    shards = (await api.get("/api/v1/cluster/shards")).json()["items"]
    assert [shards[n]["region"] for n in (0, 31, 32, 48, 63)] == ["eu", "eu", "us", None, "us"]
    table = (await api.get("/api/v1/cluster/leases")).json()["items"]
    assert [lease["region"] for lease in table] == [shard["region"] for shard in shards]
    await api.put("/api/v1/cluster/regions", json={"regions": REGIONS})  # changes nothing
    entries = (await api.get("/api/v1/audit", params={"installation": "true", "kind": "cluster"})).json()["items"]
    assert [(e["action"], e["target"], e["after"]) for e in entries] == [("cluster.regions", "regions", REGIONS)]
    cleared = await api.put("/api/v1/cluster/regions", json={"regions": {}})
    assert cleared.json() == {"regions": {}, "others": "0-63"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"eu": "0-64"}, "'0-64' is not a valid shard or range of shards"),
        ({"eu": "0-3", "us": "3"}, "shard 3 is in two regions"),
        ({"": "1"}, "region is empty"),
        ({"eu": ""}, "'' is not a valid shard or range of shards"),
    ],
)
async def test_what_cannot_be_given_is_refused_and_changes_nothing(
    api: httpx2.AsyncClient, given: dict[str, str], says: str
) -> None:
    refused = await api.put("/api/v1/cluster/regions", json={"regions": given})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/regions")
    assert says in refused.text
    assert (await api.get("/api/v1/cluster/regions")).json()["regions"] == {}


async def test_a_job_lives_in_a_shard_of_its_region(
    api: httpx2.AsyncClient, regions: dict[str, Any], store: Store
) -> None:
    for n in range(12):
        made = (await create(api, f"job {n}", region="us")).json()
        assert made["region"] == "us"
        assert shard_of(UUID(made["job_id"]), 64) in {*range(32, 48), 63}
        assert (await api.get(f"/api/v1/jobs/{made['job_id']}")).json() == made
    items = [{"name": f"bulk {n}", "task": "demo", "region": "eu"} for n in range(20)]
    assert (await api.post("/api/v1/jobs/bulk", json={"items": items})).json()["created"] == 20
    rows = await store.pool.fetch(
        "select distinct l.region from jobs j join leases l using (shard) where name like 'bulk %'"
    )
    assert [row["region"] for row in rows] == ["eu"]
    listed = (await api.get("/api/v1/jobs", params={"limit": 100})).json()["items"]
    assert {job["region"] for job in listed} == {"eu", "us"}


async def test_a_job_without_a_home_shows_whose_shard_it_is_in(
    api: httpx2.AsyncClient, regions: dict[str, Any]
) -> None:
    for n in range(20):
        made = (await create(api, f"job {n}")).json()
        shard = shard_of(UUID(made["job_id"]), 64)
        assert made["region"] == ("eu" if shard < 32 else "us" if shard < 48 or shard == 63 else None)


async def test_a_region_without_shards_is_refused(api: httpx2.AsyncClient, regions: dict[str, Any]) -> None:
    refused = await create(api, "far away", region="mars")
    assert refused.status_code == 422
    assert [(e["pointer"], e["code"]) for e in refused.json()["errors"]] == [("/region", "region_unknown")]
    assert "known regions: eu, us" in refused.text
    items = [{"name": "a", "task": "demo", "region": "eu"}, {"name": "b", "task": "demo", "region": "mars"}]
    bulk = await api.post("/api/v1/jobs/bulk", json={"items": items, "atomic": False})
    assert (bulk.json()["created"], bulk.json()["failed"]) == (1, 1)


async def test_a_job_does_not_move(api: httpx2.AsyncClient, regions: dict[str, Any]) -> None:
    made = (await create(api, "job", region="us")).json()
    path = f"/api/v1/jobs/{made['job_id']}"
    changed = await api.patch(path, json={"priority": 7}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.json()["region"]) == (200, "us")
    moved = await api.patch(path, json={"region": "eu"}, headers={"If-Match": '"2"'})
    assert (moved.status_code, moved.json()["errors"][0]["code"]) == (422, "region_fixed")
    assert (await api.get(path)).json()["revision"] == 2


async def test_nodes_show_where_they_stand_and_what_they_wait_for(api: httpx2.AsyncClient, store: Store) -> None:
    beat = NodeHeartbeat(node_id=uuid4(), name="n1", host="h", pid=1, version="1", region="eu")
    await leases.record_heartbeat(store, beat)
    assert "schedulers" not in (await api.get("/readyz")).json()["checks"]
    await leases.record_heartbeat(
        store, replace(beat, waits_for="etcd at h:2379 does not answer since 2026-01-01 00:00:00Z")
    )
    [node] = (await api.get("/api/v1/cluster/nodes")).json()["items"]
    assert (node["region"], node["waits_for"].partition(" since ")[0]) == ("eu", "etcd at h:2379 does not answer")
    ready = await api.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["schedulers"]) == (200, "waiting")


def test_names_alone_share_the_shards_evenly() -> None:
    class Client:
        def cluster(self) -> Any:
            return type("C", (), {"shards": type("S", (), {"total": 64})})

    client: Any = Client()
    assert read_regions(client, ("eu", "us")) == {"eu": "0-31", "us": "32-63"}
    assert read_regions(client, ("eu=0-5,9", "us=6")) == {"eu": "0-5,9", "us": "6"}
