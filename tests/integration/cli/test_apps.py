"""Apps, orphans and drift on the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bellringer import App, every
from bellringer.store.connection_pool import Store

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Ask


async def declare(store: Store, *names: str, version: str) -> None:
    made = App(store.dsn, name="billing", version=version)
    for name in names:
        made.schedule(every("1h"))(made.task(name=name)(lambda: None))
    async with made:
        await made.adeclare()


async def test_apps_and_their_orphans_are_listed_and_a_version_activated(store: Store, ask: Ask) -> None:
    await declare(store, "report", "sync", version="1")
    await declare(store, "report", version="2")
    shown, _ = await ask("apps", "list")
    assert shown.splitlines()[1].split()[:2] == ["billing", "2"]
    shown, _ = await ask("jobs", "list", "--orphaned")
    head, line = shown.splitlines()
    assert head.split()[-3:] == ["APP", "VERSION", "ORPHANED"]
    assert line.split()[:2] == ["active", "sync"]
    assert re.search(r"billing\s+1\s+(now|.* ago)$", line)
    shown, _ = await ask("jobs", "list")
    assert "active, orphaned" in shown
    shown, _ = await ask("jobs", "list", "--orphaned")
    assert "sync" in shown
    assert "report" not in shown
    shown, _ = await ask("jobs", "list", "--app", "billing", "-o", "name")
    assert shown.split() == ["report", "sync"]
    shown, _ = await ask("jobs", "get", "sync")
    assert "billing 1" in shown
    assert "the app no longer declares it" in shown
    shown, _ = await ask("why", "sync")
    assert "no longer declares the job" in shown
    shown, _ = await ask("events", "list", "--kind", "orphaned")
    assert "app billing 2 no longer declares the job; last declared by 1; policy keep" in shown
    shown, _ = await ask("apps", "activate", "billing", "1")
    assert "1, first seen" in shown
    shown, _ = await ask("apps", "get", "billing", "-o", "name")
    assert shown == "billing\n"
    await ask("apps", "get", "nobody", code=4)


async def test_drift_is_shown_with_who_changed_what(store: Store, ask: Ask) -> None:
    await declare(store, "sync", version="1")
    await ask("jobs", "update", "sync", "--priority", "9")
    shown, _ = await ask("jobs", "get", "sync")
    assert "priority: 5 in the code, now 9" in shown
    assert "changed by" in shown
    await declare(store, "sync", version="2")
    shown, _ = await ask("events", "list", "--kind", "overridden")
    assert "app billing 2 changed back what" in shown
    assert "priority" in shown
