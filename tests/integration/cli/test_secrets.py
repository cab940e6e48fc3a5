"""`bellringer secrets`, against a real server and database."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn
from click.testing import CliRunner

from bellringer.api.app import create_app
from bellringer.cli import cli
from bellringer.clock import SystemClock
from bellringer.egress.secret_box import generate_secret_key
from bellringer.egress.settings import Egress
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Ask

KEY = generate_secret_key("k1")
VALUE = "sk_live_51Hx"


@pytest.fixture
async def url(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[str]:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=Egress.read((), (KEY,)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


async def test_a_secret_is_set_listed_rotated_and_deleted_without_being_shown(
    ask: Ask, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{VALUE}\n")
    shown, _ = await ask(
        "secrets", "set", "stripe", "--from-file", str(tmp_path / "key"), "--task", "pay", "-o", "json"
    )
    made = json.loads(shown)
    assert (made["name"], made["version"], made["tasks"], made["key"]) == ("stripe", 1, ["pay"], "k1")
    listed, _ = await ask("secrets", "list", "-o", "json")
    _, refused = await ask("secrets", "set", "a/b", "--from-file", str(tmp_path / "key"), code=2)
    table, _ = await ask("secrets", "list")
    assert "stripe" in listed
    assert VALUE not in shown + listed + table + refused
    monkeypatch.setenv("BELLRINGER_SECRET_KEYS", f"{generate_secret_key('k2')},{KEY}")
    for expected in (1, 0):  # it can be repeated
        command = ["secrets", "rotate-keys", "--dsn", store.dsn, "-o", "json"]
        done = await asyncio.to_thread(CliRunner().invoke, cli, command)
        assert done.exit_code == 0, done.output
        report = json.loads(done.output)
        assert (report["key"], report["secrets"]) == ("k2", expected)
        assert report["in_use"] == [{"what": "secret", "key": "k2", "count": 1}]
    assert VALUE not in done.output
    deleted, _ = await ask("secrets", "delete", "stripe")
    assert deleted == "deleted stripe\n"
