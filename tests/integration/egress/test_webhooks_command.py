"""`bellringer webhooks`, and a whole server: what an operator and a developer have of it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from tests.integration.egress.conftest import LOOPBACK, Receiver

from bellringer.config import load_config
from bellringer.dev import state_dir
from bellringer.egress.secret_box import generate_secret_key, parse_secret_keys
from bellringer.egress.webhook_signatures import generate_secret, signed_headers, verify_signature
from bellringer.errors import ConfigError


async def call(*arguments: str, code: int = 0, body: bytes | None = None, **environ: str) -> tuple[str, str]:
    """In a process of its own; answers what it printed, and what it said beside."""
    stdin = DEVNULL if body is None else PIPE
    command = (sys.executable, "-m", "bellringer", *arguments)
    env = {**os.environ, "TZ": "UTC", **environ}
    called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, stdin=stdin, env=env)
    shown, beside = await called.communicate(body)
    assert called.returncode == code, (shown, beside)
    return shown.decode(), beside.decode()


@asynccontextmanager
async def served(dsn: str, folder: Path, keys: str) -> AsyncIterator[str]:
    """A real `bellringer server`, with all that runs in it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        **os.environ,
        "BELLRINGER_DSN": dsn,
        "BELLRINGER_AUTH": "none",
        "BELLRINGER_SECRET_KEYS": keys,
        "BELLRINGER_EGRESS_ALLOW": ",".join(LOOPBACK),
    }
    command = (sys.executable, "-m", "bellringer", "server", "--port", str(port))
    process: Process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, env=environ, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(60), httpx2.AsyncClient(trust_env=False) as client:
            while not await _is_ready(client, url):
                assert process.returncode is None
                await asyncio.sleep(0.1)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60):
            await process.wait()


async def _is_ready(client: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/readyz")).status_code == 200
    except httpx2.TransportError:
        return False


async def test_a_server_calls_what_its_jobs_name_and_reports_events(
    dsn: str, tmp_path: Path, receiver: Receiver
) -> None:
    async with served(dsn, tmp_path, generate_secret_key("k1")) as url:
        shown, beside = await call("webhooks", "create", receiver.url, "--kind", "dead", "--url", url)
        facts = dict(line.split(maxsplit=1) for line in shown.splitlines())
        assert "not shown again" in beside
        secret = facts["secret"]
        shown, _ = await call("webhooks", "test", facts["endpoint"], "--wait", "60", "--url", url)
        assert shown.endswith("was delivered\n")
        [sent] = receiver.received
        assert verify_signature(secret, sent.headers, sent.body, datetime.now(UTC)) is None
        # A job whose call dies becomes an event, and the event a call.
        target = {"url": receiver.url, "method": "PUT", "expect": [299]}
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=20) as client:
            made = await client.post("/api/v1/jobs/execute", json={"http": target, "retry": 1})
        assert made.status_code == 202, made.text
        async with asyncio.timeout(60):
            while len(receiver.received) < 3:  # noqa: ASYNC110 - another process tells nobody here
                await asyncio.sleep(0.05)
        told = json.loads(receiver.received[2].body)
        assert (told["type"], told["data"]["run_id"]) == ("run.dead", made.json()["run_id"])
        shown, _ = await call("webhooks", "deliveries", facts["endpoint"], "-o", "json", "--url", url)
        newest, first = json.loads(shown)
        assert [newest["kind"], first["kind"]] == ["dead", "test"]
        shown, _ = await call("webhooks", "replay", first["delivery_id"], "--url", url)
        assert "is being sent again as run_" in shown
        shown, _ = await call("webhooks", "rotate", facts["endpoint"], "-o", "json", "--url", url)
        assert json.loads(shown)["new_secret"] != secret
        await call("webhooks", "disable", facts["endpoint"], "--url", url)
        shown, _ = await call("webhooks", "list", "--url", url)
        assert "off: switched off" in shown
        await call("webhooks", "enable", facts["endpoint"], "--url", url)
        await call("webhooks", "delete", facts["endpoint"], "--url", url)
        _, beside = await call("webhooks", "list", "--url", url)
        assert "no webhook endpoints" in beside


async def test_a_request_is_verified_offline() -> None:
    secret, body = generate_secret(), b'{"type":"run.dead"}'
    headers = signed_headers([secret], "run_1", datetime.now(UTC), body)
    options = (
        "--id=run_1",
        f"--timestamp={headers['webhook-timestamp']}",
        f"--signature={headers['webhook-signature']}",
    )
    shown, _ = await call("webhooks", "verify", *options, body=body, WEBHOOK_SECRET=secret)
    assert shown == "the signature is valid\n"
    _, beside = await call("webhooks", "verify", *options, body=body + b" ", code=1, WEBHOOK_SECRET=secret)
    assert "the signature is not valid" in beside
    old = signed_headers([secret], "run_1", datetime(2020, 1, 1, tzinfo=UTC), body)
    stale = ("--id=run_1", f"--timestamp={old['webhook-timestamp']}", f"--signature={old['webhook-signature']}")
    _, beside = await call("webhooks", "verify", *stale, body=body, code=1, WEBHOOK_SECRET=secret)
    assert "5 minutes" in beside
    shown, _ = await call("webhooks", "verify", *stale, "--any-time", body=body, WEBHOOK_SECRET=secret)
    assert shown == "the signature is valid\n"


def test_a_developer_has_a_key_that_only_he_can_read(tmp_path: Path) -> None:
    key = state_dir.secret_key(tmp_path)
    assert state_dir.secret_key(tmp_path) == key
    assert parse_secret_keys([key]) is not None
    assert stat.S_IMODE((tmp_path / state_dir.KEY_FILE).stat().st_mode) == 0o600


def test_lists_in_the_settings_are_divided_by_commas_and_keys_are_never_shown(tmp_path: Path) -> None:
    keys = [generate_secret_key("a"), generate_secret_key("b")]
    environ = {"BELLRINGER_SECRET_KEYS": ", ".join(keys), "BELLRINGER_EGRESS_ALLOW": "10.0.0.0/8,::1/128"}
    config = load_config(environ=environ, folder=tmp_path)
    assert (config.secret_keys, config.egress_allow) == (tuple(keys), ("10.0.0.0/8", "::1/128"))
    (tmp_path / "bellringer.toml").write_text(f'secret_keys = ["{keys[0]}", 7]\nhttp_slots = 3\n')
    with pytest.raises(ConfigError) as caught:
        load_config(environ={}, folder=tmp_path)
    assert keys[0] not in str(caught.value)
    with pytest.raises(ConfigError, match="http-slots"):
        load_config({"http_slots": -1}, environ=environ, folder=tmp_path.parent)
