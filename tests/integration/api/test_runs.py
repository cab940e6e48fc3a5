"""Runs over HTTP: execute, read, list, cancel, retry; and the dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2

from bellringer.core.runs import Ending, Outcome, RunKey, decode_run_id
from bellringer.store import queue
from bellringer.store.connection_pool import Store

Work = Callable[[Ending | None], Awaitable[int]]
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no 5"})


async def _execute(api: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await api.post("/api/v1/jobs/execute", json={"task": "demo", **fields})
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


async def _get(api: httpx2.AsyncClient, run_id: str) -> dict[str, Any]:
    document: dict[str, Any] = (await api.get(f"/api/v1/runs/{run_id}")).json()
    return document


async def test_a_task_runs_now_and_its_result_can_be_read(api: httpx2.AsyncClient, work: Work) -> None:
    run = await _execute(api, args=[1], payload={"a": 2})
    assert (run["state"], run["cause"], run["attempt"], run["created"]) == ("queued", "send", 0, True)
    assert (run["args"], run["kwargs"], run["attempts"], run["job"]) == ([1], {"a": 2}, [], None)
    await work(None)
    running = await _get(api, run["run_id"])
    assert (running["state"], running["attempt"]) == ("running", 1)
    assert running["started_at"]
    assert running["worker_id"]
    assert running["lateness_ms"] >= 0


async def test_an_ended_run_shows_its_attempts(api: httpx2.AsyncClient, work: Work) -> None:
    run = await _execute(api)
    await work(Ending(outcome=Outcome.OK, result={"rows": 3}, ran=0.2))
    ended = await _get(api, run["run_id"])
    assert (ended["state"], ended["result"], ended["attempt"]) == ("succeeded", {"rows": 3}, 1)
    assert ended["finished_at"]
    assert ended["worker_id"]
    [attempt] = ended["attempts"]
    assert (attempt["outcome"], attempt["ends_as"], attempt["worker"]) == (
        "ok",
        "succeeded",
        f"worker-{attempt['worker_id']}",
    )
    assert ended["started_at"] == attempt["started_at"]


async def test_execution_later_and_by_key(api: httpx2.AsyncClient, store: Store) -> None:
    later = await _execute(api, delay="1h", key="once")
    assert (later["state"], later["fired_at"]) == ("queued", None)
    left = datetime.fromisoformat(later["scheduled_for"]) - await store.now()
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    again = await api.post("/api/v1/jobs/execute", json={"task": "demo", "key": "once"})
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert again.json()["run_id"] == later["run_id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == f"/api/v1/runs/{later['run_id']}"


async def test_cancel_ends_what_waits_and_asks_what_runs(api: httpx2.AsyncClient, work: Work) -> None:
    waiting, running = await _execute(api, delay="1h"), await _execute(api)
    await work(None)
    done = await api.post(f"/api/v1/runs/{waiting['run_id']}/cancel", json={"reason": "not needed"})
    assert (done.status_code, done.json()["state"]) == (200, "cancelled")
    assert done.json()["error"] == {"reason": "not needed"}
    again = await api.post(f"/api/v1/runs/{waiting['run_id']}/cancel")
    assert (again.status_code, again.json()) == (200, done.json())
    asked = await api.post(f"/api/v1/runs/{running['run_id']}/cancel")
    assert (asked.status_code, asked.json()["state"]) == (202, "running")
    assert asked.json()["cancel_requested"] is True


async def test_a_run_that_has_ended_can_be_neither_cancelled_nor_retried(api: httpx2.AsyncClient, work: Work) -> None:
    run = await _execute(api)
    await work(Ending(outcome=Outcome.OK))
    for verb in ("cancel", "retry"):
        refused = await api.post(f"/api/v1/runs/{run['run_id']}/{verb}")
        assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")


async def test_retry_makes_a_waiting_or_dead_run_ready_now(api: httpx2.AsyncClient, work: Work) -> None:
    waits = await _execute(api, retry={"attempts": 2, "delays": ["1h"]})
    dies = await _execute(api, retry=1)
    assert await work(FAILED) == 2
    assert (await _get(api, waits["run_id"]))["state"] == "retrying"
    dead = await _get(api, dies["run_id"])
    assert (dead["state"], dead["error"]["message"], dead["attempt"]) == ("dead", "no 5", 1)
    for run in (waits, dies):
        retried = await api.post(f"/api/v1/runs/{run['run_id']}/retry")
        assert (retried.status_code, retried.json()["state"]) == (202, "retrying")
        assert len(retried.json()["attempts"]) == 1


async def test_dead_letters_are_listed_redriven_and_discarded(api: httpx2.AsyncClient, work: Work) -> None:
    runs = [await _execute(api, retry=1) for _ in range(4)]
    await work(FAILED)
    letters = (await api.get("/api/v1/dead-letters")).json()["items"]
    assert {letter["run_id"] for letter in letters} == {run["run_id"] for run in runs}
    mark = letters[0]["fingerprint"]
    assert len((await api.get("/api/v1/dead-letters", params={"fingerprint": mark})).json()["items"]) == 4
    assert (await api.get("/api/v1/dead-letters", params={"fingerprint": "x"})).json()["items"] == []

    async def act(verb: str, body: dict[str, Any]) -> Any:
        answer = await api.post(f"/api/v1/dead-letters/{verb}", json=body)
        assert answer.status_code == 200
        return answer.json()

    assert await act("redrive", {"runs": [runs[0]["run_id"]]}) == {"count": 1, "more": False}
    assert await act("redrive", {"runs": [runs[0]["run_id"]]}) == {"count": 0, "more": False}
    assert await act("discard", {"runs": [runs[1]["run_id"]]}) == {"count": 1, "more": False}
    assert await act("discard", {"fingerprint": "x"}) == {"count": 0, "more": False}
    assert await act("redrive", {"fingerprint": mark}) == {"count": 2, "more": False}
    assert (await api.get("/api/v1/dead-letters")).json()["items"] == []
    assert await work(FAILED) == 3
    assert await act("discard", {"all": True}) == {"count": 3, "more": False}


async def test_runs_are_listed_newest_first_page_by_page(api: httpx2.AsyncClient) -> None:
    made = [(await _execute(api))["run_id"] for _ in range(5)]
    first = (await api.get("/api/v1/runs", params={"limit": 3})).json()
    second = (await api.get("/api/v1/runs", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [run["run_id"] for run in first["items"] + second["items"]] == made[::-1]
    assert second["next_cursor"] is None
    foreign = await api.get("/api/v1/dead-letters", params={"cursor": first["next_cursor"]})
    assert (foreign.status_code, foreign.json()["code"]) == (400, "cursor_invalid")


async def test_runs_can_be_listed_by_job(api: httpx2.AsyncClient) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo"})
    run = (await api.post("/api/v1/jobs/a/run")).json()
    await _execute(api)
    listed = (await api.get("/api/v1/runs", params={"job": "a"})).json()
    assert [item["run_id"] for item in listed["items"]] == [run["run_id"]]
    assert (await api.get("/api/v1/runs", params={"job": "b"})).status_code == 404


async def test_logs_are_read_in_order_and_page_by_page(api: httpx2.AsyncClient, store: Store, work: Work) -> None:
    run = await _execute(api)
    await work(None)
    key, now = decode_run_id(run["run_id"]), await store.now()
    await queue.add_log_lines(store, [(key, 1, now, "info", f"line {n}", {"n": n}) for n in range(5)])
    path = f"/api/v1/runs/{run['run_id']}/logs"
    first = (await api.get(path, params={"limit": 4})).json()
    rest = (await api.get(path, params={"limit": 4, "cursor": first["next_cursor"]})).json()
    assert [line["message"] for line in first["items"] + rest["items"]] == [f"line {n}" for n in range(5)]
    assert first["items"][0]["fields"] == {"n": 0}
    assert rest["next_cursor"] is None


async def test_a_paused_jobs_run_says_why_it_waits(api: httpx2.AsyncClient) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo"})
    run = (await api.post("/api/v1/jobs/a/run")).json()
    await api.post("/api/v1/jobs/a/pause")
    held = await _get(api, run["run_id"])
    assert (held["state"], held["blocked"]) == ("blocked", ["job_paused"])


async def test_a_run_of_the_last_day_of_all_is_not_found(api: httpx2.AsyncClient) -> None:
    key = RunKey(uuid4(), datetime(9999, 12, 31, 23, 59, tzinfo=UTC), 0)
    answer = await api.get(f"/api/v1/runs/{key.id}")
    assert answer.status_code == 404, answer.text
