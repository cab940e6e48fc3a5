"""The overview: a verdict that is decided by a pure function, and bounded reads behind it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any
from uuid import UUID

import httpx2
import pytest
from tests.integration.api.conftest import Work

from bellringer.api.endpoints.health import _LINKS, _RANKS, MAX_ATTENTION_ITEMS, HealthFacts, attention, verdict
from bellringer.api.endpoints.overview import bounded_count, percentile, summarize_runs
from bellringer.core.runs import Ending, Outcome, RunKey
from bellringer.store import overview as stored
from bellringer.store.connection_pool import Store
from bellringer.store.overview import (
    MAX_COUNTED,
    FailingPause,
    JobTrouble,
    LateJobs,
    OverviewCounts,
    PoolBacklog,
    RunBar,
    Schedulers,
    TenantSuspension,
)
from bellringer.store.task_pauses import TaskPauseRow
from bellringer.wire.models import Count

API = "/api/v1"
NOW = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
JOB = UUID(int=7)
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "m"}, final="no")
OK = Ending(outcome=Outcome.OK)

WELL = HealthFacts(
    sums=OverviewCounts(now=NOW, jobs=12, paused=0, failing=0, late=0, dead=0, live=1, slots=20, busy=0),
    schedulers=Schedulers(nodes=1, total=64, held=64, waits_for=None, firing=0.0),
    pools=[PoolBacklog(pool="short", paused=False, workers=1, slots=20, ready=0, busy=0, since=None)],
    troubles=[],
    late=LateJobs(late=0, missed=0, skipping=0),
    burn=0.0,
    started_late=0,
    range="1h",
)
TROUBLE = JobTrouble(job_id=JOB, job="my job", kind="dead", since=NOW, scheduled_for=NOW)
PAUSE = FailingPause(job_id=JOB, job="my job", since=NOW, reason="3 runs failed")


def sums(**changes: Any) -> HealthFacts:
    return replace(WELL, sums=replace(WELL.sums, **changes))


def late(**changes: int) -> HealthFacts:
    return replace(WELL, late=replace(WELL.late, **changes))


def paused_tasks(*names: str) -> HealthFacts:
    pauses = [
        TaskPauseRow(
            task_id=number,
            name=name,
            paused_at=NOW,
            paused_by="ann",
            reason="the mail server is down",
            until_at=None,
            resumed_at=None,
            release_rate=None,
        )
        for number, name in enumerate(names)
    ]
    return replace(WELL, paused_tasks=pauses)


def served(facts: HealthFacts) -> HealthFacts:
    """Adds a pool that a worker serves."""
    return replace(facts, pools=[*facts.pools, replace(WELL.pools[0], pool="served")])


def schedulers(**changes: Any) -> HealthFacts:
    return replace(WELL, schedulers=replace(WELL.schedulers, **changes))


def pool(**changes: Any) -> HealthFacts:
    return replace(WELL, pools=[replace(WELL.pools[0], **{"ready": 3, **changes})])


@pytest.mark.parametrize(
    ("facts", "tone", "text"),
    [
        (WELL, "good", "All is well: 12 jobs, and nothing is late or failing."),
        (sums(paused=2), "good", "All is well: 12 jobs, 2 of them paused, and nothing is late or failing."),
        (sums(jobs=1), "good", "All is well: 1 job, and nothing is late or failing."),
        (sums(jobs=MAX_COUNTED + 1), "good", "All is well: more than 10,000 jobs, and nothing is late or failing."),
        (sums(jobs=0), "good", "There are no jobs yet."),
        (sums(failing=1), "bad", "1 job is failing."),
        (late(late=2), "warn", "2 jobs are late."),
        (late(missed=1), "warn", "1 job missed an occurrence."),
        (late(skipping=2), "warn", "2 jobs skip their occurrences."),
        (
            replace(sums(failing=3), late=late(late=1).late),
            "bad",
            "3 jobs are failing; 1 more problem needs attention.",
        ),
        (
            replace(sums(failing=3, dead=7), late=late(late=1).late),
            "bad",
            "3 jobs are failing; 2 more problems need attention.",
        ),
        (sums(dead=1), "warn", "1 dead letter is waiting to be retried or discarded."),
        (
            replace(WELL, burn=2.0, started_late=5),
            "warn",
            "5 runs started late in the last 1h: more than the objective allows.",
        ),
        (
            replace(WELL, burn=2.0, started_late=19, missed=16),
            "warn",
            "3 runs started late and 16 occurrences were missed in the last 1h: more than the objective allows.",
        ),
        (
            replace(WELL, burn=2.0, started_late=5, missed=5),
            "warn",
            "5 occurrences were missed in the last 1h: more than the objective allows.",
        ),
        (
            replace(WELL, burn=99.0, started_late=4),
            "good",
            "All is well: 12 jobs, and nothing is late or failing.",
        ),
        (schedulers(held=0, nodes=0), "bad", "No scheduler holds a shard: nothing fires."),
        (schedulers(held=63), "bad", "1 shard of 64 without a scheduler: their jobs do not fire."),
        (schedulers(firing=90.0), "bad", "Fires are up to 1m30s late."),
        (schedulers(firing=4.0), "good", "All is well: 12 jobs, and nothing is late or failing."),
        (schedulers(waits_for="kafka"), "warn", "A scheduler waits for kafka."),
        (pool(), "good", "All is well: 12 jobs, and nothing is late or failing."),
        (served(pool(workers=0, slots=0)), "bad", "3 runs are waiting in pool “short”, and no worker serves it."),
        (pool(workers=0, slots=0), "bad", "No task worker is connected: 3 runs are waiting in pool “short”."),
        (
            replace(WELL, pools=[replace(WELL.pools[0], pool=name, ready=1, workers=0) for name in ("a", "b")]),
            "bad",
            "No task worker is connected: 2 runs are waiting in 2 pools.",
        ),
        (pool(workers=0, ready=0), "good", "All is well: 12 jobs, and nothing is late or failing."),
        (
            replace(pool(workers=0, ready=0), needs_workers=True),
            "bad",
            "No task worker is connected: only HTTP jobs can run.",
        ),
        (
            replace(WELL, pools=[*WELL.pools, *(replace(WELL.pools[0], pool=n, ready=1, workers=0) for n in "ab")]),
            "bad",
            "Runs wait in 2 pools that no worker serves.",
        ),
        (pool(paused=True), "warn", "3 runs are waiting in pool “short”, which is paused."),
        (
            pool(since=NOW - timedelta(minutes=5)),
            "warn",
            "Pool “short” is behind: 3 runs are waiting, the first for 5m.",
        ),
        (replace(WELL, round_trip=0.1), "good", "All is well: 12 jobs, and nothing is late or failing."),
        (
            replace(WELL, round_trip=0.25),
            "warn",
            "The database is slow: 250 ms per round trip; up to 100 ms is normal.",
        ),
        (
            replace(WELL, round_trip=1.5),
            "bad",
            "The database is slow: 1,500 ms per round trip; up to 100 ms is normal.",
        ),
        (
            replace(WELL, stalled_loops=["scheduler fire"]),
            "bad",
            "The background loop “scheduler fire” of the server has stalled.",
        ),
        (replace(WELL, stalled_loops=["a", "b"]), "bad", "2 background loops of the server have stalled."),
        (
            replace(WELL, suspension=TenantSuspension(tenant="acme", since=NOW)),
            "bad",
            "The tenant “acme” is suspended: none of its jobs run.",
        ),
        (replace(WELL, stranded=1), "bad", "1 run is claimed, but no live worker executes it."),
        (replace(WELL, stranded=4, silent_claims=9), "bad", "4 runs are claimed, but no live worker executes them."),
        (
            replace(WELL, silent_claims=2),
            "warn",
            "2 runs are held by workers that have sent no heartbeat for 10 seconds.",
        ),
        (paused_tasks("shop.mail"), "warn", "Task “shop.mail” is paused (the mail server is down): its runs wait."),
        (paused_tasks("a", "b"), "warn", "2 tasks are paused."),
        (replace(sums(failing=1), troubles=[TROUBLE]), "bad", "Job “my job” is failing."),
        (
            replace(sums(failing=1), troubles=[replace(TROUBLE, error=f"CardExpired: no\nmore {'x' * 200}")]),
            "bad",
            "Job “my job” is failing: CardExpired: no",
        ),
        (
            replace(sums(failing=1), troubles=[TROUBLE], pauses=[PAUSE]),
            "bad",
            "Job “my job” was paused: 3 runs failed.",
        ),
        (
            replace(sums(failing=2), troubles=[TROUBLE], pauses=[PAUSE]),
            "bad",
            "Job “my job” was paused: 3 runs failed; 1 more problem needs attention.",
        ),
    ],
)
def test_the_verdict(facts: HealthFacts, tone: str, text: str) -> None:
    found = verdict(facts)
    assert (found.tone, found.text) == (tone, text)


def test_the_verdict_has_every_problem_with_its_number_and_where_to_look() -> None:
    facts = replace(
        sums(failing=3, dead=MAX_COUNTED + 1),
        late=late(late=1).late,
        round_trip=0.3,
        suspension=TenantSuspension(tenant="acme", since=NOW),
        pools=[WELL.pools[0], replace(WELL.pools[0], pool="two words", ready=7, workers=0)],
        paused_tasks=paused_tasks("a", "b").paused_tasks,
        schedulers=replace(WELL.schedulers, held=60),
    )
    assert [(one.kind, one.tone, one.count.value, one.link) for one in verdict(facts).problems] == [
        ("tenant_suspended", "bad", 1, "tenants"),
        ("shards_free", "bad", 4, "cluster"),
        ("no_worker", "bad", 1, "workers?pool=two%20words"),
        ("failing", "bad", 3, "jobs?state=failing"),
        ("database_slow", "warn", 1, "cluster"),
        ("late", "warn", 1, "jobs?state=late"),
        ("task_paused", "warn", 2, "workers"),
        ("dead_letters", "warn", MAX_COUNTED, "dead-letters"),
    ]
    assert [one.count.relation for one in verdict(facts).problems][-2:] == ["eq", "gte"]
    assert (
        verdict(facts).text == "The tenant “acme” is suspended: none of its jobs run; 7 more problems need attention."
    )


@pytest.mark.parametrize("link", sorted(set(_LINKS.values())))
def test_the_links_of_problems_are_pages_of_the_console(link: str) -> None:
    page = link.partition("?")[0]
    assert f'["{page}", "' in (resources.files("bellringer.console") / "static" / "app.js").read_text()


def test_every_kind_of_problem_has_a_rank_and_a_page() -> None:
    assert set(_LINKS) | {"objective"} == set(_RANKS)


def test_what_keeps_everything_from_running_comes_before_a_job_that_fails() -> None:
    facts = replace(sums(failing=1), troubles=[TROUBLE], schedulers=replace(WELL.schedulers, held=0))
    found = attention(facts)
    assert [item.kind for item in found] == ["no_scheduler", "failing"]
    assert verdict(facts).text == "No scheduler holds a shard: nothing fires; 1 more problem needs attention."


def test_an_item_says_which_job_and_what_helps() -> None:
    [item] = attention(replace(WELL, troubles=[TROUBLE]))
    assert (item.job_id, item.job, item.since) == (str(JOB), "my job", NOW)
    assert item.fix == "bellringer why 'my job'"


def test_of_many_things_the_first_are_reported_and_troubles_keep_a_place() -> None:
    pools = [replace(WELL.pools[0], pool=f"p{n}", ready=1, workers=0) for n in range(30)] + [*WELL.pools]
    found = attention(replace(WELL, pools=pools, troubles=[TROUBLE] * 30))
    assert len(found) == MAX_ATTENTION_ITEMS
    assert [item.kind for item in found].count("failing") == 1
    assert len(attention(replace(WELL, troubles=[TROUBLE] * 30))) == MAX_ATTENTION_ITEMS


def test_percentiles_and_bounded_counts() -> None:
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([5], 0.5) == 5
    assert percentile([], 0.5) is None
    assert bounded_count(10, 10) == Count(value=10, relation="eq")
    assert bounded_count(11, 10) == Count(value=10, relation="gte")


def _try(minute: int, attempt: int | None, outcome: str | None, seconds: float = 1.0, task: str = "t") -> RunBar:
    at = NOW + timedelta(minutes=minute)
    start = None if attempt is None else at + timedelta(seconds=2 * (attempt or 0))
    end = None if start is None else start + timedelta(seconds=seconds)
    ends_as = {"ok": "succeeded"}.get(outcome or "")
    return RunBar(RunKey(JOB, at), task, timedelta(seconds=1), attempt, outcome, ends_as, start, end)


def test_what_the_last_runs_did() -> None:
    tries = [_try(2, 1, "failed", 3), _try(2, 2, "ok", 5), _try(1, 1, "ok", 1, "u"), _try(0, None, None)]
    found = summarize_runs(tries, 3)
    assert found.runs == Count(value=3, relation="gte")
    assert found.since == NOW
    assert sorted(found.lateness().values()) == [1000, 1000]
    told = found.tasks()
    assert [(t.task, t.attempts, t.failures, t.seconds) for t in told.items] == [("t", 2, 1, 8.0), ("u", 1, 0, 1.0)]
    assert told.looked_at == Count(value=3, relation="gte")
    assert summarize_runs(tries, 4).runs.relation == "eq"
    assert summarize_runs([], 4).busiest(3) == []


async def test_an_installation_that_has_just_begun(api: httpx2.AsyncClient) -> None:
    found = (await api.get(f"{API}/overview")).json()
    problem = {
        "kind": "no_scheduler",
        "tone": "bad",
        "text": "No scheduler holds a shard: nothing fires.",
        "count": {"value": 1, "relation": "eq"},
        "link": "cluster",
        "fix": "bellringer scheduler",
    }
    assert found["verdict"] == {"tone": "bad", "text": problem["text"], "problems": [problem]}
    assert found["jobs"]["total"] == {"value": 0, "relation": "eq"}
    assert found["scheduler"]["shards"] == {"total": 64, "held": 0, "free": 64}
    assert (found["timeline"]["lanes"], found["tasks"]["items"]) == ([], [])
    assert 60 <= len(found["series"]["points"]) <= 61


@pytest.mark.parametrize(("chosen", "step", "points"), [("1h", 60, 60), ("6h", 300, 72), ("24h", 900, 96)])
async def test_the_series_has_a_point_for_each_step(
    api: httpx2.AsyncClient, chosen: str, step: int, points: int
) -> None:
    found = (await api.get(f"{API}/overview", params={"range": chosen})).json()
    assert (found["range"], found["series"]["step"]) == (chosen, step)
    assert points <= len(found["series"]["points"]) <= points + 1


async def test_what_happened_is_reported(api: httpx2.AsyncClient, store: Store, work: Work) -> None:
    job = (await api.post(f"{API}/jobs", json={"name": "a", "task": "demo", "schedule": {"every": "10m"}})).json()
    await api.post(f"{API}/jobs/a/run", json={})
    assert await work(OK) == 1
    await api.post(f"{API}/jobs/a/run", json={})
    assert await work(FAILED) == 1
    await api.post(f"{API}/jobs/a/run", json={})
    await store.pool.execute(
        "insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at)"
        " values ($1, 1, 'dead', now(), now(), now())",
        UUID(job["job_id"]),
    )
    await store.pool.execute(
        "insert into usage (minute, pool_id, tenant_id, started, late) values (now(), 1, 1, 30, 10)"
    )
    found = (await api.get(f"{API}/overview")).json()
    assert found["jobs"]["total"] == {"value": 1, "relation": "eq"}
    assert found["jobs"]["failing"] == found["dead_letters"] == {"value": 1, "relation": "eq"}
    assert found["workers"] == {"live": 1, "slots": 4, "busy": 0}
    [short] = [p for p in found["pools"] if p["pool"] == "short"]
    assert (short["ready"]["value"], short["workers"], short["slots"]) == (1, 1, 4)
    assert short["oldest"] >= 0
    assert (found["timing"]["started"], found["timing"]["late"]) == (30, 10)
    assert found["timing"]["burn"] > 1
    points = found["series"]["points"]
    assert (sum(p["started"] for p in points), sum(p["failed"] for p in points)) == (30, 1)
    assert sum(p["succeeded"] for p in points) == 1
    [lane] = found["timeline"]["lanes"]
    assert (lane["job"], sorted(bar["state"] for bar in lane["runs"])) == ("a", ["dead", "queued", "succeeded"])
    assert 5 <= len(lane["fires"]) <= 6
    [task] = found["tasks"]["items"]
    assert (task["task"], task["attempts"], task["failures"]) == ("demo", 2, 1)
    assert {"failing", "dead_letters", "objective"} <= {item["kind"] for item in found["attention"]}


async def test_a_paused_job_has_no_fires_to_come(api: httpx2.AsyncClient) -> None:
    await api.post(f"{API}/jobs", json={"name": "a", "task": "demo", "schedule": {"every": "10s"}})
    lane = (await api.get(f"{API}/overview")).json()["timeline"]["lanes"][0]
    assert (len(lane["fires"]), lane["more"]) == (60, True)
    await api.post(f"{API}/jobs/a/pause", json={})
    found = (await api.get(f"{API}/overview")).json()
    # Where ten seconds end between the two, what it was owed until its pause is born, and has a lane.
    assert [fire for lane in found["timeline"]["lanes"] for fire in lane["fires"]] == []
    assert found["jobs"]["paused"]["value"] == 1


async def test_a_range_that_is_not_known_is_refused(api: httpx2.AsyncClient) -> None:
    refused = await api.get(f"{API}/overview", params={"range": "2h"})
    assert (refused.status_code, refused.json()["hint"]) == (422, "use 1h, 6h, 24h")


async def test_what_waits_longest_is_found_whatever_its_priority(store: Store, api: httpx2.AsyncClient) -> None:
    for priority in (9, 5, 1):
        await api.post(f"{API}/jobs/execute", json={"task": "demo", "priority": priority})
    await store.pool.execute("update queue set available_at = available_at - interval '1 hour' where priority = 1")
    [short] = [p for p in await stored.pool_backlogs(store, 1) if p.pool == "short"]
    assert short.ready == 3
    assert short.since is not None
    assert await store.now() - short.since > timedelta(minutes=59)


async def test_runs_are_counted_by_state(api: httpx2.AsyncClient, work: Work) -> None:
    await api.post(f"{API}/jobs", json={"name": "a", "task": "demo"})
    await api.post(f"{API}/jobs/a/run", json={})
    assert await work(OK) == 1
    await api.post(f"{API}/jobs/execute", json={"task": "demo"})
    await api.post(f"{API}/jobs/execute", json={"task": "demo", "delay": "1h"})
    found = (await api.get(f"{API}/runs/counts")).json()["states"]
    assert {state: count["value"] for state, count in found.items() if count["value"]} == {
        "queued": 1,
        "succeeded": 1,
        "waiting": 1,
    }
    assert all(count["relation"] == "eq" for count in found.values())
    of_job = (await api.get(f"{API}/runs/counts", params={"job": "a"})).json()["states"]
    assert (of_job["succeeded"]["value"], of_job["queued"]["value"]) == (1, 0)
    assert (await api.get(f"{API}/runs/counts", params={"state": "dead"})).status_code == 422
    assert (await api.get(f"{API}/runs/counts", params={"job": "nowhere"})).status_code == 404


async def test_jobs_in_trouble_are_listed(api: httpx2.AsyncClient, store: Store) -> None:
    for name in ("well", "late", "missed", "dead"):
        job = (await api.post(f"{API}/jobs", json={"name": name, "task": "demo"})).json()
        if name != "well":
            await store.pool.execute(
                "insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at)"
                " values ($1, 1, $2, now(), now(), now())",
                UUID(job["job_id"]),
                name,
            )
    for state, expected in (("failing", ["dead"]), ("late", ["late", "missed"])):
        for sort in ("id", "name"):
            found = (await api.get(f"{API}/jobs", params={"state": state, "sort": sort, "count": "bounded"})).json()
            assert [job["name"] for job in found["items"]] == expected
            assert found["count"]["value"] == len(expected)
