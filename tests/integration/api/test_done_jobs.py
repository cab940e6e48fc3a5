"""Jobs that are done, over the API: the state, the option `after_completion`, and a name that is free again."""

from __future__ import annotations

import httpx2

from bellringer.store import jobs
from bellringer.store.connection_pool import Store

JOBS = "/api/v1/jobs"
ENDED = {"task": "demo", "schedule": {"rrule": "FREQ=DAILY;COUNT=1", "start": "2020-01-01T00:00"}}
LATER = {"task": "demo", "schedule": {"cron": "0 3 * * *"}}


async def test_the_option_is_kept_shown_changed_and_in_the_history(api: httpx2.AsyncClient) -> None:
    made = (await api.post(JOBS, json={"name": "once", **LATER})).json()
    assert made["after_completion"] == "keep"
    changed = await api.patch(f"{JOBS}/once", json={"after_completion": "delete"})
    assert (changed.status_code, changed.json()["after_completion"]) == (200, "delete")
    [change] = (await api.get(f"{JOBS}/once/revisions/2")).json()["changes"]
    assert change == {"field": "after_completion", "before": "keep", "after": "delete"}
    assert (await api.patch(f"{JOBS}/once", json={"after_completion": None})).json()["after_completion"] == "keep"
    back = await api.post(f"{JOBS}/once/rollback", json={"revision": 2})
    assert back.json()["after_completion"] == "delete"


async def test_another_word_is_refused(api: httpx2.AsyncClient) -> None:
    refused = await api.post(JOBS, json={"name": "once", **LATER, "after_completion": "drop"})
    [fault] = refused.json()["errors"]
    assert (refused.status_code, fault["code"], fault["pointer"]) == (422, "unknown_word", "/after_completion")


async def test_done_jobs_are_listed_and_can_be_revived(api: httpx2.AsyncClient, store: Store) -> None:
    await api.post(JOBS, json={"name": "ended", **ENDED})
    await api.post(JOBS, json={"name": "live", **LATER})
    assert (await jobs.finish(store, None, 10)).jobs == 1
    listed = (await api.get(JOBS, params={"state": "done"})).json()["items"]
    assert [(job["name"], job["next_at"], job["done_at"] is not None) for job in listed] == [("ended", None, True)]
    why = (await api.get(f"{JOBS}/ended/why")).json()
    assert "no_more_instants" in {reason["code"] for reason in why["reasons"]}
    revived = (await api.put(f"{JOBS}/ended", json=LATER)).json()
    assert (revived["done_at"], revived["revision"], revived["next_at"] is not None) == (None, 2, True)
    assert (await api.get(JOBS, params={"state": "done"})).json()["items"] == []


async def test_a_job_that_was_deleted_when_it_was_done(api: httpx2.AsyncClient, store: Store) -> None:
    job = (await api.put(f"{JOBS}/once", json={**ENDED, "after_completion": "delete"})).json()
    run = (await api.post(f"{JOBS}/once/run", json={})).json()
    assert (await jobs.finish(store, None, 10)).jobs == 0, "its manual run is queued"
    assert (await api.post(f"/api/v1/runs/{run['run_id']}/cancel", json={})).status_code in {200, 202}
    assert (await jobs.finish(store, None, 10)).jobs == 1
    assert (await jobs.delete_done(store, None, 10)).jobs == 1
    for path in (f"{JOBS}/once", f"{JOBS}/{job['job_id']}", f"{JOBS}/once/why"):
        assert (await api.get(path)).status_code == 404, path
    kept = (await api.get(f"/api/v1/runs/{run['run_id']}")).json()
    assert kept["state"] == "cancelled"
    assert (await api.get(f"/api/v1/runs/{run['run_id']}/explain")).status_code == 200
    entries = (await api.get("/api/v1/audit", params={"action": "job.deleted"})).json()["items"]
    assert [(entry["who"], entry["target"]) for entry in entries] == [("bellringer", job["job_id"])]
    again = await api.put(f"{JOBS}/once", json={**LATER, "after_completion": "delete"})
    assert (again.status_code, again.json()["revision"], again.json()["job_id"] == job["job_id"]) == (201, 1, False)
