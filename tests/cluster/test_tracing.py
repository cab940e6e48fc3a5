"""Traces across real processes: a caller, a server with its scheduler, a worker and its child processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from tests.cluster.roles import Roles
from tests.support.trace_collector import CollectedSpan, TraceCollector, collect_traces

from bellringer.testing.postgres import TestServer

pytestmark = pytest.mark.cluster

PRODUCER, CONSUMER = 4, 5
CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01", "tracestate": "vendor=1"}
APP = """
import logging
from opentelemetry import trace
from bellringer import App, Context, Retry, after, every

app = App()
tracer = trace.get_tracer("shop")


@app.task
async def charge(invoice: int) -> str:
    with tracer.start_as_current_span("charge the card"):
        logging.getLogger("shop").warning("charging %s", invoice)
        await receipt.asend(invoice)
    return "charged"


@app.task
def receipt(invoice: int) -> None:
    with tracer.start_as_current_span("print the receipt"):
        pass


@app.task
def book() -> None:
    with tracer.start_as_current_span("book the order"):
        render.send(2)
        app.send_many([flaky.message(), render.message(3)])


@app.task(isolation="process")
def render(page: int) -> None:
    with tracer.start_as_current_span("draw the page"):
        pass


@app.task(retry=Retry(delays=["50ms"]))
def flaky(ctx: Context) -> None:
    if ctx.attempt < 2:
        raise ConnectionError("the bank does not answer")


@app.schedule(every("1s"), name="pulse", overlap="allow")
@app.task
async def beat() -> None:
    with tracer.start_as_current_span("one beat"):
        pass


@app.schedule(every("1h"), name="loading")
@app.task
def load() -> int:
    return 1


@app.schedule(after("loading"), name="reporting")
@app.task
def report() -> None:
    pass
"""


class TracedCluster:
    """A server and a worker that export their spans to a collector."""

    def __init__(self, roles: Roles, collector: TraceCollector) -> None:
        self.collector = collector
        self._roles = roles
        settings = {"tracing": "on", "auth": "none", "log_attempts": "true", "egress_allow": "127.0.0.0/8"}
        self.worker = roles.worker(**settings)
        self.server = roles.server(with_scheduler=True, **settings)
        self.api = httpx2.Client(base_url=f"{roles.url}/api/v1", timeout=20)

    def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        response = self.api.post(path, json=body, headers=headers or {})
        assert response.status_code in (200, 202), response.text
        found: dict[str, Any] = response.json()
        return found

    def attempts(self, run_id: str, count: int = 1) -> list[CollectedSpan]:
        """Wait for the spans of a run's attempts."""
        found = self.collector.wait(lambda span: span.attributes.get("bellringer.run_id") == run_id, count)
        return sorted(found, key=lambda span: int(span.attributes["bellringer.attempt"]))

    def one(self, name: str, trace_id: str) -> CollectedSpan:
        found = self.collector.wait(lambda span: (span.name, span.trace_id) == (name, trace_id))
        assert len(found) == 1
        return found[0]

    def log_lines(self) -> list[dict[str, Any]]:
        """The lines that the worker has logged."""
        return [json.loads(line) for line in self._roles.said(self.worker).splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def cluster(bellringer_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedCluster]:
    folder = tmp_path_factory.mktemp("traced")
    with bellringer_server.plain_database() as dsn, collect_traces() as collector:
        roles = Roles(folder, dsn, app=APP, environment=collector.environment())
        made = TracedCluster(roles, collector)
        try:
            wait_for_server(made.api)
            yield made
        finally:
            made.api.close()
            roles.end()


def wait_for_server(api: httpx2.Client) -> None:
    """Wait until the server responds and the worker has joined."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(httpx2.TransportError):
            if any("short" in worker["pools"] for worker in api.get("/workers").json()["items"]):
                return
        time.sleep(0.05)
    pytest.fail("the cluster has not started within two minutes")


def test_a_send_its_run_and_the_spans_of_handlers_are_one_trace(cluster: TracedCluster) -> None:
    run = cluster.post("/jobs/execute", {"task": "app.charge", "kwargs": {"invoice": 7}}, CALLER)

    sent = cluster.one("send app.charge", CALLER_TRACE)
    assert (sent.parent_id, sent.kind, sent.service) == (CALLER_SPAN, PRODUCER, "bellringer-server")
    (attempt,) = cluster.attempts(run["run_id"])
    assert (attempt.name, attempt.trace_id, attempt.parent_id) == ("run app.charge", CALLER_TRACE, sent.span_id)
    assert (attempt.kind, attempt.service) == (CONSUMER, "bellringer-worker")
    assert attempt.attributes["bellringer.outcome"] == "ok"
    assert {"bellringer.tenant", "bellringer.pool", "bellringer.lateness_ms"} <= attempt.attributes.keys()
    own = cluster.one("charge the card", CALLER_TRACE)
    assert own.parent_id == attempt.span_id
    # the handler sends in its own span, and the handler of that run is a thread
    again = cluster.one("send app.receipt", CALLER_TRACE)
    assert again.parent_id == own.span_id
    second = cluster.one("run app.receipt", CALLER_TRACE)
    assert second.parent_id == again.span_id
    assert cluster.one("print the receipt", CALLER_TRACE).parent_id == second.span_id

    shown = cluster.api.get(f"/runs/{run['run_id']}").json()
    assert shown["trace_id"] == CALLER_TRACE


def test_blocking_and_bulk_sends_of_the_sdk_continue_the_current_span(cluster: TracedCluster) -> None:
    run = cluster.post("/jobs/execute", {"task": "app.book"})
    (attempt,) = cluster.attempts(run["run_id"])
    own = cluster.one("book the order", attempt.trace_id)
    sent, bulk = (cluster.one(name, attempt.trace_id) for name in ("send app.render", "send many"))
    assert sent.parent_id == bulk.parent_id == own.span_id
    assert bulk.attributes["messaging.batch.message_count"] == 2
    rendered = cluster.collector.wait(
        lambda span: span.name == "run app.render" and span.trace_id == attempt.trace_id, count=2
    )
    assert {span.parent_id for span in rendered} == {sent.span_id, bulk.span_id}


FINISHED = {
    *("event", "run_id", "attempt", "job_id", "job", "task", "tenant", "tenant_id", "scheduled_for", "outcome"),
    *("ends_as", "reason", "error", "duration_ms", "worker_id", "trace_id", "span_id", "level", "at"),
}


def test_log_lines_name_the_trace_and_the_span(cluster: TracedCluster) -> None:
    run = cluster.post("/jobs/execute", {"task": "app.charge", "kwargs": {"invoice": 8}})
    (attempt,) = cluster.attempts(run["run_id"])
    ids = {"trace_id": attempt.trace_id, "span_id": attempt.span_id}
    deadline = time.monotonic() + 10
    while True:
        lines = {line["event"]: line for line in cluster.log_lines() if line.get("run_id") == run["run_id"]}
        if {"charging 8", "attempt finished"} <= lines.keys():
            break
        assert time.monotonic() < deadline, lines
        time.sleep(0.05)
    for event in ("charging 8", "attempt finished"):
        assert ids.items() <= lines[event].items(), event
    assert lines["attempt finished"].keys() == FINISHED


def test_the_spans_of_an_isolated_handler_are_children_of_its_attempt(cluster: TracedCluster) -> None:
    run = cluster.post("/jobs/execute", {"task": "app.render", "kwargs": {"page": 1}})
    (attempt,) = cluster.attempts(run["run_id"])
    own = cluster.one("draw the page", attempt.trace_id)
    assert own.parent_id == attempt.span_id


def test_attempts_are_siblings_and_each_is_linked_to_the_one_before(cluster: TracedCluster) -> None:
    run = cluster.post("/jobs/execute", {"task": "app.flaky", "retry": {"delays": ["50ms"]}})
    first, second = cluster.attempts(run["run_id"], 2)
    assert (first.parent_id, first.trace_id) == (second.parent_id, second.trace_id)
    assert first.is_error
    assert not second.is_error
    assert second.links == [(first.trace_id, first.span_id)]
    (error,) = [attributes for name, attributes in first.events if name == "exception"]
    assert error["exception.type"] == "ConnectionError"
    assert "the bank does not answer" in error["exception.stacktrace"]


def test_a_scheduled_run_begins_its_own_trace(cluster: TracedCluster) -> None:
    beat, *_ = cluster.collector.wait(lambda span: span.attributes.get("bellringer.job") == "pulse")
    assert beat.parent_id == ""
    assert cluster.one("one beat", beat.trace_id).parent_id == beat.span_id
    run_id = beat.attributes["bellringer.run_id"]
    assert cluster.api.get(f"/runs/{run_id}").json()["trace_id"] == beat.trace_id
    fired = cluster.collector.wait(lambda span: span.name == "fire schedules")
    assert sum(span.attributes["messaging.batch.message_count"] for span in fired) >= 1


def test_a_run_far_ahead_begins_a_trace_that_is_linked_to_its_caller(cluster: TracedCluster) -> None:
    body = {"task": "app.receipt", "kwargs": {"invoice": 1}, "delay": "1h"}
    run = cluster.post("/jobs/execute", body, {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    cluster.one("send app.receipt", "ab" * 16)
    assert cluster.api.get(f"/runs/{run['run_id']}").json()["trace_id"] not in ("ab" * 16, None)


def test_nodes_of_a_workflow_are_children_of_the_run_that_opened_it(cluster: TracedCluster) -> None:
    nodes = [
        {"name": "load", "task": "app.load"},
        {"name": "print", "task": "app.receipt", "takes": {"invoice": {"node": "load"}}},
    ]
    graph = {"nodes": nodes}
    run = cluster.post("/workflows/runs", {"workflow": graph}, {"traceparent": f"00-{'12' * 16}-{'34' * 8}-01"})
    (opened,) = cluster.attempts(run["run_id"])
    assert opened.trace_id == "12" * 16
    for name in ("run app.load", "run app.receipt"):
        assert cluster.one(name, opened.trace_id).parent_id == opened.span_id


def test_a_follower_continues_the_trace_of_the_caller(cluster: TracedCluster) -> None:
    job = cluster.api.get("/jobs", params={"q": "loading"}).json()["items"][0]
    run = cluster.post(f"/jobs/{job['job_id']}/run", {}, {"traceparent": f"00-{'56' * 16}-{'78' * 8}-01"})
    (upstream,) = cluster.attempts(run["run_id"])
    follower = cluster.one("run app.report", "56" * 16)
    assert (upstream.trace_id, upstream.span_id) in follower.links


def test_an_http_target_gets_the_traceparent_of_its_attempt(cluster: TracedCluster) -> None:
    run = cluster.post("/jobs/execute", {"http": {"url": f"{cluster.collector.endpoint}/hook"}})
    (attempt,) = cluster.attempts(run["run_id"])
    headers = dict(cluster.collector.requests)["/hook"]
    assert headers["traceparent"].startswith(f"00-{attempt.trace_id}-{attempt.span_id}-")
    assert attempt.service == "bellringer-server"
