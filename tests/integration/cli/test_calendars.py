"""`bellringer calendars`, `freezes` and `tenants`, against a real server and database."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from bellringer.api.endpoints import calendars
from bellringer.core.jobs import Definition
from bellringer.engine.register import create
from bellringer.schedule import cron
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

ICS = """BEGIN:VCALENDAR
BEGIN:VEVENT
DTSTART;VALUE=DATE:20301225
RRULE:FREQ=YEARLY;COUNT=2
END:VEVENT
END:VCALENDAR
"""


async def call(*arguments: str, code: int = 0) -> tuple[str, str]:
    """In a process of its own; answers what it printed, and what it said beside."""
    command = (sys.executable, "-m", "bellringer", *arguments)
    environ = {**os.environ, "TZ": "UTC"}
    called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, stdin=DEVNULL, env=environ)
    shown, beside = await called.communicate()
    assert called.returncode == code, (shown, beside)
    return shown.decode(), beside.decode()


async def test_a_calendar_is_put_read_listed_and_deleted(url: str, tmp_path: Path) -> None:
    file = tmp_path / "holidays.ics"
    file.write_text(ICS)
    shown, _ = await call("calendars", "put", "de", "--ics", str(file), "--url", url)
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (facts["calendar"], facts["weekend"]) == ("de, version 1", "SAT, SUN")
    assert (facts["days"], facts["next"]) == ("2", "2030-12-25, 2031-12-25")
    dates = ("--date", "2030-05-01", "--date", "2030-10-03")
    shown, _ = await call("calendars", "put", "de", *dates, "--weekend", "FRI", "-o", "json", "--url", url)
    document = json.loads(shown)
    assert (document["version"], document["weekend"], document["dates"]) == (2, ["FRI"], ["2030-05-01", "2030-10-03"])
    shown, _ = await call("calendars", "get", "de", "-o", "json", "--url", url)
    assert json.loads(shown) == document
    shown, _ = await call("calendars", "list", "--url", url)
    assert shown.splitlines()[1].split() == ["de", "2", "FRI", "2", "2030-05-01", "0"]
    await call("calendars", "delete", "de", "--url", url)
    _, beside = await call("calendars", "get", "de", "--url", url, code=4)
    assert beside.startswith(f"error: there is no calendar 'de' on {url}")


async def test_put_goes_on_until_all_jobs_follow(
    url: str, store: Store, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calendars, "MAX_JOBS_UPDATED", 2)
    await call("calendars", "put", "de", "--url", url)
    schedule = cron("0 9 * * *", calendar="de")
    definitions = [Definition(name=f"job {n}", task="demo", schedules=(schedule,)) for n in range(5)]
    await create(store, catalog, definitions, tenant_id=1, who="me")
    shown, beside = await call("calendars", "put", "de", "--no-weekend", "-o", "json", "--url", url)
    assert beside == "updating 3 jobs …\nupdating 1 jobs …\n"
    document = json.loads(shown)
    assert (document["version"], document["jobs"], document["outdated"]) == (2, 5, 0)
    _, beside = await call("calendars", "delete", "de", "--url", url, code=5)
    assert "job 0" in beside
    assert "hint: remove the calendar from these jobs first" in beside


async def test_put_stops_where_jobs_do_not_follow(url: str, store: Store, catalog: Catalog) -> None:
    await call("calendars", "put", "de", "--url", url)
    bad = Definition(name="bad", task="demo", schedules=(cron("0 9 * * *", calendar="de"),))
    await create(store, catalog, [bad], tenant_id=1, who="me")
    await store.pool.execute("update jobs set priority = 42")
    _, beside = await call("calendars", "put", "de", "--no-weekend", "--url", url, code=2)
    assert "1 jobs could not be updated" in beside


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--date", "2030-01-01", "--weekend", "SOON"], "'SOON' is not a day of the week"),
        (["--date", "tomorrow"], "'tomorrow' is not a date"),
        (["--weekend", "SAT", "--no-weekend"], "both given"),
    ],
    ids=["weekend", "date", "both"],
)
async def test_a_wrong_call_says_what(url: str, arguments: list[str], error: str) -> None:
    _, beside = await call("calendars", "put", "de", *arguments, "--url", url, code=2)
    assert error in beside
    assert "hint: " in beside


async def test_a_freeze_is_created_listed_and_lifted(url: str) -> None:
    made, _ = await call(
        "freezes", "create", "black friday", "--to", "2h", "--tag", "a", "--policy", "skip", "-o", "name", "--url", url
    )
    shown, _ = await call("freezes", "list", "--url", url)
    row = shown.splitlines()[1]
    assert row.startswith(made.strip())
    assert "black friday" in row
    assert " active " in row
    assert " skip " in row
    shown, _ = await call("freezes", "lift", "black friday", "--url", url)
    assert shown == "lifted black friday; 0 runs released\n"
    shown, _ = await call("freezes", "list", "-o", "json", "--url", url)
    assert [f["state"] for f in json.loads(shown)] == ["over"]
    _, beside = await call("freezes", "lift", "black friday", "--url", url, code=4)
    assert beside.startswith(f"error: there is no freeze 'black friday' on {url}")
    assert (await call("freezes", "lift", made.strip(), "--url", url))[0] == f"{made.strip()} had already ended\n"
    shown, _ = await call("freezes", "create", "y", "--to", "1h", "--tag", "nosuch", "--url", url)
    assert "jobs tagged nosuch: 0 now" in shown
    _, beside = await call("freezes", "create", "x", "--to", "2y", "--url", url, code=2)
    assert "hint: " in beside


async def test_a_tenant_is_suspended_and_goes_on(dsn: str, store: Store) -> None:
    suspended = "select suspended_at is not null from tenants where name = 'default'"
    assert (await call("tenants", "suspend", "default", "--dsn", dsn))[0] == "suspended default\n"
    assert await store.pool.fetchval(suspended)
    assert (await call("tenants", "suspend", "default", "--dsn", dsn))[0] == "default is already suspended\n"
    assert (await call("tenants", "unsuspend", "default", "--dsn", dsn))[0] == "unsuspended default\n"
    assert not await store.pool.fetchval(suspended)
    _, beside = await call("tenants", "suspend", "nobody", "--dsn", dsn, code=4)
    assert "there is no tenant 'nobody'" in beside
