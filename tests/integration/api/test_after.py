"""Jobs that start after another job, over the API: the field `after`, its errors, and the followers of a job."""

from __future__ import annotations

import httpx2
import pytest

JOBS = "/api/v1/jobs"


async def make(api: httpx2.AsyncClient, name: str, **more: object) -> httpx2.Response:
    return await api.post(JOBS, json={"name": name, "task": "shop.load", **more})


async def test_after_is_stored_shown_changed_and_removed(api: httpx2.AsyncClient) -> None:
    assert (await make(api, "extract")).json()["after"] is None
    made = await make(api, "load", after="extract")
    assert made.json()["after"] == {"job": "extract", "on": "success"}
    assert made.json()["description"] == "After extract has succeeded"
    assert (await api.get(f"{JOBS}/extract")).json()["followers"] == ["load"]
    changed = await api.patch(f"{JOBS}/load", json={"after": {"on": "any"}})
    assert changed.json()["after"] == {"job": "extract", "on": "any"}
    listed = (await api.get(JOBS)).json()["items"]
    assert {job["name"]: job["followers"] for job in listed} == {"extract": ["load"], "load": []}
    assert (await api.patch(f"{JOBS}/load", json={"after": None})).json()["after"] is None
    assert (await api.get(f"{JOBS}/extract")).json()["followers"] == []
    back = await api.post(f"{JOBS}/load/rollback", json={"revision": 1})
    assert back.json()["after"] == {"job": "extract", "on": "success"}, back.text


@pytest.mark.parametrize(
    ("after", "code", "pointer"),
    [
        ("load", "conflicting_fields", "/after/job"),
        ("nothing", "job_unknown", "/after/job"),
        ({"job": "extract", "on": "sometimes"}, "unknown_word", "/after/on"),
        ({"job": "extract", "when": "now"}, "unknown_field", "/after/when"),
        ({"on": "any"}, "type", "/after"),
        (7, "type", "/after"),
    ],
)
async def test_a_wrong_after_is_refused(api: httpx2.AsyncClient, after: object, code: str, pointer: str) -> None:
    await make(api, "extract")
    refused = await make(api, "load", after=after)
    [fault] = refused.json()["errors"]
    assert (refused.status_code, fault["code"], fault["pointer"]) == (422, code, pointer)
    assert (await api.get(f"{JOBS}/load")).status_code == 404


async def test_a_cycle_is_refused_with_its_path(api: httpx2.AsyncClient) -> None:
    await make(api, "a")
    await make(api, "b", after="a")
    refused = await api.patch(f"{JOBS}/a", json={"after": "b"})
    assert refused.status_code == 422, refused.text
    assert "a → b → a" in refused.text
