"""`bellringer keys`, `tenants`, `whoami` and `limits`, against a real server that asks everyone who they are."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest
import uvicorn

from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

ROOT: Final = "r" * 40

Call = Callable[..., Awaitable[tuple[str, str]]]


@pytest.fixture
async def url(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[str]:
    authenticator = Authenticator(store, catalog, AuthSettings(root_key=ROOT))
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock(), authenticator=authenticator)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.fixture
def call(url: str) -> Call:
    """Call a command by a key; answers what it printed, and what it said beside."""

    async def call(*arguments: str, key: str | None = ROOT, code: int = 0) -> tuple[str, str]:
        environ = {**os.environ, "TZ": "UTC", "BELLRINGER_URL": url, **({"BELLRINGER_KEY": key} if key else {})}
        command = (sys.executable, "-m", "bellringer", *arguments)
        called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, stdin=DEVNULL, env=environ)
        shown, beside = await called.communicate()
        assert called.returncode == code, (shown, beside)
        return shown.decode(), beside.decode()

    return call


async def test_a_key_is_made_used_rotated_and_revoked(call: Call) -> None:
    key = (await call("keys", "create", "deploy", "--role", "editor", "--scope", "jobs", "-o", "key"))[0].strip()
    assert key.startswith("br_")
    seen = json.loads((await call("whoami", "-o", "json", key=key))[0])
    assert (seen["who"], seen["role"], seen["scopes"]) == ("key:deploy", "editor", ["jobs"])
    table, beside = await call("keys", "rotate", key.split("_")[1], "--grace", "10m")
    assert "deploy" in table
    assert "not shown again" in beside
    listed = json.loads((await call("keys", "list", "-o", "json"))[0])
    assert [item["replaced_by"] is not None for item in listed] == [True, False]
    assert key not in json.dumps(listed)
    assert (await call("keys", "revoke", listed[1]["key_id"]))[0] == f"revoked {listed[1]['key_id']}\n"
    shown, _ = await call("keys", "list")
    assert "revoked" in shown


async def test_without_a_key_the_error_says_how_to_get_one(call: Call) -> None:
    _, beside = await call("jobs", "list", key=None, code=7)
    assert "a valid key or token is required" in beside
    assert "BELLRINGER_KEY" in beside
    viewer = (await call("keys", "create", "v", "--role", "viewer", "-o", "key"))[0].strip()
    _, beside = await call("jobs", "delete", "x", "--yes", "--key", viewer, code=7)
    assert "this needs the role editor" in beside


async def test_the_first_key_comes_from_the_database(call: Call, dsn: str) -> None:
    key = (await call("keys", "create", "first", "--role", "admin", "--dsn", dsn, "-o", "key", key=None))[0].strip()
    assert "default" in (await call("whoami", key=key))[0]
    master = await call("keys", "create", "all", "--role", "viewer", "--everywhere", "--dsn", dsn, key=None)
    seen = await call("whoami", key=json.loads(master[0])["key"])
    assert "--tenant selects others" in seen[0]
    _, beside = await call("keys", "create", "x", "--role", "admin", "--dsn", dsn, "--expires", "1d", code=2)
    assert "--expires" in beside


async def test_tenants_and_their_limits(call: Call) -> None:
    made, _ = await call("tenants", "create", "acme", "--quota", "jobs=1", "--weight", "2")
    assert "jobs 1" in made
    key = (await call("keys", "create", "a", "--role", "admin", "--tenant", "acme", "-o", "key"))[0].strip()
    await call("jobs", "create", "one", "demo", "--every", "30s", key=key)
    _, beside = await call("jobs", "create", "two", "demo", "--every", "30s", key=key, code=8)
    assert "may have 1 jobs" in beside
    limits = (await call("limits", key=key))[0].splitlines()
    assert [line.split() for line in limits[1:3]] == [["jobs", "1", "1"], ["fires_per_minute", "2", "–"]]
    await call("tenants", "set", "acme", "--quota", "jobs=none", "--quota", "in_flight=3")
    usage = json.loads((await call("tenants", "usage", "acme", "-o", "json"))[0])
    assert {q["name"]: q["most"] for q in usage["items"]}["in_flight"] == 3
    assert "acme" in (await call("tenants", "list"))[0]
    assert "one" in (await call("jobs", "list", "--tenant", "acme"))[0]
    _, beside = await call("tenants", "list", key=key, code=4)
    assert "this path does not exist" in beside
    await call("tenants", "set", "acme", code=2)
    await call("tenants", "set", "acme", "--quota", "jbos=1", code=2)
