"""Tracing in processes of their own: off by default, optional packages, the provider of the app, samplers."""

from __future__ import annotations

import subprocess
import sys
import time

BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")

sys.meta_path.insert(0, Blocked())
"""
IMPORT_ALL = """
import bellringer.api.app, bellringer.cli.processes, bellringer.process_assembly, bellringer.scheduler.service
import bellringer.sdk.service, bellringer.worker.lanes.child, bellringer.worker.service
from bellringer import tracing
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_no_process_imports_opentelemetry_while_tracing_is_off() -> None:
    code = f"{IMPORT_ALL}print(tracing.active(), 'opentelemetry' in sys.modules)"
    assert run(f"import sys\n{code}") == "None False"


def test_without_the_packages_only_turning_tracing_on_fails() -> None:
    code = f"""{BLOCK}{IMPORT_ALL}
try:
    tracing.enable("bellringer-worker")
except Exception as error:
    print(type(error).__name__, error)
"""
    assert run(code).startswith("ConfigError tracing is on, but opentelemetry is not installed")


def test_a_disabled_sdk_is_no_error() -> None:
    code = """
import os
os.environ |= {"OTEL_SDK_DISABLED": "true", "BELLRINGER_TRACING": "on"}
from bellringer import tracing
tracing.enable_from_environment("shop")
print(tracing.active())
"""
    assert run(code) == "None"


def test_the_apps_own_provider_is_used_and_keeps_its_ids() -> None:
    code = """
from datetime import UTC, datetime
from uuid import UUID
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from bellringer import tracing
from bellringer.core.run_traces import trace_attempt
from bellringer.core.runs import RunKey, Spec

kept, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
tracing.enable("ignored")
now = datetime.now(UTC)
place = trace_attempt(RunKey(UUID(int=1), now), 1, Spec())
attempt = tracing.active().start_attempt("run a", place, {}, claimed_at=now)
own = provider.get_tracer("app").start_span("own")
own.end()
attempt.end("ok", None, is_success=True)
tracing.disable()
spans = {span.name: span.context for span in kept.get_finished_spans()}
print((spans["run a"].trace_id, spans["run a"].span_id) == (place.trace_id, place.span_id),
      spans["own"].trace_id != place.trace_id, tracing.active())
"""
    assert run(code) == "True True None"


def test_a_sampler_decides_alike_for_all_attempts_and_nodes_of_a_run() -> None:
    code = """
import os
os.environ |= {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.3",
               "OTEL_TRACES_EXPORTER": "none"}
from datetime import UTC, datetime
from uuid import UUID, uuid4
from bellringer import tracing
from bellringer.core.run_traces import trace_attempt, trace_id_of
from bellringer.core.runs import RunKey, Spec

tracing.enable("worker")
now, sampled = datetime.now(UTC), 0
for _ in range(300):
    key = RunKey(uuid4(), now)
    node = RunKey(UUID(int=trace_id_of(key, Spec())), now, 1)
    places = [trace_attempt(key, 1, Spec()), trace_attempt(key, 2, Spec()), trace_attempt(node, 1, Spec(node="a"))]
    flags = {tracing.active().start_attempt("run a", place, {}, claimed_at=now).traceparent[-2:] for place in places}
    assert len(flags) == 1, flags
    sampled += flags == {"01"}
tracing.disable()
print(40 < sampled < 140)
"""
    assert run(code) == "True"


def test_a_collector_that_is_away_delays_neither_work_nor_exit() -> None:
    code = """
import os, socket, time
with socket.socket() as unused:
    unused.bind(("127.0.0.1", 0))
    port = unused.getsockname()[1]
os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
import logging
logging.disable(logging.CRITICAL)
from bellringer import tracing
tracing.enable("worker")
began = time.monotonic()
for _ in range(5_000):
    with tracing.active().sending("send a", {}):
        pass
worked = time.monotonic() - began
tracing.disable()
print(worked < 5, time.monotonic() - began - worked < 10)
"""
    began = time.monotonic()
    assert run(code) == "True True"
    assert time.monotonic() - began < 20  # nothing is left to do at exit
