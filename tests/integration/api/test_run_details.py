"""One run: waiting for its end, its result and tries, what it logged, and the same once more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from bellringer.api.http import sse
from bellringer.core.runs import Ending, Outcome, decode_run_id
from bellringer.engine.settle import decide, settle
from bellringer.store import queue
from bellringer.store.connection_pool import Store

Work = Callable[[Ending | None], Awaitable[int]]
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no 5"})


async def _execute(api: httpx2.AsyncClient, **fields: Any) -> str:
    response = await api.post("/api/v1/jobs/execute", json={"task": "demo", **fields})
    assert response.status_code == 202, response.text
    return f"/api/v1/runs/{response.json()['run_id']}"


# Waiting


async def test_waiting_answers_when_the_run_has_ended(api: httpx2.AsyncClient, work: Work) -> None:
    path = await _execute(api)
    waiting = [asyncio.create_task(api.get(f"{path}/wait", params={"timeout": 60}, timeout=70)) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in waiting)
    await work(Ending(outcome=Outcome.OK, result=7))
    for answer in await asyncio.gather(*waiting):
        assert (answer.status_code, answer.json()["state"], answer.json()["result"]) == (200, "succeeded", 7)


async def test_waiting_ends_without_an_end(api: httpx2.AsyncClient) -> None:
    path = await _execute(api, delay="1h")
    answer = await api.get(f"{path}/wait", params={"timeout": 1})
    assert (answer.status_code, answer.json()["state"], answer.headers["retry-after"]) == (202, "queued", "1")
    assert (await api.get(f"{path}/wait", params={"timeout": 0})).status_code == 202


async def test_a_run_that_has_ended_needs_no_wait(api: httpx2.AsyncClient) -> None:
    path = await _execute(api)
    await api.post(f"{path}/cancel")
    answer = await api.get(f"{path}/wait")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")


async def test_waiting_holds_no_connection(api: httpx2.AsyncClient, work: Work) -> None:
    """Many more wait than there are connections, and all others are served."""
    path = await _execute(api)
    waiting = [asyncio.create_task(api.get(f"{path}/wait", params={"timeout": 60}, timeout=70)) for _ in range(40)]
    await asyncio.sleep(0.5)
    assert (await api.get(path)).json()["state"] == "queued"
    await work(Ending(outcome=Outcome.OK))
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


def test_only_so_many_may_wait() -> None:
    places = sse.OpenResponseLimit(1)
    with places.taken(1), pytest.raises(Exception, match="1 streams are open already"), places.taken(1):
        raise AssertionError("there was no place")
    with places.taken(2), places.taken(1):
        pass


@pytest.mark.parametrize("timeout", ["61", "-1", "x", "1.5", "99999"])
async def test_a_wait_has_its_bounds(api: httpx2.AsyncClient, timeout: str) -> None:
    refused = await api.get(f"{await _execute(api)}/wait", params={"timeout": timeout})
    assert (refused.status_code, refused.json()["code"]) == (422, "limit_range")


@pytest.mark.parametrize("part", ["wait", "result", "attempts", "attempts/1", "logs"])
async def test_an_unknown_run_has_no_parts(api: httpx2.AsyncClient, part: str) -> None:
    run_id = decode_run_id((await _execute(api)).rsplit("/", 1)[1])
    other = type(run_id)(run_id.job_id, run_id.scheduled_for, 7).id
    for unknown in (other, "run_x"):
        missing = await api.get(f"/api/v1/runs/{unknown}/{part}")
        assert (missing.status_code, missing.json()["detail"]) == (404, "there is no such run")


# Results and tries


async def test_a_result_is_there_when_the_run_has_ended(api: httpx2.AsyncClient, work: Work) -> None:
    path = await _execute(api)
    early = await api.get(f"{path}/result")
    assert (early.status_code, early.json()["code"]) == (409, "run_unfinished")
    await work(Ending(outcome=Outcome.OK, result=[1, 2]))
    result = (await api.get(f"{path}/result")).json()
    assert (result["state"], result["result"], result["error"]) == ("succeeded", [1, 2], None)


async def test_the_result_of_a_dead_run_is_its_error(api: httpx2.AsyncClient, work: Work) -> None:
    path = await _execute(api, retry=1)
    await work(FAILED)
    result = (await api.get(f"{path}/result")).json()
    assert (result["state"], result["result"], result["error"]["message"]) == ("dead", None, "no 5")


async def test_tries_are_read_together_and_one_by_one(api: httpx2.AsyncClient, work: Work) -> None:
    path = await _execute(api, retry={"attempts": 2, "delays": [0]})
    assert (await api.get(f"{path}/attempts")).json()["items"] == []
    await work(FAILED)
    await work(Ending(outcome=Outcome.OK, result=1))
    tries = (await api.get(f"{path}/attempts")).json()["items"]
    assert [(t["attempt"], t["outcome"]) for t in tries] == [(1, "failed"), (2, "ok")]
    assert (await api.get(f"{path}/attempts/2")).json() == tries[1]
    missing = await api.get(f"{path}/attempts/3")
    assert (missing.status_code, missing.json()["detail"]) == (404, "there is no such attempt")


# Logs


@pytest.fixture
async def logged(api: httpx2.AsyncClient, store: Store, work: Work) -> str:
    """A run of two tries and eight lines."""
    path = await _execute(api)
    await work(None)
    key, now = decode_run_id(path.rsplit("/", 1)[1]), await store.now()
    levels = ("debug", "info", "warning", "error")
    lines = [(key, t, now, level, f"{level} of {t}\n", {"t": t}) for t in (1, 2) for level in levels]
    await queue.add_log_lines(store, lines)
    return f"{path}/logs"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"level": "error"}, ["error of 1", "error of 2"]),
        ({"level": "warning", "attempt": 2}, ["warning of 2", "error of 2"]),
        ({"q": "WARN"}, ["warning of 1", "warning of 2"]),
        ({"q": "%"}, []),
        ({"tail": 2}, ["warning of 2", "error of 2"]),
        ({"tail": 3, "level": "error"}, ["error of 1", "error of 2"]),
        ({"tail": 1, "attempt": 1}, ["error of 1"]),
    ],
)
async def test_lines_are_found_by_level_try_and_words(
    api: httpx2.AsyncClient, logged: str, query: dict[str, Any], expected: list[str]
) -> None:
    lines = (await api.get(logged, params=query)).json()["items"]
    assert [line["message"].strip() for line in lines] == expected


async def test_filtered_lines_come_in_pages(api: httpx2.AsyncClient, logged: str) -> None:
    first = (await api.get(logged, params={"level": "error", "limit": 1})).json()
    rest = (await api.get(logged, params={"level": "error", "limit": 1, "cursor": first["next_cursor"]})).json()
    assert [line["attempt"] for line in first["items"] + rest["items"]] == [1, 2]
    assert rest["next_cursor"] is None


async def test_lines_are_given_as_text_and_as_json_lines(api: httpx2.AsyncClient, logged: str) -> None:
    text = await api.get(logged, headers={"Accept": "text/plain"})
    assert text.headers["content-type"].startswith("text/plain")
    assert len(text.text.splitlines()) == 8
    assert "#1 debug debug of 1  t=1" in text.text
    lines = await api.get(logged, headers={"Accept": "application/x-ndjson"}, params={"attempt": 2})
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line)["attempt"] for line in lines.text.splitlines()] == [2] * 4


async def test_followed_lines_end_with_the_run_and_go_on_after_one(
    api: httpx2.AsyncClient, logged: str, store: Store
) -> None:
    all_lines = (await api.get(logged)).json()["items"]
    task = asyncio.create_task(api.get(logged, params={"follow": "true"}, timeout=60))
    await asyncio.sleep(0.2)
    assert not task.done()
    await _end(store)
    events = _events((await task).text)
    assert [event["event"] for event in events] == ["line"] * 8 + ["end"]
    assert [int(event["id"]) for event in events[:-1]] == [line["line"] for line in all_lines]
    later = await api.get(logged, params={"follow": "true"}, headers={"Last-Event-ID": events[5]["id"]})
    assert [event["event"] for event in _events(later.text)] == ["line", "line", "end"]


SOURCES = ("ctx", "stdout", "stderr", "warnings", "logging:shop", "logging:shop.orders", "logging:shopping")


@pytest.fixture
async def captured(api: httpx2.AsyncClient, store: Store, work: Work) -> str:
    """A run with one line of each source, a second apart."""
    path = await _execute(api)
    await work(None)
    key, now = decode_run_id(path.rsplit("/", 1)[1]), await store.now()
    lines = [
        (key, 1, now + timedelta(seconds=n), "info", f"\x1b[31m{n}", None, None if source == "ctx" else source)
        for n, source in enumerate(SOURCES)
    ]
    await queue.add_log_lines(store, lines)
    return f"{path}/logs"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("ctx", ["ctx"]),
        ("stdout", ["stdout"]),
        ("stdout,stderr", ["stdout", "stderr"]),
        ("logging", list(SOURCES[4:])),
        ("logging:shop", ["logging:shop", "logging:shop.orders"]),
        ("logging:unknown", []),
        ("warnings, ctx", ["ctx", "warnings"]),
    ],
)
async def test_lines_are_found_by_source(
    api: httpx2.AsyncClient, captured: str, source: str, expected: list[str]
) -> None:
    for options in ({}, {"tail": 100}):
        lines = (await api.get(captured, params={"source": source, **options})).json()["items"]
        assert [line["source"] for line in lines] == expected


@pytest.mark.parametrize("source", ["", "file", "stdout:a", "logging,x", "x" * 2000])
async def test_an_unknown_source_is_refused(api: httpx2.AsyncClient, captured: str, source: str) -> None:
    assert (await api.get(captured, params={"source": source})).status_code == 422


async def test_lines_are_found_by_time_and_after_a_line(api: httpx2.AsyncClient, captured: str) -> None:
    lines = (await api.get(captured)).json()["items"]
    assert [line["source"] for line in lines] == list(SOURCES)
    since = (await api.get(captured, params={"since": lines[5]["at"]})).json()["items"]
    assert since == lines[5:]
    after = (await api.get(captured, params={"after": lines[2]["line"], "limit": 2})).json()
    assert after["items"] == lines[3:5]
    rest = {"after": lines[2]["line"], "limit": 2, "cursor": after["next_cursor"]}
    assert (await api.get(captured, params=rest)).json()["items"] == lines[5:7]
    assert (await api.get(captured, params={"since": "soon"})).status_code == 422


async def test_text_names_the_source_and_escapes_control_characters(api: httpx2.AsyncClient, captured: str) -> None:
    text = (await api.get(captured, headers={"Accept": "text/plain"})).text.splitlines()
    assert text[0].endswith(" #1 info \\x1b[31m0")
    assert text[4].endswith(" #1 info [logging:shop] \\x1b[31m4")


async def test_followed_lines_are_filtered_by_source(api: httpx2.AsyncClient, captured: str, store: Store) -> None:
    params = {"follow": "true", "source": "stdout,warnings"}
    task = asyncio.create_task(api.get(captured, params=params, timeout=60))
    await asyncio.sleep(0.2)
    await _end(store)
    events = _events((await task).text)
    assert [json.loads(event["data"])["source"] for event in events[:-1]] == ["stdout", "warnings"]


async def _end(store: Store) -> None:
    """What runs ends."""
    worker_id = await store.pool.fetchval("select worker_id from queue")
    [claimed] = await queue.held_by_worker(store, worker_id, 10)
    assert (await settle(store, worker_id, [decide(claimed, Ending(outcome=Outcome.OK))])).written == 1


def _events(text: str) -> list[dict[str, str]]:
    found = []
    for part in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if fields:
            found.append(fields)
    return found


@pytest.mark.parametrize("query", [{"level": "loud"}, {"attempt": "x"}, {"tail": "0"}, {"follow": "yes"}, {"q": ""}])
async def test_lines_that_cannot_be_asked_for_are_refused(
    api: httpx2.AsyncClient, logged: str, query: dict[str, str]
) -> None:
    assert (await api.get(logged, params=query)).status_code == 422


# Replays


async def test_a_send_is_replayed_with_another_payload(api: httpx2.AsyncClient, work: Work) -> None:
    path = await _execute(api, args=[1], kwargs={"a": 1, "b": 2}, pool="short", retry=1)
    await work(FAILED)
    old = (await api.get(path)).json()
    again = await api.post(f"{path}/replay", json={"args": [9], "payload": {"b": 3}, "reason": "it was 3"})
    assert again.status_code == 202, again.text
    run = again.json()
    assert (run["cause"], run["state"], run["args"], run["kwargs"]) == ("replay", "queued", [9], {"a": 1, "b": 3})
    assert (run["scheduled_for"], run["slot"], run["reason"]) == (old["scheduled_for"], 1, "it was 3")
    assert again.headers["location"] == f"/api/v1/runs/{run['run_id']}"
    assert (run["replay_of"], run["replays"]) == (old["run_id"], [])
    await work(Ending(outcome=Outcome.OK))
    assert (await api.get(f"/api/v1/runs/{run['run_id']}")).json()["state"] == "succeeded"
    after = (await api.get(path)).json()
    assert (after["state"], after["replay_of"], after["replays"]) == ("dead", None, [run["run_id"]])


async def test_a_jobs_run_is_replayed_as_often_as_wanted(api: httpx2.AsyncClient, work: Work) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", "kwargs": {"x": 1}, "concurrency_key": "k"})
    path = f"/api/v1/runs/{(await api.post('/api/v1/jobs/a/run')).json()['run_id']}"
    await work(Ending(outcome=Outcome.OK))
    first = (await api.post(f"{path}/replay")).json()
    assert (first["job"], first["slot"], first["kwargs"]) == ("a", 2, {"x": 1})
    await work(Ending(outcome=Outcome.OK))
    second = (await api.post(f"/api/v1/runs/{first['run_id']}/replay")).json()
    assert (second["slot"], second["replay_of"]) == (3, first["run_id"])
    assert (await api.get(path)).json()["replays"] == [first["run_id"]]
    await api.delete("/api/v1/jobs/a")
    gone = await api.post(f"{path}/replay")
    assert (gone.status_code, gone.json()["code"]) == (409, "state_conflict")


async def test_what_has_not_ended_is_not_replayed(api: httpx2.AsyncClient, work: Work) -> None:
    for path in (await _execute(api), await _execute(api, delay="1h")):
        refused = await api.post(f"{path}/replay")
        assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert (await api.post("/api/v1/runs/run_x/replay")).status_code == 404
