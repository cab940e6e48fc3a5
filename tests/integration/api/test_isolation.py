"""A second tenant sees nothing: every endpoint, asked with tenant A's ids and tenant B's key, answers as for no id.

The walk is made from the table of routes. An endpoint that is new fails it until this file says which of A's things its
path names (`Alpha.things`, `MISSING`), and with which body it is asked (`BODIES`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import httpx2
import pytest

from bellringer import App, every
from bellringer.access.api_keys import generate_api_key
from bellringer.api.app import create_app
from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.api.http.operation import CURSOR_PARAMETER, Endpoint
from bellringer.clock import SystemClock
from bellringer.core.jobs import WORKFLOW_TASK
from bellringer.core.runs import Ending, Outcome, RunKey, decode_run_id
from bellringer.egress.secret_box import generate_secret_key as make_box_key
from bellringer.egress.settings import Egress
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.settle import decide, settle
from bellringer.store import api_keys, workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration

API: Final = "/api/v1"
MARK: Final = "alpha"  # in the name of everything of A's, so that none of it goes unseen
NO_UUID: Final = "01990000-0000-7000-8000-000000000001"
NO_RUN: Final = RunKey(UUID(NO_UUID), datetime(2026, 1, 1, tzinfo=UTC), 0).id
PART: Final = re.compile(r"\{\w+\}")

# What all tenants share, by the tags of its operations: workers, what these know, and where they work.
SHARED: Final = frozenset({"tasks", "pools", "workers", "cluster"})
SHARED_BY_ALL: Final = f"{API}/cluster/moves"  # of the shards, in which all tenants are
SEALED: Final = f"{API}/audit/seals"  # hashes over the changes of all, which tell nothing of them
# Parameters that name no thing.
TIMES: Final = frozenset({"from", "to", "at", "bucket", "window", "late_after", "unstarted_after"})

# What is not there, by the word before a path's part, in the forms in which A's things are named.
MISSING: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": (NO_UUID, "nowhere"),
    "runs": (NO_RUN,),
    "signals": ("nothing",),
    "attempts": ("99",),
    "revisions": ("99",),
    "skips": ("2031-01-01T00:00:00Z",),
    "operations": ("op_999999",),
    "backfills": ("bf_999999",),
    "calendars": ("nowhere",),
    "secrets": ("nowhere",),
    "freezes": ("fz_999999", "nowhere"),
    "webhook-endpoints": ("whe_999999",),
    "deliveries": ("whd_999999",),
    "api-keys": ("zzzzzzzz",),
    "installation-keys": ("zzzzzzzz",),
    "tenants": ("nobody",),
    "apps": ("nowhere",),
    "channels": ("nowhere",),
    "routes": ("nowhere",),
    "checkins": ("nowhere",),
}
# Bodies that reach the look-up, where {} would not.
BODIES: Final[Mapping[str, Any]] = {
    "PATCH /jobs/{id}": {"tags": ["theirs"]},
    "PUT /jobs/{name}": {"task": "demo"},
    "PUT /jobs/{id}": {"task": "demo"},
    "POST /jobs/{id}/skip": {"at": "2031-01-01T00:00:00Z"},
    "POST /jobs/{id}/rollback": {"revision": 1},
    "PATCH /freezes/{id}": {"reason": "theirs"},
    "PATCH /webhook-endpoints/{id}": {"description": "theirs"},
    "PATCH /runs/{id}": {"priority": 1},
    "POST /runs/{id}/nodes/mark": {"node": "alpha-node", "state": "dead", "reason": "theirs"},
    "PUT /calendars/{name}": {"dates": ["2031-01-01"]},
    "PUT /secrets/{name}": {"value": "theirs"},
    "PUT /notifications/channels/{name}": {"kind": "email", "to": ["beta@example.com"]},
    "PUT /notifications/routes/{name}": {"channel": "nowhere"},  # the channel that the request above creates
    "PUT /checkins/{name}": {"schedule": {"every": "1h"}},
    "PATCH /tenants/{name}": {"weight": 2},
    "POST /apps/{name}/activate": {"version": "1"},
}
# Queries without which it is not looked at.
QUERIES: Final[Mapping[str, Mapping[str, str]]] = {
    "DELETE /jobs/{id}/skip": {"at": "2031-01-01T00:00:00Z"},
    "GET /runs/{id}/nodes/why": {"node": "alpha-node"},
    "GET /runs/{id}/logs": {"source": "ctx,stdout", "since": "2026-01-01T00:00:00Z", "after": "0"},
}
# Things that a body names; `{}` stands for one of A's, or for one that is not there.
NAMED_IN_BODIES: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("jobs", "/backfills", {"job": "{}", "from": "2026-01-01", "to": "2026-01-02"}),
    ("jobs", "/backfills", {"job": "{}", "from": "2026-01-01", "to": "2026-01-02", "dry_run": True}),
    ("runs", "/dead-letters/redrive", {"runs": ["{}"]}),
    ("runs", "/dead-letters/discard", {"runs": ["{}"]}),
    ("runs", "/dead-letters/restore", {"runs": ["{}"]}),
    ("operations", "/dead-letters/restore", {"operation_id": "{}"}),
    ("jobs", "/bulk", {"action": "jobs.pause", "ids": ["{}"], "dry_run": True}),
    ("runs", "/bulk", {"action": "runs.cancel", "ids": ["{}"], "dry_run": True}),
    ("jobs", "/bulk", {"action": "runs.cancel", "filter": {"job": "{}"}, "dry_run": True}),
    ("calendars", "/schedules/preview", {"schedule": {"cron": "0 0 * * *", "calendar": "{}"}}),
    ("calendars", "/jobs", {"name": "mine", "task": "demo", "schedule": {"cron": "0 0 * * *", "calendar": "{}"}}),
)


@dataclass(frozen=True, kw_only=True)
class Alpha:
    """Tenant A with one of everything, and how its things are named."""

    api: httpx2.AsyncClient
    a: Mapping[str, str]
    b: Mapping[str, str]
    things: Mapping[str, tuple[str, ...]]

    def paths(self, template: str) -> Iterator[tuple[str, str]]:
        """The path with A's things, and the same with the first of them missing; once for each form of a name."""
        words = template.split("/")
        collections = [words[n - 1] for n, word in enumerate(words) if PART.fullmatch(word)]
        for collection in collections:
            assert collection in self.things, f"{template}: make one of {collection} in `alpha`, and name it"
            assert collection in MISSING, (
                f"{template}: say in MISSING how one of {collection} that is not there is named"
            )
        first, *others = collections
        for own, missing in zip(self.things[first], MISSING[first], strict=True):
            rest = [self.things[collection][0] for collection in others]
            yield tuple(_filled(template, [name, *rest]) for name in (own, missing))  # type: ignore[misc]


def _filled(template: str, names: list[str]) -> str:
    given = iter(names)
    return PART.sub(lambda _: next(given), template)


def _body(method: str, template: str, operation: Endpoint) -> Any:
    place = f"{method} {template.removeprefix(API)}"
    if operation.route.body is None:
        return None
    assert operation.route.body_optional or place in BODIES, f"say in BODIES with which body to ask {place}"
    return BODIES.get(place, {})


def told(response: httpx2.Response) -> tuple[int, dict[str, str], Any]:
    """All that an answer tells, but for what differs between any two."""
    headers = {k: v for k, v in response.headers.items() if k not in {"x-request-id", "date"}}
    body = response.content
    if headers.get("content-type") in {"application/json", "application/problem+json"}:
        given = response.json().get("request_id", "") if isinstance(response.json(), dict) else ""
        body = body.replace(given.encode(), b"") if given else body
    return response.status_code, headers, body


@pytest.fixture
async def alpha(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[Alpha]:
    await store.pool.execute("insert into tenants (name) values ('alpha tenant'), ('beta')")
    callers = []
    for tenant in ("alpha tenant", "beta"):
        key = generate_api_key()
        tenant_id = await catalog.tenant_id(tenant)
        await api_keys.add(store, key, tenant_id=tenant_id, name=f"{tenant} key", role="admin", who="test")
        callers.append({"Authorization": f"Bearer {key.text}"})
    egress = Egress.read((), (make_box_key("k1"),))
    authenticator = Authenticator(store, catalog, AuthSettings())
    app = create_app(
        store, catalog, tenants, version="1", clock=SystemClock(), authenticator=authenticator, egress=egress
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as api:
        things = await _everything(api, callers[0], store, catalog)
        yield Alpha(api=api, a=callers[0], b=callers[1], things=things)


async def _everything(
    api: httpx2.AsyncClient, a: Mapping[str, str], store: Store, catalog: Catalog
) -> Mapping[str, tuple[str, ...]]:
    async def post(path: str, **body: Any) -> dict[str, Any]:
        answer = await api.post(API + path, json=body, headers=a)
        assert answer.is_success, (path, answer.text)
        made: dict[str, Any] = answer.json()
        return made

    made: dict[str, Any] = {}
    unwanted: list[dict[str, Any]] = []
    await catalog.task_ids(["alpha.task"])  # nodes run only tasks that somebody knows
    nodes = [
        {"name": "alpha-node", "task": "alpha.task"},
        {"name": "alpha-wait", "signal": {"name": "alpha-signal"}, "after": ["alpha-node"]},
    ]
    await api.put(f"{API}/calendars/alpha-days", json={"dates": ["2030-01-01"]}, headers=a)
    await api.put(f"{API}/calendars/alpha-more", json={"dates": ["2030-01-02"]}, headers=a)
    await api.put(f"{API}/secrets/alpha-secret", json={"value": "alpha-value"}, headers=a)
    await api.put(f"{API}/secrets/alpha-second", json={"value": "alpha-value"}, headers=a)
    for n in range(2):  # two of each, so that lists have a second page
        job = await post(
            "/jobs", name=f"alpha-job-{n}", workflow={"nodes": nodes}, tags=["alpha-tag"], schedule={"every": "1h"}
        )
        made["freeze"] = await post("/freezes", name=f"alpha-freeze-{n}", to="1h", tags=["alpha-none"])
        made["hook"] = await post("/webhook-endpoints", url=f"https://alpha.example.com/{n}")
        made["key"] = await post("/api-keys", name=f"alpha-key-{n}", role="viewer")
        made["fill"] = await post(
            "/backfills", job=job["job_id"], **{"from": f"2026-01-0{n + 1}", "to": f"2026-01-0{n + 2}"}
        )
        made["op"] = await post("/bulk", action="jobs.resume", ids=[job["job_id"]], reason="alpha-reason")
        await post("/jobs/execute", task="alpha.task", retry=1, kwargs={"alpha": 1})
        unwanted.append(await post("/jobs/execute", task="alpha.task", retry=1, kwargs={"alpha": 2}))
        made["delivery"] = await post(f"/webhook-endpoints/{made['hook']['endpoint_id']}/test")
        await _declare(store, f"alpha-app-{n}")
        await _subscribe(api, a, store, n)
    made["run"] = await post(f"/jobs/{job['job_id']}/run")
    await _die(store, catalog)
    assert (await post("/dead-letters/discard", runs=[run["run_id"] for run in unwanted]))["count"] == 2
    await _note(store, UUID(job["job_id"]), decode_run_id(made["run"]["run_id"]))
    return {
        "jobs": (job["job_id"], job["name"]),
        "runs": (made["run"]["run_id"],),
        "signals": ("alpha-signal",),
        "attempts": ("1",),
        "revisions": ("1",),
        "skips": ("2031-01-01T00:00:00Z",),
        "operations": (made["op"]["operation_id"],),
        "backfills": (made["fill"]["backfill_id"],),
        "calendars": ("alpha-days",),
        "secrets": ("alpha-secret",),
        "freezes": (made["freeze"]["freeze_id"], made["freeze"]["name"]),
        "webhook-endpoints": (made["hook"]["endpoint_id"],),
        "deliveries": (made["delivery"]["delivery_id"],),
        "api-keys": (made["key"]["key_id"],),
        "installation-keys": (made["key"]["key_id"],),
        "tenants": ("alpha tenant",),
        "apps": ("alpha-app-1",),
        "channels": ("alpha-channel-1",),
        "routes": ("alpha-route-1",),
        "checkins": ("alpha-checkin-1",),
    }


async def _subscribe(api: httpx2.AsyncClient, a: Mapping[str, str], store: Store, n: int) -> None:
    """A gets a channel with a sent message, a route with an incident, and a check-in with pings."""
    for path, body in (
        (f"notifications/channels/alpha-channel-{n}", {"kind": "slack", "url": f"https://alpha.example.com/{n}"}),
        (f"notifications/routes/alpha-route-{n}", {"channel": f"alpha-channel-{n}"}),
        (f"checkins/alpha-checkin-{n}", {"schedule": {"every": "1h"}}),
    ):
        made = await api.put(f"{API}/{path}", json=body, headers=a)
        assert made.status_code == 201, (path, made.text)
    for _ in range(2):
        assert (await api.post(made.json()["ping_url"])).is_success
    tested = await api.post(f"{API}/notifications/channels/alpha-channel-{n}/test", headers=a)
    assert tested.status_code == 202, tested.text
    await store.pool.execute(
        """insert into notification_incidents (incident_id, tenant_id, route_id, group_key, opened_at, last_at,
                                               severity, count, subjects)
           select gen_random_uuid(), tenant_id, route_id, 'alpha', now(), now(), 'critical', 1, '{}'
           from notification_routes where name = $1""",
        f"alpha-route-{n}",
    )


async def _declare(store: Store, name: str) -> None:
    """An app of A declares a job."""
    app = App(store.dsn, tenant="alpha tenant", name=name, version="1")
    app.schedule(every("1h"))(app.task(name=f"{name}.task")(lambda: None))
    async with app:
        await app.adeclare()


async def _die(store: Store, catalog: Catalog) -> None:
    """A worker takes A's runs, and they fail for good."""
    tasks, pools = await catalog.task_ids(["alpha.task", WORKFLOW_TASK]), await catalog.pool_ids(["short"])
    numbers = [tasks["alpha.task"], tasks[WORKFLOW_TASK]]
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[])
    worker_id = await workers.join(store, who)
    seat = ClaimSpec(worker_id=worker_id, pool_id=pools["short"], task_ids=numbers)
    dies = Ending(outcome=Outcome.FAILED, error={"type": "AlphaError", "message": "alpha"}, final="alpha")
    opens = Ending(outcome=Outcome.OK, opened=True)
    for many in (5, 1):  # four tasks and a workflow run; then its node
        taken, _ = await claim(store, seat, 10, TenantCursor())
        assert len(taken) == many
        batch = [decide(c, opens if c.task_id == tasks[WORKFLOW_TASK] else dies) for c in taken]
        await settle(store, worker_id, batch)


async def _note(store: Store, job_id: UUID, run: RunKey) -> None:
    """What only handlers and schedulers write: log lines and events."""
    for kind in ("late", "slow"):
        await store.pool.execute(
            """insert into events (at, tenant_id, kind, job_id, scheduled_for)
               select now(), tenant_id, $1, job_id, now() from jobs where job_id = $2""",
            kind,
            job_id,
        )
        await store.pool.execute(
            """insert into logs (job_id, scheduled_for, slot, attempt, at, level, message, source)
               values ($1, $2, $3, 1, now(), 'info', 'alpha line', $4)""",
            run.job_id,
            run.scheduled_for,
            run.slot,
            "stdout" if kind == "slow" else None,
        )


def operations(*, parts: bool) -> list[tuple[str, str, Endpoint]]:
    """All of tenants' operations, with parts in their paths or without."""
    return [
        (method, template, operation)
        for template, at in ROUTES.items()
        for method, operation in at.items()
        if bool(PART.search(template)) is parts and operation.role is not None and operation.tag not in SHARED
    ]


async def test_every_path_with_anothers_id_answers_as_with_none(alpha: Alpha) -> None:
    before = await _all_of(alpha)
    walked = 0
    # What makes something comes last: then B has one of that name too.
    for method, template, operation in sorted(operations(parts=True), key=lambda place: place[0] == "PUT"):
        body = _body(method, template, operation)
        for own, missing in alpha.paths(template):
            query = QUERIES.get(f"{method} {template.removeprefix(API)}")
            asked = [
                await alpha.api.request(method, path, json=body, params=query, headers=alpha.b)
                for path in (own, missing)
            ]
            place = f"{method} {own}"
            if method == "PUT" and asked[1].is_success:  # a name that is free in B, whatever A has: B gets its own
                assert asked[0].status_code == asked[1].status_code, place
            else:
                assert asked[1].status_code == 404, (place, asked[1].text)
                assert told(asked[0]) == told(asked[1]), place
            walked += 1
    assert walked >= 45
    assert await _all_of(alpha) == before, "something of A's has changed"


async def _all_of(alpha: Alpha) -> dict[str, Any]:
    """All that A can read by its ids. It must be there: what A cannot see either would prove nothing."""
    seen = {}
    for method, template, operation in operations(parts=True):
        if method == "GET" and not operation.everywhere:
            for own, _ in alpha.paths(template):
                query = QUERIES.get(f"{method} {template.removeprefix(API)}")
                answer = await alpha.api.get(own, params=query, headers=alpha.a)
                assert answer.status_code == 200, (own, answer.text)
                if not template.endswith(("/why", "/explain", "/stats")):  # these contain the present time
                    seen[own] = answer.text
    return seen


async def test_no_list_holds_anything_of_another_tenants(alpha: Alpha) -> None:
    names = {name for collection in alpha.things.values() for name in collection if len(name) > 3}
    for method, template, operation in operations(parts=False):
        if method != "GET":
            continue
        own = await alpha.api.get(template, headers=alpha.a)
        theirs = await alpha.api.get(template, headers=alpha.b)
        assert own.status_code == theirs.status_code == (404 if operation.everywhere else 200), template
        assert MARK not in theirs.text, template
        assert not [name for name in names if name in theirs.text], template
        if (
            CURSOR_PARAMETER in operation.query
            and not operation.everywhere
            and template not in {SEALED, SHARED_BY_ALL}
            and "beta" not in theirs.text
        ):
            assert own.json()["items"], f"{template}: make some in `alpha`"
            assert theirs.json()["items"] == [], template


async def test_a_filter_by_anothers_thing_is_one_by_none(alpha: Alpha) -> None:
    tried = 0
    for method, template, operation in operations(parts=False):
        for query in operation.query:
            names_things = (
                query.schema == {"type": "string"} and query is not CURSOR_PARAMETER and query.name not in TIMES
            )
            if method != "GET" or operation.everywhere or not names_things:
                continue
            values = [*zip(alpha.things["jobs"], MISSING["jobs"], strict=True), ("alpha.task", "no.task")]
            for own, missing in [*values, ("alpha-tag", "no-tag"), ("AlphaError", "NoError")]:
                asked = [
                    await alpha.api.get(template, params={query.name: value}, headers=alpha.b)
                    for value in (own, missing)
                ]
                assert _but(asked[0], own) == _but(asked[1], missing), (template, query.name, own)
                tried += 1
    assert tried >= 20


async def test_a_cursor_of_anothers_is_as_one_that_is_made_up(alpha: Alpha) -> None:
    tried = 0
    for method, template, operation in [*operations(parts=False), *operations(parts=True)]:
        if method != "GET" or CURSOR_PARAMETER not in operation.query or operation.everywhere:
            continue
        path = next(alpha.paths(template))[0] if PART.search(template) else template
        page = await alpha.api.get(path, params={"limit": 1}, headers=alpha.a)
        cursor = page.json()["next_cursor"]
        if cursor is None:
            continue
        asked = [
            await alpha.api.get(path, params={"limit": 1, "cursor": given}, headers=alpha.b)
            for given in (cursor, "bWFkZSB1cA")
        ]
        assert told(asked[0]) == told(asked[1]), template
        assert asked[0].status_code in {400, 404}, template
        tried += 1
    assert tried >= 8


async def test_a_body_that_names_anothers_thing_is_as_one_that_names_none(alpha: Alpha) -> None:
    for collection, path, body in NAMED_IN_BODIES:
        for own, missing in zip(alpha.things[collection], MISSING[collection], strict=True):
            asked = [
                await alpha.api.post(API + path, json=_put(body, name), headers=alpha.b) for name in (own, missing)
            ]
            assert _but(asked[0], own) == _but(asked[1], missing), (path, body)


def _but(response: httpx2.Response, given: str) -> tuple[int, bytes]:
    """What an answer tells, but for what it repeats of the question."""
    status, _, body = told(response)
    return status, body.replace(given.encode(), b"")


def _put(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _put(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_put(inner, name) for inner in value]
    return name if value == "{}" else value


async def test_a_name_that_another_tenant_has_is_free(alpha: Alpha) -> None:
    answer = await alpha.api.post(
        f"{API}/jobs", json={"name": alpha.things["jobs"][1], "task": "demo"}, headers=alpha.b
    )
    assert answer.is_success
    assert answer.json()["job_id"] != alpha.things["jobs"][0]
