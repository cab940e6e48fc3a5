"""Inputs that look wrong and are valid, valid requests at the wrong moment, and bad addresses.

Repeated keys are tested in test_idempotency, other tenants' ids in test_isolation, logins, roles and quotas in
test_authentication and test_access, connections in test_connections, and calls to addresses in
tests/integration/egress.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from bellringer.core.runs import Ending, Outcome
from bellringer.store.connection_pool import Store

JOB = {"name": "a", "task": "demo"}


def told(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


async def test_a_leap_day_comes_though_not_soon(api: httpx2.AsyncClient) -> None:
    made = await api.post("/api/v1/jobs", json={**JOB, "schedule": {"cron": "0 0 29 2 *"}})
    assert made.status_code == 202
    body = {"schedule": {"cron": "0 0 29 2 *"}, "n": 1, "from": "2026-01-01T00:00:00Z"}
    [fire] = (await api.post("/api/v1/schedules/preview", json=body)).json()["fires"]
    assert fire["at"] == "2028-02-29T00:00:00Z"


@pytest.mark.parametrize(
    ("expression", "after", "at", "flag"),
    [
        ("30 2 * * *", "2026-03-08T00:00:00-05:00", "2026-03-08T03:00:00-04:00", "dst_gap"),
        ("30 1 * * *", "2026-11-01T00:00:00-04:00", "2026-11-01T01:30:00-04:00", "dst_fold_first"),
    ],
)
async def test_a_time_that_is_missing_or_there_twice_fires_once(
    api: httpx2.AsyncClient, expression: str, after: str, at: str, flag: str
) -> None:
    body = {"schedule": {"cron": expression, "tz": "America/New_York"}, "n": 2, "from": after}
    first, second = (await api.post("/api/v1/schedules/preview", json=body)).json()["fires"]
    assert first["local"] == at
    assert first["flags"] == [flag]
    assert second["flags"] == []
    gone = datetime.fromisoformat(second["at"]) - datetime.fromisoformat(first["at"])
    assert gone > timedelta(hours=20), "not twice in a day"


ODD = ["\U0001f600 report", 'it\'s "so"', "'; DROP TABLE jobs; --", "<script>alert(1)</script>", "<img onerror=x>"]


@pytest.mark.parametrize("name", ODD)
async def test_names_that_only_look_bad_are_kept_as_they_are(api: httpx2.AsyncClient, name: str) -> None:
    made = await api.post("/api/v1/jobs", json={**JOB, "name": name})
    assert (made.status_code, made.json()["name"]) == (202, name)
    assert (await api.get("/api/v1/jobs", params={"name": name})).json()["items"][0]["name"] == name


async def test_names_are_equal_whatever_their_form_and_case(api: httpx2.AsyncClient) -> None:
    spelt = unicodedata.normalize("NFD", "Café")
    made = await api.post("/api/v1/jobs", json={**JOB, "name": spelt})
    assert made.json()["name"] == unicodedata.normalize("NFC", spelt)
    for other in ("Café", "CAFÉ", "café"):
        assert told(await api.post("/api/v1/jobs", json={**JOB, "name": other})) == (409, "name_taken")


async def test_no_more_than_twenty_faults_are_reported(api: httpx2.AsyncClient) -> None:
    problem = (await api.post("/api/v1/jobs", json={f"x{n}": 1 for n in range(500)})).json()
    assert (problem["status"], problem["code"], len(problem["errors"])) == (422, "unknown_field", 20)


async def test_an_answer_repeats_little_of_what_was_sent(api: httpx2.AsyncClient) -> None:
    for body in ({**JOB, "x" * 5000: 1}, {**JOB, "pool": "y" * 5000}, {**JOB, "schedule": {"cron": "z" * 200}}):
        text = (await api.post("/api/v1/jobs", json=body)).text
        assert not any(sign * 201 in text for sign in "xyz")


PAYLOADS: list[Any] = [
    {"__reduce__": ["os.system", ["id"]]},
    {"yaml": "!!python/object/apply:os.system ['id']"},
    {"pickle": "cos\nsystem\n(S'id'\ntR."},
    {"__class__": "x", "constructor": {"prototype": 1}},
]


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_a_payload_is_inert(api: httpx2.AsyncClient, payload: dict[str, Any]) -> None:
    made = await api.post("/api/v1/jobs", json={**JOB, "kwargs": payload})
    assert made.json()["kwargs"] == payload
    run = (await api.post("/api/v1/jobs/a/run")).json()
    assert (await api.get(f"/api/v1/runs/{run['run_id']}")).json()["kwargs"] == payload


async def test_a_change_of_what_has_changed_meanwhile(api: httpx2.AsyncClient) -> None:
    made = await api.post("/api/v1/jobs", json=JOB)
    tag = {"If-Match": made.headers["etag"]}
    assert (await api.patch("/api/v1/jobs/a", json={"priority": 1}, headers=tag)).status_code == 200
    for request in (
        api.patch("/api/v1/jobs/a", json={"priority": 2}, headers=tag),
        api.delete("/api/v1/jobs/a", headers=tag),
    ):
        assert told(await request) == (412, "revision_mismatch")
    assert (await api.get("/api/v1/jobs/a")).json()["priority"] == 1


async def test_a_job_is_deleted_while_it_runs(api: httpx2.AsyncClient, work: Any) -> None:
    """204, as its future ends at once; what runs finishes."""
    await api.post("/api/v1/jobs", json={**JOB, "schedule": {"every": "1h"}})
    run = (await api.post("/api/v1/jobs/a/run")).json()
    assert await work(None) == 1
    assert (await api.delete("/api/v1/jobs/a")).status_code == 204
    assert (await api.get(f"/api/v1/runs/{run['run_id']}")).json()["state"] == "running"


async def test_a_retry_of_what_has_succeeded(api: httpx2.AsyncClient, work: Any) -> None:
    await api.post("/api/v1/jobs", json=JOB)
    run = (await api.post("/api/v1/jobs/a/run")).json()
    await work(Ending(outcome=Outcome.OK))
    assert told(await api.post(f"/api/v1/runs/{run['run_id']}/retry")) == (409, "state_conflict")


async def test_a_second_cancel_says_the_same(api: httpx2.AsyncClient) -> None:
    await api.post("/api/v1/jobs", json=JOB)
    run = (await api.post("/api/v1/jobs/a/run")).json()
    first, second = [await api.post(f"/api/v1/runs/{run['run_id']}/cancel") for _ in range(2)]
    assert (first.status_code, second.status_code, second.content) == (200, 200, first.content)


async def test_another_method_in_a_header_is_not_heeded(api: httpx2.AsyncClient) -> None:
    await api.post("/api/v1/jobs", json=JOB)
    for header in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        assert (await api.get("/api/v1/jobs/a", headers={header: "DELETE"})).status_code == 200
    assert (await api.get("/api/v1/jobs/a")).status_code == 200


async def test_a_backfill_of_ten_years_is_a_plan_that_can_be_cancelled(api: httpx2.AsyncClient, store: Store) -> None:
    await api.post("/api/v1/jobs", json={**JOB, "schedule": {"cron": "* * * * *"}})
    now = datetime.now(UTC)
    body = {"job": "a", "from": (now - timedelta(days=3650)).isoformat(), "to": now.isoformat()}
    made = await api.post("/api/v1/backfills", json=body)
    assert made.status_code in {202, 422}, made.text
    assert await store.pool.fetchval("select count(*) from runs") == 0, "nothing is made at once"
    if made.status_code == 202:
        ended = await api.post(f"{made.headers['location']}/cancel")
        assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")


FORBIDDEN = [
    "127.0.0.1", "localhost", "169.254.169.254", "[::1]", "10.1.2.3", "100.64.0.1", "0", "2130706433", "0x7f.1",
    "127.1", "[::ffff:169.254.169.254]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "224.0.0.1", "[ff02::1]",
]  # fmt: skip
INVALID = [
    "file:///etc/passwd", "gopher://example.com/", "ftp://example.com/", "http+unix://x/", "example.com",
    "https://user:pass@example.com/", "https://example.com/#x", "https://example.com:22/", "https://example.com:5432/",
    "https://example.com:6379/", "https://example.com:99999/", "https://\u2460\u2461\u2466.0.0.1/", "https://example.com../",
    "https://example.com/" + "x" * 2048, "https://example.com/\r\nX: y",
]  # fmt: skip
HEADERS = [
    ({"Host": "x"}, "header_forbidden"),
    ({"Content-Length": "1"}, "header_forbidden"),
    ({"Transfer-Encoding": "chunked"}, "header_forbidden"),
    ({"webhook-signature": "x"}, "header_forbidden"),
    ({"X-A": "b\r\nHost: c"}, "header_invalid"),
    ({f"X-{n}": "1" for n in range(1000)}, "header_invalid"),
]


async def test_what_may_not_be_called_is_refused_when_it_is_named(api: httpx2.AsyncClient, store: Store) -> None:
    asked: list[tuple[dict[str, Any], str, str]]
    asked = [({"url": f"https://{host}/"}, "url_forbidden_address", "/http/url") for host in FORBIDDEN]
    asked += [({"url": url}, "url_invalid", "/http/url") for url in INVALID]
    asked += [({"url": "https://example.com/", "headers": h}, code, "/http/headers") for h, code in HEADERS]
    faults = []
    for target, code, pointer in asked:
        problem = (await api.post("/api/v1/jobs", json={"name": "a", "http": target})).json()
        where = problem["errors"][0]["pointer"] if problem.get("errors") else ""
        if (problem["status"], problem.get("code")) != (422, code) or not where.startswith(pointer):
            faults.append((str(target)[:100], problem.get("code"), where))
    assert faults == []
    assert await store.pool.fetchval("select count(*) from jobs") == 0
