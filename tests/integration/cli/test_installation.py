"""`bellringer tasks`, `pools`, `workers` and `cluster`, against a real server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog, TaskDescription
from bellringer.store.workers import WorkerRegistration

Ask = Callable[..., Awaitable[tuple[str, str]]]


async def _join(store: Store, catalog: Catalog) -> int:
    ids = await catalog.task_ids(["shop.report"])
    schema = json.dumps({"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]})
    defaults = '{"pool": "long", "timeout": 300.0, "retry": {"attempts": 9}}'
    told = TaskDescription(name="shop.report", schema=schema, doc="Write a report.\nMore.", defaults=defaults)
    await catalog.describe_tasks([told])
    who = WorkerRegistration(name="w1", host="h", pid=1, version="1", pools={"long": 4}, task_ids=list(ids.values()))
    return await workers.join(store, who)


async def test_tasks_are_listed_and_shown(ask: Ask, store: Store, catalog: Catalog) -> None:
    shown, beside = await ask("tasks", "list")
    assert (shown, "no tasks" in beside) == ("", True)
    await _join(store, catalog)
    shown, _ = await ask("tasks", "list")
    assert all(
        word in shown for word in ("shop.report", "pool=long", "timeout=5m", "retry=attempts:9", "Write a report.")
    )
    shown, _ = await ask("tasks", "show", "shop.report")
    assert all(word in shown for word in ("w1", "days", "integer"))
    assert json.loads((await ask("tasks", "show", "shop.report", "-o", "json"))[0])["schema"]["required"] == ["days"]
    await ask("tasks", "show", "nothing", code=4)


async def test_pools_are_listed_paused_and_resumed(ask: Ask, store: Store, catalog: Catalog) -> None:
    await _join(store, catalog)
    shown, _ = await ask("pools", "pause", "long", "--reason", "the disk is full")
    assert shown == "paused long; 0 runs continue\n"
    listed = [json.loads(line) for line in (await ask("pools", "list", "-o", "jsonl"))[0].splitlines()]
    long = next(pool for pool in listed if pool["name"] == "long")
    assert (long["name"], long["slots"], long["paused"]["reason"]) == ("long", 4, "the disk is full")
    shown, _ = await ask("pools", "resume", "long")
    assert shown == "resumed long; 0 runs are ready\n"
    await ask("pools", "pause", "nothing", code=4)


async def test_workers_are_made_quiet_and_stopped(ask: Ask, store: Store, catalog: Catalog) -> None:
    number = await _join(store, catalog)
    assert (await ask("workers", "quiet", str(number)))[0] == "w1 finishes its 0 runs and claims no more\n"
    assert (await ask("workers", "stop", str(number)))[
        0
    ] == "w1 finishes its 0 runs within its grace period, and exits\n"
    heartbeat = await workers.record_heartbeat(store, number, 0, "live")
    assert heartbeat is not None
    assert heartbeat.requested == "stop"
    await ask("workers", "stop", "99", code=4)


async def test_shards_and_leases_are_listed(ask: Ask) -> None:
    for part in ("shards", "leases"):
        shown, _ = await ask("cluster", part, "-o", "jsonl")
        assert [json.loads(line)["shard"] for line in shown.splitlines()] == list(range(64))
        assert "SHARD" in (await ask("cluster", part))[0]


async def test_a_pools_bounds_are_set_shown_and_taken_away(ask: Ask) -> None:
    shown, _ = await ask("pools", "set", "short", "--concurrency", "100", "--rate", "50/s", "--timeout", "60s")
    assert all(word in shown for word in ("100", "50/s", "1m"))
    assert "100 at once, 50/s, timeout 1m" in (await ask("pools", "list"))[0]
    await ask("pools", "pause", "short", "--reason", "why")
    await ask("pools", "set", "short", "--rate", "30/m", "--description", "quick ones")
    pool = json.loads((await ask("pools", "show", "short", "-o", "json"))[0])
    assert (pool["concurrency"], pool["rate"], pool["timeout"], pool["description"]) == (100, 0.5, "1m", "quick ones")
    assert pool["paused"]["reason"] == "why", "it rests on"
    await ask("pools", "resume", "short")
    shown, _ = await ask("pools", "set", "short", "--concurrency", "none", "--timeout", "none")
    assert "30/m" in shown
    assert "1m" not in shown


async def test_a_pool_is_made_by_setting_it_and_mistakes_are_reported(ask: Ask) -> None:
    assert "gpu" in (await ask("pools", "set", "gpu", "--description", "with a card"))[0]
    assert "no options are given" in (await ask("pools", "set", "gpu", code=2))[1]
    assert "whole number" in (await ask("pools", "set", "gpu", "--concurrency", "many", code=2))[1]
    await ask("pools", "set", "gpu", "--rate", "fast", code=2)


async def test_a_job_that_is_expected_to_take_long_says_where_it_goes(ask: Ask) -> None:
    shown, _ = await ask("jobs", "create", "nightly", "shop.report", "--expected-duration", "5m")
    assert "long, chosen by duration" in shown
    assert "5m" in shown
    shown, _ = await ask("jobs", "update", "nightly", "--expected-duration", "none")
    assert "short, chosen by duration" in shown
    assert "the job names no pool" not in (await ask("why", "nightly"))[0]
