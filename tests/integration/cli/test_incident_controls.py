"""Incident controls on the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bellringer.store.interned_names import Catalog, TaskDescription

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Ask


SCHEMA = '{"type": "object"}'


async def test_a_task_is_paused_and_resumed(ask: Ask, catalog: Catalog) -> None:
    await catalog.task_ids(["charge"])
    await catalog.describe_tasks([TaskDescription(name="charge", schema=SCHEMA, doc="", defaults="{}")])
    shown, _ = await ask("tasks", "pause", "charge", "--reason", "bank down", "--until", "30m")
    assert shown.startswith("paused charge until ")
    assert "0 runs wait, 0 continue" in shown
    listed, _ = await ask("tasks", "list")
    assert "bank down" in listed
    one, _ = await ask("tasks", "show", "charge", "-o", "json")
    assert json.loads(one)["paused"]["reason"] == "bank down"
    shown, _ = await ask("tasks", "resume", "charge", "--rate", "50/s")
    assert shown == "resumed charge; 0 runs are released at 50/s\n"
    events, _ = await ask("events", "list", "--kind", "task_paused")
    assert "charge" in events


async def test_an_update_is_previewed(ask: Ask) -> None:
    await ask("jobs", "create", "a", "demo", "--attempts", "5")
    start = ("ops", "start", "jobs.update", "--filter", "task=demo")
    shown, _ = await ask(*start, "--set", "retry.attempts=1", "--set", "add_tags=incident,bank", "--dry-run")
    assert "jobs.update: 1" in shown
    assert 'a: {"attempts":5} → {"attempts":1}' in shown
    assert 'a: [] → ["incident","bank"]' in shown
    begun, _ = await ask(*start, "--set", "retry.attempts=1", "--yes", "-o", "json")
    assert json.loads(begun)["changes"] == {"retry": {"attempts": 1}}
    _, beside = await ask(*start, "--set", "retry", "--dry-run", code=2)
    assert "FIELD=VALUE" in beside
