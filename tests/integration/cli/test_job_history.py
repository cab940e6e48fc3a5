"""`bellringer jobs import | skip | unskip | revisions | rollback`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.cli.conftest import Ask

from bellringer.client import AsyncClient
from bellringer.store.connection_pool import Store


async def test_jobs_are_imported_line_by_line(ask: Ask, store: Store, tmp_path: Path) -> None:
    lines = [json.dumps({"name": f"job {n}", "task": "demo", "schedule": {"every": "1h"}}) for n in range(30)]
    file = tmp_path / "jobs.ndjson"
    file.write_text("\n".join([*lines, ""]))
    shown, _ = await ask("jobs", "import", str(file))
    assert shown == "created 30 jobs\n"
    file.write_text("\n".join([lines[3], json.dumps({"name": "new", "task": "demo"})]))
    shown, beside = await ask("jobs", "import", str(file), "--each", code=1)
    assert shown == "created 1 jobs, 1 failed\n"
    assert "line 1: a job with that name already exists" in beside
    assert await store.pool.fetchval("select count(*) from jobs") == 31
    file.write_text("{")
    _, beside = await ask("jobs", "import", str(file), code=2)
    assert "line 1 is not JSON" in beside


async def test_an_occurrence_is_skipped_and_a_change_is_taken_back(ask: Ask, url: str) -> None:
    async with AsyncClient(url) as client:
        job = await client.put_job("nightly", {"task": "demo", "schedule": {"cron": "0 3 * * *"}})
        assert job.next_at is not None
        at = job.next_at.isoformat()
        shown, _ = await ask("jobs", "skip", "nightly", at, "--reason", "a release")
        assert "nightly will not run at" in shown
        assert [s.reason for s in (await client.skips("nightly")).items] == ["a release"]
        await ask("jobs", "unskip", "nightly", at)
        assert (await client.skips("nightly")).items == []
        await client.put_job("nightly", {"task": "demo", "priority": 9}, revision=1)
        shown, _ = await ask("jobs", "revisions", "nightly", "--show", "2")
        assert "priority" in shown
        shown, _ = await ask("jobs", "revisions", "nightly", "-o", "json")
        assert [r["what"] for r in json.loads(shown)] == ["changed", "created"]
        shown, _ = await ask("jobs", "rollback", "nightly", "1")
        assert "this is revision 3" in shown
        assert (await client.job("nightly")).priority == 5
        made = await client.create_jobs([{"name": f"j{n}", "task": "demo"} for n in range(3)])
        assert isinstance(made.job_ids, list)
        assert (made.created, len(made.job_ids)) == (3, 3)
        await client.delete_job("nightly", runs="cancel")
        assert [j.name for j in (await client.jobs(prefix="j", sort="name")).items] == ["j0", "j1", "j2"]
