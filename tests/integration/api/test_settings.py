"""The settings of a server: each with its source, secrets never, and only for who runs the installation."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import httpx2
import msgspec
import pytest
import uvicorn

from bellringer.access.api_keys import generate_api_key
from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.config import Config, DescribedSetting, describe_settings, load_config
from bellringer.store import api_keys
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.wire.overview import Setting

ROOT = "r" * 40
TOLD = [
    Setting(name="port", value=9000, secret=False, source="flag", where="--port"),
    Setting(name="root_key", value="set", secret=True, source="environment", where="BELLRINGER_ROOT_KEY"),
    Setting(name="egress_allow", value=["10.1.0.0/16"], secret=False, source="file", where="bellringer.toml"),
    Setting(name="host", value="127.0.0.1", secret=False, source="default", where=""),
]


def test_each_setting_shows_its_source(tmp_path: Path) -> None:
    (tmp_path / "bellringer.toml").write_text('port = 1001\nlead = "2s"\negress_allow = ["10.1.0.0/16"]\n')
    environ = {"BELLRINGER_PORT": "1002", "BELLRINGER_ROOT_KEY": ROOT}
    flags = {"port": 1003, "host": None}
    config = load_config(flags, environ=environ, folder=tmp_path)
    found = {s.name: s for s in describe_settings(config, flags, environ=environ, folder=tmp_path)}
    assert set(found) == set(Config.__struct_fields__)
    assert found["port"] == DescribedSetting("port", 1003, secret=False, source="flag", where="--port")
    assert found["lead"] == DescribedSetting("lead", "2s", secret=False, source="file", where="bellringer.toml")
    assert found["egress_allow"].value == ["10.1.0.0/16"]
    assert found["root_key"] == DescribedSetting(
        "root_key", "set", secret=True, source="environment", where="BELLRINGER_ROOT_KEY"
    )
    assert found["jwt_secret"] == DescribedSetting("jwt_secret", "not set", secret=True, source="default", where="")
    assert found["host"].source == "default"


def test_a_database_that_no_one_named_is_that_of_dev(tmp_path: Path) -> None:
    [dsn] = [
        s for s in describe_settings(Config(dsn="postgresql://h/d"), environ={}, folder=tmp_path) if s.name == "dsn"
    ]
    assert (dsn.value, dsn.source) == ("postgresql://h/d", "dev")


@pytest.mark.parametrize(
    ("field", "given", "shown"),
    [
        ("dsn", "postgresql://u:p@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("dsn", "postgresql://u:a@b/c@h/d", "postgresql://u:***@h/d"),
        ("dsn", "postgresql://h/d?password=abc&x=1", "postgresql://h/d?password=***&x=1"),
        ("dsn", "host=h password='a b' user=u", "host=h password=*** user=u"),
        ("read_dsn", "postgresql://u@h/d", "postgresql://u@h/d"),
        ("cache", "redis://:pw@h:6379/0", "redis://:***@h:6379/0"),
        ("dispatch", "kafka://h:9092/p?sasl.password=q", "kafka://h:9092/p?sasl.password=***"),
        ("url", "http://127.0.0.1:8700", "http://127.0.0.1:8700"),
    ],
)
def test_no_password_is_shown(field: str, given: str, shown: str, tmp_path: Path) -> None:
    config = msgspec.structs.replace(Config(), **{field: given})
    [found] = [s for s in describe_settings(config, environ={}, folder=tmp_path) if s.name == field]
    assert found.value == shown


def test_no_secret_is_shown(tmp_path: Path) -> None:
    config = Config(root_key=ROOT, jwt_secret="hush", key="br_hush", secret_keys=("k1:hush",))
    text = json.dumps([s._asdict() for s in describe_settings(config, environ={}, folder=tmp_path)])
    assert "hush" not in text
    assert ROOT not in text


async def test_who_runs_the_installation_reads_them(store: Store, catalog: Catalog, tenants: Store) -> None:
    authenticator = Authenticator(store, catalog, AuthSettings(root_key=ROOT))
    app = create_app(
        store,
        catalog,
        tenants,
        version="1",
        clock=SystemClock(),
        authenticator=authenticator,
        settings=TOLD,
        roles=["api", "scheduler"],
    )
    key = generate_api_key()
    await api_keys.add(store, key, tenant_id=1, name="k", role="admin", who="test")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as api:

        async def get(given: str) -> httpx2.Response:
            return await api.get("/api/v1/settings", headers={"Authorization": f"Bearer {given}"})

        found = await get(ROOT)
        assert found.status_code == 200
        assert [item["name"] for item in found.json()["items"]] == [setting.name for setting in TOLD]
        process = {"host": socket.gethostname(), "pid": os.getpid(), "roles": ["api", "scheduler"]}
        assert found.json()["process"] == process
        assert (await get(key.text)).status_code == 404  # to a tenant's caller it is not there
        assert (await api.get("/api/v1/settings")).status_code == 401


async def test_the_command_shows_them(store: Store, catalog: Catalog, tenants: Store) -> None:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), settings=TOLD)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        async def ask(*arguments: str) -> str:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            command = (sys.executable, "-m", "bellringer", "settings", *arguments, "--url", url)
            called = await asyncio.create_subprocess_exec(
                *command, stdout=PIPE, stderr=PIPE, stdin=DEVNULL, env={**os.environ, "TZ": "UTC"}
            )
            shown, beside = await called.communicate()
            assert called.returncode == 0, beside
            return shown.decode()

        shown = await ask()
        assert [line.split() for line in shown.splitlines()] == [
            ["SETTING", "VALUE", "SOURCE"],
            ["port", "9000", "--port"],
            ["root_key", "set", "BELLRINGER_ROOT_KEY"],
            ["egress_allow", '["10.1.0.0/16"]', "bellringer.toml"],
            ["host", "127.0.0.1", "default"],
        ]
        assert (await ask("--changed", "-o", "name")).split() == ["port", "root_key", "egress_allow"]
        assert len(json.loads(await ask("-o", "json"))) == 4
        server.should_exit = True
        await serving
