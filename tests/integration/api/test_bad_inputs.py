"""Bad inputs get their exact answer, and leave nothing behind."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from bellringer.store.connection_pool import Store
from bellringer.wire.dead_letters import LettersRequest, RestoreRequest
from bellringer.wire.jobs import JobRequest, PauseRequest, TriggerRequest
from bellringer.wire.runs import ExecuteRequest
from bellringer.wire.schedules import PreviewRequest

JOB = {"name": "a", "task": "demo"}
JSON = {"Content-Type": "application/json"}


def cron(expression: str, **options: Any) -> dict[str, Any]:
    return {**JOB, "schedule": {"cron": expression, **options}}


JOBS: list[tuple[str, Any, int, str, str]] = [
    ("a day that never comes", cron("0 0 30 2 *"), 422, "cron_never_fires", "/schedule/cron"),
    ("april the 31st", cron("0 0 31 4 *"), 422, "cron_never_fires", "/schedule/cron"),
    ("minute 60", cron("60 * * * *"), 422, "cron_invalid", "/schedule/cron"),
    ("four fields", cron("* * * *"), 422, "cron_invalid", "/schedule/cron"),
    ("a step of 0", cron("*/0 * * * *"), 422, "cron_invalid", "/schedule/cron"),
    ("empty cron", cron(""), 422, "cron_invalid", "/schedule/cron"),
    ("blank cron", cron("   "), 422, "cron_invalid", "/schedule/cron"),
    ("a hashed step beyond the range", cron("H/99 * * * *"), 422, "cron_range", "/schedule/cron"),
    # H is read, and six fields are with "seconds": true; both are richer here than elsewhere.
    ("six fields", cron("* * * * * *"), 422, "cron_unsupported", "/schedule/cron"),
    ("seven fields", cron("* * * * * * *"), 422, "cron_dialect", "/schedule/cron"),
    ("@every", cron("@every 1s"), 422, "cron_unsupported", "/schedule/cron"),
    ("@reboot", cron("@reboot"), 422, "cron_unsupported", "/schedule/cron"),
    ("random", cron("R R * * *"), 422, "cron_unsupported", "/schedule/cron"),
    ("CRON_TZ that is no zone", cron("CRON_TZ=Mars/Base 0 0 * * *"), 422, "timezone_unknown", "/schedule/cron"),
    ("arabic digits", cron("٠ ٠ * * *"), 422, "cron_charset", "/schedule/cron"),
    ("a newline", cron("0 0\n* * *"), 422, "cron_charset", "/schedule/cron"),
    ("a vertical tab", cron("0 0\v* * *"), 422, "cron_charset", "/schedule/cron"),
    ("a huge cron", cron("1," * 20_000 + "1 * * * *"), 422, "cron_too_long", "/schedule/cron"),
    ("a cron of 1 MB", cron("1" * 1_000_000), 422, "cron_too_long", "/schedule/cron"),
    ("every 0", {**JOB, "schedule": {"every": 0}}, 422, "duration_out_of_range", "/schedule/every"),
    ("every -5", {**JOB, "schedule": {"every": -5}}, 422, "duration_out_of_range", "/schedule/every"),
    ("every 1e-9", {**JOB, "schedule": {"every": 1e-9}}, 422, "duration_out_of_range", "/schedule/every"),
    ("every PT-5S", {**JOB, "schedule": {"every": "PT-5S"}}, 422, "duration_invalid", "/schedule/every"),
    ("every two years", {**JOB, "schedule": {"every": "732d"}}, 422, "duration_out_of_range", "/schedule/every"),
    ("every 1e308", {**JOB, "schedule": {"every": 1e308}}, 422, "duration_out_of_range", "/schedule/every"),
    ('every "5"', {**JOB, "schedule": {"every": "5"}}, 422, "duration_invalid", "/schedule/every"),
    ("year 9999", {**JOB, "schedule": {"at": "9998-01-01T00:00:00Z"}}, 422, "run_at_too_far", "/schedule/at"),
    (
        "year 10000",
        {**JOB, "schedule": {"at": "10000-01-01T00:00:00Z"}},
        422,
        "datetime_invalid",
        "/schedule/at",
    ),
    ("infinity", {**JOB, "schedule": {"at": "infinity"}}, 422, "datetime_invalid", "/schedule/at"),
    ("year 1", {**JOB, "schedule": {"at": "0001-01-01T00:00:00Z"}}, 422, "datetime_invalid", "/schedule/at"),
    (
        "february 30",
        {**JOB, "schedule": {"at": "2026-02-30T00:00:00Z"}},
        422,
        "datetime_invalid",
        "/schedule/at",
    ),
    ("no offset", {**JOB, "schedule": {"at": "2099-01-01T00:00:00"}}, 422, "offset_required", "/schedule/at"),
    ("the past", {**JOB, "schedule": {"at": "2001-01-01T00:00:00Z"}}, 422, "run_at_in_past", "/schedule/at"),
    ("mars", cron("0 0 * * *", tz="Mars/Phobos"), 422, "timezone_unknown", "/schedule/tz"),
    ("a path as zone", cron("0 0 * * *", tz="../../etc/passwd"), 422, "timezone_unknown", "/schedule/tz"),
    ("localtime", cron("0 0 * * *", tz="localtime"), 422, "timezone_unknown", "/schedule/tz"),
    ("EST5", cron("0 0 * * *", tz="EST5"), 422, "timezone_unknown", "/schedule/tz"),
    ("an absolute path", cron("0 0 * * *", tz="/etc/passwd"), 422, "timezone_unknown", "/schedule/tz"),
    ("a continent", cron("0 0 * * *", tz="Europe"), 422, "timezone_unknown", "/schedule/tz"),
    ("posix zone", cron("0 0 * * *", tz="posix/Europe/Paris"), 422, "timezone_unknown", "/schedule/tz"),
    ("a huge zone", cron("0 0 * * *", tz="x" * 10_000), 422, "timezone_unknown", "/schedule/tz"),
    ("NUL in a zone", cron("0 0 * * *", tz="UTC\0"), 422, "nul_character", "/schedule/tz"),
    ("NUL in a name", {**JOB, "name": "a\0"}, 422, "nul_character", "/name"),
    ("NUL in a payload", {**JOB, "kwargs": {"a": [1, "b\0"]}}, 422, "nul_character", "/kwargs/a/1"),
    ("NUL in a key", {**JOB, "kwargs": {"a\0": 1}}, 422, "nul_character", "/kwargs/a\\x00"),
    ("no kind of schedule", {**JOB, "schedule": {}}, 422, "schedule_invalid", "/schedule"),
    ("two kinds", {**JOB, "schedule": {"every": "1m", "at": "x"}}, 422, "schedule_invalid", "/schedule/at"),
    ("schedule is text", {**JOB, "schedule": "0 0 * * *"}, 422, "type", "/schedule"),
    (
        "the second schedule",
        {**JOB, "schedules": [{"every": "1m"}, {"cron": "x"}]},
        422,
        "cron_invalid",
        "/schedules/1/cron",
    ),
    (
        "schedule and schedules",
        {**JOB, "schedule": {"every": "1m"}, "schedules": []},
        422,
        "conflicting_fields",
        "/schedules",
    ),
    ("kwargs and payload", {**JOB, "kwargs": {}, "payload": {}}, 422, "conflicting_fields", "/payload"),
    ("tenant_id", {**JOB, "tenant_id": 2}, 422, "unknown_field", "/tenant_id"),
    ("owner", {**JOB, "owner": "x"}, 422, "unknown_field", "/owner"),
    ("revision", {**JOB, "revision": 7}, 422, "unknown_field", "/revision"),
    ("state", {**JOB, "state": "succeeded"}, 422, "unknown_field", "/state"),
    ("attempt", {**JOB, "attempt": 1}, 422, "unknown_field", "/attempt"),
    ("epoch", {**JOB, "epoch": 1}, 422, "unknown_field", "/epoch"),
    ("__proto__", {**JOB, "__proto__": {}}, 422, "unknown_field", "/__proto__"),
    ("misspelt", {**JOB, "prioritty": 1}, 422, "unknown_field", "/prioritty"),
    (
        "unknown schedule option",
        cron("0 0 * * *", timezone="UTC"),
        422,
        "unknown_field",
        "/schedule/timezone",
    ),
    ("unknown retry option", {**JOB, "retry": {"tries": 3}}, 422, "unknown_field", "/retry/tries"),
    ("no name", {"task": "demo"}, 422, "missing_field", "/name"),
    ("priority is text", {**JOB, "priority": "1"}, 422, "type", "/priority"),
    ("priority is true", {**JOB, "priority": True}, 422, "type", "/priority"),
    ("priority 10", {**JOB, "priority": 10}, 422, "limit", "/priority"),
    ("priority 1e30", {**JOB, "priority": 10**30}, 422, "limit", "/priority"),
    ("args is an object", {**JOB, "args": {}}, 422, "type", "/args"),
    ("tags hold a number", {**JOB, "tags": ["a", 1]}, 422, "type", "/tags/1"),
    ("51 tags", {**JOB, "tags": [str(n) for n in range(51)]}, 422, "limit", "/tags"),
    ("payload is a list", {**JOB, "payload": [1]}, 422, "type", "/payload"),
    ("payload too large", {**JOB, "kwargs": {"a": "x" * 300_000}}, 422, "payload_too_large", ""),
    ("empty name", {**JOB, "name": ""}, 422, "name_charset", "/name"),
    ("spaces", {**JOB, "name": "   "}, 422, "name_charset", "/name"),
    ("a huge name", {**JOB, "name": "x" * 10_000}, 422, "name_charset", "/name"),
    ("right to left", {**JOB, "name": "a\u202eb"}, 422, "name_charset", "/name"),
    ("zero width", {**JOB, "name": "a\u200bb"}, 422, "name_charset", "/name"),
    ("a huge task", {**JOB, "task": "x" * 10_000}, 422, "name_charset", "/task"),
    ("a huge pool", {**JOB, "pool": "x" * 10_000}, 422, "name_charset", "/pool"),
    ("unknown overlap", {**JOB, "overlap": "queue_one"}, 422, "unknown_word", "/overlap"),
    ("catch-up of everything", {**JOB, "misfire": "fire_all", "max_catchup": 10**9}, 422, "limit", "/max_catchup"),
    ("negative window", {**JOB, "catchup_window": "-1h"}, 422, "duration_invalid", "/max_catchup"),
    ("no runs at once", {**JOB, "max_concurrency": 0}, 422, "limit", "/max_concurrency"),
    ("limit without a key", {**JOB, "concurrency_limit": 2}, 422, "missing_field", "/concurrency_limit"),
    ("empty key", {**JOB, "concurrency_key": ""}, 422, "limit", "/concurrency_key"),
    ("a day of jitter", {**JOB, "jitter": "24h"}, 422, "limit", "/jitter"),
    ("late at once", {**JOB, "late_after": 0}, 422, "limit", "/late_after"),
    ("unknown misfire", {**JOB, "misfire": "explode"}, 422, "unknown_word", "/misfire"),
    ("unknown delivery", {**JOB, "delivery": "exactly_once"}, 422, "unknown_word", "/delivery"),
    ("endless attempts", {**JOB, "retry": 10**9}, 422, "limit", "/retry/attempts"),
    ("negative base", {**JOB, "retry": {"base": -1}}, 422, "duration_invalid", "/retry"),
    ("delays is a number", {**JOB, "retry": {"delays": 5}}, 422, "type", "/retry/delays"),
    ("timeout of years", {**JOB, "timeout": 86_400_000}, 422, "limit", "/timeout"),
    ("timeout 0", {**JOB, "timeout": 0}, 422, "limit", "/timeout"),
    ("timeout without a unit", {**JOB, "timeout": "90"}, 422, "duration_invalid", "/timeout"),
    ("naive start", {**JOB, "starts_at": "2030-01-01T00:00:00"}, 422, "offset_required", "/starts_at"),
    (
        "ends before it starts",
        {**JOB, "starts_at": "2030-01-02T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"},
        422,
        "limit",
        "/ends_at",
    ),
]

RAW: list[tuple[str, bytes, dict[str, str], int, str]] = [
    ("not JSON", b"{", JSON, 400, "json_invalid"),
    ("empty", b"", JSON, 400, "json_invalid"),
    ("an array", b"[]", JSON, 400, "body_not_object"),
    ("a string", b'"x"', JSON, 400, "body_not_object"),
    ("raw NUL", b'{"a": "\0"}', JSON, 400, "encoding"),
    ("bad UTF-8", b'{"name": "\xff"}', JSON, 400, "encoding"),
    ("lone surrogate", rb'{"name": "\ud800"}', JSON, 400, "encoding"),
    ("lone surrogate as key", rb'{"\udc00": 1}', JSON, 400, "encoding"),
    ("too deep", b'{"kwargs": ' + b'{"a":' * 40 + b"1" + b"}" * 40 + b"}", JSON, 400, "json_too_deep"),
    ("too deep lists", b"[" * 100_000 + b"]" * 100_000, JSON, 400, "json_too_deep"),
    ("too deep and open", b"[" * 100_000, JSON, 400, "json_too_deep"),
    ("brackets in text", json.dumps({"kwargs": "[" * 999}).encode(), JSON, 422, "missing_field"),
    ("an open string", b'{"name": "' + b'\\"' * 400_000, JSON, 400, "json_invalid"),
    ("NaN", b'{"priority": NaN}', JSON, 400, "number_invalid"),
    ("Infinity", b'{"priority": -Infinity}', JSON, 400, "number_invalid"),
    ("1e999", b'{"priority": 1e999}', JSON, 400, "number_invalid"),
    ("1e131071", b'{"kwargs": {"a": 1e131071}}', JSON, 400, "number_invalid"),
    ("5,000 digits", b'{"priority": ' + b"9" * 5000 + b"}", JSON, 400, "number_invalid"),
    ("duplicate keys", b'{"name": "a", "name": "b"}', JSON, 400, "duplicate_key"),
    ("nested duplicate keys", b'{"kwargs": {"a": 1, "a": 2}}', JSON, 400, "duplicate_key"),
    ("10 MB", b"x" * 10_000_000, JSON, 413, "body_too_large"),
    ("xml", b"<a/>", {"Content-Type": "text/xml"}, 415, "media_type"),
    ("no media type", b"{}", {}, 415, "media_type"),
    ("latin-1", b"{}", {"Content-Type": "application/json; charset=latin-1"}, 415, "media_type"),
    ("gzip", gzip.compress(b"{}"), {**JSON, "Content-Encoding": "gzip"}, 415, "encoding_unsupported"),
]

EXECUTIONS: list[tuple[str, Any, int, str, str]] = [
    ("no task", {}, 422, "missing_field", "/task"),
    ("empty task", {"task": ""}, 422, "name_charset", "/task"),
    ("the past", {"task": "demo", "at": "2001-01-01T00:00:00Z"}, 422, "run_at_in_past", "/at"),
    ("too far", {"task": "demo", "at": "2999-01-01T00:00:00Z"}, 422, "run_at_too_far", "/at"),
    ("no offset", {"task": "demo", "at": "2030-01-01T00:00:00"}, 422, "offset_required", "/at"),
    ("a negative delay", {"task": "demo", "delay": "-5s"}, 422, "duration_invalid", "/delay"),
    ("a long delay", {"task": "demo", "delay": "9999d"}, 422, "limit", "/delay"),
    (
        "at and delay",
        {"task": "demo", "at": "2030-01-01T00:00:00Z", "delay": 1},
        422,
        "conflicting_fields",
        "/delay",
    ),
    ("a long key", {"task": "demo", "key": "x" * 300}, 422, "limit", "/key"),
    ("an empty key", {"task": "demo", "key": ""}, 422, "limit", "/key"),
    ("a schedule", {"task": "demo", "schedule": {"every": "1m"}}, 422, "unknown_field", "/schedule"),
    ("a deep NUL", {"task": "demo", "payload": {"a": {"b": "\0"}}}, 422, "nul_character", "/payload/a/b"),
]

OTHERS: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/api/v1/jobs?limit=-1", None, 422, "limit_range"),
    ("GET", "/api/v1/jobs?limit=0", None, 422, "limit_range"),
    ("GET", "/api/v1/jobs?limit=201", None, 422, "limit_range"),
    ("GET", "/api/v1/jobs?limit=1e9", None, 422, "limit_range"),
    ("GET", "/api/v1/runs?limit=abc", None, 422, "limit_range"),
    ("GET", "/api/v1/runs?limit=٣", None, 422, "limit_range"),
    ("GET", "/api/v1/runs?lmit=3", None, 422, "unknown_parameter"),
    ("GET", "/api/v1/jobs?cursor=x", None, 400, "cursor_invalid"),
    ("GET", "/api/v1/jobs?cursor=é", None, 400, "cursor_invalid"),
    ("GET", "/api/v1/jobs?cursor=WyJydW5zIiwxXQ", None, 400, "cursor_invalid"),
    ("GET", "/api/v1/dead-letters?fingerprint=%00", None, 422, "nul_character"),
    ("POST", "/api/v1/dead-letters/redrive", {}, 422, "conflicting_fields"),
    ("POST", "/api/v1/dead-letters/discard", {"all": True, "runs": []}, 422, "conflicting_fields"),
    ("POST", "/api/v1/dead-letters/discard", {"runs": ["x"]}, 422, "run_id_invalid"),
    ("POST", "/api/v1/dead-letters/restore", {}, 422, "conflicting_fields"),
    ("POST", "/api/v1/dead-letters/restore", {"all": True, "fingerprint": "x"}, 422, "conflicting_fields"),
    ("POST", "/api/v1/dead-letters/restore", {"runs": ["x"]}, 422, "run_id_invalid"),
    ("POST", "/api/v1/dead-letters/restore", {"fingerprint": ""}, 422, "limit"),
    ("POST", "/api/v1/dead-letters/restore", {"operation_id": "x"}, 422, "operation_id_invalid"),
    ("GET", "/api/v1/dead-letters/discarded?operation=x", None, 404, "not_found"),
    ("GET", "/api/v1/cluster/moves?hours=49", None, 422, "limit_range"),
    ("GET", "/api/v1/workflows?state=odd", None, 422, "choice"),
    ("GET", "/api/v1/workflows?count=all", None, 422, "choice"),
    ("POST", "/api/v1/schedules/preview", {"schedule": {"cron": "x"}}, 422, "cron_invalid"),
    ("POST", "/api/v1/schedules/preview", {"schedule": {"every": "1m"}, "n": 101}, 422, "limit"),
    (
        "POST",
        "/api/v1/schedules/preview",
        {"schedule": {"every": "1m"}, "from": "x"},
        422,
        "datetime_invalid",
    ),
    ("PUT", "/api/v1/jobs", {}, 405, "method_not_allowed"),
    ("DELETE", "/api/v1/jobs", None, 405, "method_not_allowed"),
    ("BREW", "/api/v1/jobs", None, 405, "method_not_allowed"),
    ("GET", "/api/v1/nothing", None, 404, "not_found"),
    ("GET", "/api/v1/jobs/", None, 404, "not_found"),
    ("GET", "/api/v2/jobs", None, 404, "not_found"),
    ("GET", "/nothing", None, 404, "not_found"),
]


async def _counts(store: Store) -> tuple[int, ...]:
    tables = ("jobs", "job_revisions", "runs", "queue", "timers", "send_keys")
    return tuple([await store.pool.fetchval(f"select count(*) from {table}") for table in tables])


def _fault(response: httpx2.Response, status: int, code: str, pointer: str | None = None) -> str:
    """What is wrong with an answer, or nothing."""
    problem = response.json()
    told = problem["errors"][0]["pointer"] if problem["errors"] else ""
    is_problem = response.headers["content-type"] == "application/problem+json"
    expected = (status, status, code, pointer if pointer is not None else told, True)
    found = (response.status_code, problem["status"], problem["code"], told, is_problem)
    if found != expected or len(response.content) > 6000 or not problem["request_id"]:
        return f"expected {expected}, got {response.content[:600]!r}"
    return ""


async def test_bad_jobs_are_refused_with_code_and_pointer(api: httpx2.AsyncClient, store: Store) -> None:
    faults = {}
    for title, body, status, code, pointer in JOBS:
        response = await api.post("/api/v1/jobs", json=body)
        faults[title] = _fault(response, status, code, pointer)
    assert {title: fault for title, fault in faults.items() if fault} == {}
    assert await _counts(store) == (0, 0, 0, 0, 0, 0)


async def test_bad_bodies_are_refused_before_they_are_read(api: httpx2.AsyncClient, store: Store) -> None:
    faults = {}
    for title, body, headers, status, code in RAW:
        response = await api.post("/api/v1/jobs", content=body, headers=headers)
        faults[title] = _fault(response, status, code)
    assert {title: fault for title, fault in faults.items() if fault} == {}
    assert await _counts(store) == (0, 0, 0, 0, 0, 0)


async def test_bad_executions_are_refused(api: httpx2.AsyncClient, store: Store) -> None:
    faults = {}
    for title, body, status, code, pointer in EXECUTIONS:
        response = await api.post("/api/v1/jobs/execute", json=body)
        faults[title] = _fault(response, status, code, pointer)
    assert {title: fault for title, fault in faults.items() if fault} == {}
    assert await _counts(store) == (0, 0, 0, 0, 0, 0)


async def test_bad_questions_are_refused(api: httpx2.AsyncClient, store: Store) -> None:
    faults = {}
    for method, path, body, status, code in OTHERS:
        response = await api.request(method, path, json=body)
        faults[f"{method} {path} {body}"] = _fault(response, status, code)
    assert {title: fault for title, fault in faults.items() if fault} == {}
    assert await _counts(store) == (0, 0, 0, 0, 0, 0)


IDS = [
    "00000000-0000-7000-8000-000000000000",
    "nothing",
    "..%2F..%2Fadmin",
    "%00",
    "%ff",
    "1%20OR%201=1",
    "x" * 10_000,
    "%E2%80%AE",
    "run_" + "z" * 33,
    "run_" + "0" * 33,
    "run_" + "0" * 32 + "!",
    "run_0" + "z" * 43,
    "run_00000000000000000000000000000000" + "0LygHa16AHYF",
]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/jobs/{}"),
        ("PATCH", "/api/v1/jobs/{}"),
        ("DELETE", "/api/v1/jobs/{}"),
        ("POST", "/api/v1/jobs/{}/pause"),
        ("POST", "/api/v1/jobs/{}/resume"),
        ("POST", "/api/v1/jobs/{}/run"),
        ("GET", "/api/v1/jobs/{}/runs"),
        ("GET", "/api/v1/runs/{}"),
        ("GET", "/api/v1/runs/{}/logs"),
        ("POST", "/api/v1/runs/{}/cancel"),
        ("POST", "/api/v1/runs/{}/retry"),
    ],
)
async def test_missing_foreign_and_garbage_ids_get_the_same_answer(
    api: httpx2.AsyncClient, store: Store, method: str, path: str
) -> None:
    job = (await api.post("/api/v1/jobs", json={**JOB, "schedule": {"every": "1h"}})).json()
    run = (await api.post(f"/api/v1/jobs/{job['job_id']}/run")).json()
    await store.pool.execute("insert into tenants (name) values ('other')")
    for table in ("jobs", "members", "runs", "queue"):
        await store.pool.execute(f"update {table} set tenant_id = 2")
    before = await _counts(store)
    bodies = set()
    for name in [*IDS, job["job_id"], job["name"], run["run_id"]]:
        body: dict[str, Any] | None = {} if method in {"POST", "PATCH"} else None
        response = await api.request(method, path.format(name), json=body, headers={"X-Request-Id": "the-same"})
        bodies.add((response.status_code, response.content))
    assert len(bodies) == 1, bodies
    assert bodies.pop()[0] == 404
    assert await _counts(store) == before


async def test_all_faults_of_a_job_are_reported_at_once(api: httpx2.AsyncClient) -> None:
    body = {"nam": "x", "task": 5, "priority": "high"}
    problem = (await api.post("/api/v1/jobs", json=body)).json()
    told = {(e["pointer"], e["code"]) for e in problem["errors"]}
    assert told == {
        ("/nam", "unknown_field"),
        ("/name", "missing_field"),
        ("/task", "type"),
        ("/priority", "type"),
    }
    assert problem["errors"][0]["hint"] == "did you mean name?"


async def test_405_says_what_is_allowed(api: httpx2.AsyncClient) -> None:
    response = await api.put("/api/v1/jobs/x/run", json={})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    response = await api.delete("/api/v1/version")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


async def test_a_body_that_never_ends_is_cut_off(api: httpx2.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65_536
            yield b" " * 65_536

    response = await api.post("/api/v1/jobs", content=endless(), headers=JSON)
    assert _fault(response, 413, "body_too_large") == ""
    assert response.headers["connection"] == "close"
    assert sent < 3_000_000


async def test_a_request_id_is_kept_if_it_is_harmless(api: httpx2.AsyncClient) -> None:
    kept = await api.get("/healthz", headers={"X-Request-Id": "abc-1"})
    made = await api.get("/healthz", headers={"X-Request-Id": "<script>"})
    assert kept.headers["x-request-id"] == "abc-1"
    assert len(made.headers["x-request-id"]) == 32


NASTY: list[Any] = [
    None, True, -1, 0, 1.5, 10**18, 10**30, -(10**400), 1e308, "", " ", "x", "-", "0", "1e9", "9" * 70,
    "\u202e", "x" * 5000, "\U0001f600", [], [[]], [None], ["x"], [{}], [[[1]]], {}, {"x": None},
    {"": 1}, {"a": {"b": []}}, {"cron": None},
    {"cron": 5}, {"every": None}, {"every": {}}, {"delay": "P1Y"}, {"at": None}, {"at": 0},
    {"cron": "* * * * *", "tz": None}, {"cron": "* * * * *", "seconds": 1}, {"cron": "* * * * *", "dst": []},
    {"every": "1m", "anchor": "x"}, {"every": "1m", "offset": []}, {"attempts": None}, {"attempts": 1.5},
    {"delays": [None]}, {"delays": "10s"}, {"delays": {}}, {"base": []}, {"cap": "1y"}, {"never_on": [1]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "shape", "base"),
    [
        ("/api/v1/jobs", JobRequest, JOB),
        ("/api/v1/jobs/execute", ExecuteRequest, {"task": "demo"}),
        ("/api/v1/jobs/JOB/pause", PauseRequest, {}),
        ("/api/v1/jobs/JOB/run", TriggerRequest, {}),
        ("/api/v1/schedules/preview", PreviewRequest, {"schedule": {"every": "1m"}}),
        ("/api/v1/dead-letters/discard", LettersRequest, {}),
        ("/api/v1/dead-letters/restore", RestoreRequest, {}),
        ("PATCH /api/v1/jobs/JOB", JobRequest, {}),
    ],
)
async def test_whatever_a_field_holds_it_is_taken_or_refused(
    api: httpx2.AsyncClient, path: str, shape: type[msgspec.Struct], base: dict[str, Any]
) -> None:
    job = (await api.post("/api/v1/jobs", json={**JOB, "name": "of this test"})).json()
    method, _, path = path.rpartition(" ")
    path = path.replace("/JOB", f"/{job['job_id']}")
    for field in msgspec.structs.fields(shape):
        for number, value in enumerate(NASTY):
            body = {**base, field.encode_name: value}
            if path == "/api/v1/jobs" and field.name != "name":
                body["name"] = f"{field.name} {number}"
            response = await api.request(method or "POST", path, json=body)
            assert response.status_code in {200, 202, 409, 422}, (body, response.text)
