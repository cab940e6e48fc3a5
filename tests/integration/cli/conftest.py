"""An API server in the test's event loop, and the command line in a separate process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

Ask = Callable[..., Awaitable[tuple[str, str]]]


@pytest.fixture
async def url(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[str]:
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.fixture
def ask(url: str) -> Ask:
    """Run a command against the server; returns its stdout and stderr."""

    async def ask(*arguments: str, code: int = 0) -> tuple[str, str]:
        command = (sys.executable, "-m", "bellringer", *arguments, "--url", url)
        environ = {**os.environ, "TZ": "UTC"}
        called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, stdin=DEVNULL, env=environ)
        shown, beside = await called.communicate()
        assert called.returncode == code, (shown, beside)
        return shown.decode(), beside.decode()

    return ask
