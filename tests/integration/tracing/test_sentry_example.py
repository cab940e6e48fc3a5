"""The Sentry example: a failed attempt becomes an event with the run, sent by Sentry's own transport."""

from __future__ import annotations

import gzip
import json
import runpy
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk

from bellringer.clock import SystemClock
from bellringer.core.runs import Outcome, RunKey, Spec
from bellringer.core.tasks import Registry
from bellringer.worker.attempt import Work
from bellringer.worker.executor import Executor

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "sentry_app.py"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class SentryServer(HTTPServer):
    """Receives envelopes, as Sentry's ingestion does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Envelopes)
        self.events: list[dict[str, Any]] = []
        self.received = threading.Event()

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.server_address[1]}/1"


class _Envelopes(BaseHTTPRequestHandler):
    server: SentryServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        _, *lines = body.splitlines()
        for header, item in zip(lines[::2], lines[1::2], strict=False):
            if json.loads(header).get("type") == "event":
                self.server.events.append(json.loads(item))
                self.server.received.set()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def sentry() -> Iterator[SentryServer]:
    server = SentryServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    sentry_sdk.get_client().close()
    sentry_sdk.init()  # without a DSN: later tests report nothing
    server.shutdown()
    server.server_close()
    thread.join()


async def test_a_failed_attempt_becomes_an_event_with_its_run(
    sentry: SentryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTRY_DSN", sentry.dsn)
    registry: Registry = runpy.run_path(str(EXAMPLE), run_name="sentry_app")["app"].registry
    executor = Executor(registry, clock=SystemClock(), database_now=lambda: NOW, log=lambda _: None)
    key = RunKey(UUID(int=7), NOW - timedelta(seconds=90))
    (task,) = registry.names()
    try:
        for invoice in (7, -1):
            work = Work(
                key=key,
                attempt=2,
                spent=2,
                task=task,
                spec=Spec(kwargs={"invoice": invoice}),
                claimed_at=NOW,
                tenant="acme",
                job="dunning",
            )
            ending = await executor.execute(work)
    finally:
        await executor.close()
    assert ending.outcome is Outcome.FAILED
    sentry_sdk.flush(timeout=5)
    assert sentry.received.wait(5)
    (event,) = sentry.events
    assert event["exception"]["values"][-1]["value"] == "there is no invoice -1"
    tags = {"run_id": key.id, "job": "dunning", "task": task, "tenant": "acme", "attempt": 2}
    assert tags.items() <= event["tags"].items()
    assert event["contexts"]["run"]["lateness"] == "0:01:30"
