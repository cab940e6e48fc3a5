"""`bellringer server` as it is started: it asks everyone who they are, and believes nobody where they come from."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import jwt

ROOT: Final = "r" * 40
WHOAMI: Final = "/api/v1/whoami"
KEY: Final = {"Authorization": f"Bearer {ROOT}"}
PATIENCE: Final = 60.0


@asynccontextmanager
async def server(dsn: str, *arguments: str, **environ: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A server of its own process, and a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        command = (sys.executable, "-m", "bellringer", "server", "--no-scheduler", *arguments)
        process = await asyncio.create_subprocess_exec(
            *command,
            "--listening-fd",
            str(listening.fileno()),
            pass_fds=[listening.fileno()],
            env={**os.environ, "BELLRINGER_DSN": dsn, "BELLRINGER_ROOT_KEY": ROOT, **environ},
            stdin=DEVNULL,
            stdout=DEVNULL,
        )
        try:
            async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
                assert (await client.get("/healthz")).status_code == 200
                yield client
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE)


async def test_a_server_asks_for_a_login_also_on_this_machine(dsn: str) -> None:
    async with server(dsn) as client:
        assert (await client.get(WHOAMI)).status_code == 401
        assert (await client.get("/metrics")).status_code == 401
        seen = (await client.get(WHOAMI, headers={**KEY, "X-Forwarded-For": "203.0.113.9"})).json()
        assert (seen["who"], seen["origin"]) == ("root", "127.0.0.1")


async def test_where_a_caller_comes_from_is_taken_from_a_trusted_proxy_alone(dsn: str) -> None:
    async with server(dsn, BELLRINGER_TRUSTED_PROXIES="127.0.0.1") as client:
        seen = (await client.get(WHOAMI, headers={**KEY, "X-Forwarded-For": "203.0.113.9"})).json()
        assert seen["origin"] == "203.0.113.9"


async def test_tokens_of_the_configured_issuer_are_taken(dsn: str) -> None:
    settings = {
        "BELLRINGER_JWT_SECRET": "s" * 40,
        "BELLRINGER_JWT_ISSUER": "https://id",
        "BELLRINGER_JWT_AUDIENCE": "bell",
    }
    said = {"iss": "https://id", "aud": "bell", "sub": "ada", "tenant": "default", "role": "viewer"}
    async with server(dsn, **settings) as client:
        ends = int(time.time()) + 600
        good = jwt.encode({**said, "exp": ends}, "s" * 40, "HS256")
        seen = (await client.get(WHOAMI, headers={"Authorization": f"Bearer {good}"})).json()
        assert (seen["who"], seen["role"], seen["tenant"]) == ("user:ada", "viewer", "default")
        other = jwt.encode({**said, "exp": ends, "aud": "other"}, "s" * 40, "HS256")
        assert (await client.get(WHOAMI, headers={"Authorization": f"Bearer {other}"})).status_code == 401


async def test_insecure_asks_no_one(dsn: str) -> None:
    async with server(dsn, "--insecure") as client:
        seen = (await client.get(WHOAMI, headers={"Host": "bell.example"})).json()
        assert (seen["who"], seen["role"], seen["everywhere"]) == ("local", "admin", True)


async def test_without_auth_this_machine_alone_is_let_in(dsn: str) -> None:
    async with server(dsn, BELLRINGER_AUTH="none") as client:
        assert (await client.get(WHOAMI)).json()["who"] == "local"
        assert (await client.get(WHOAMI, headers={"Host": "bell.example"})).status_code == 401
