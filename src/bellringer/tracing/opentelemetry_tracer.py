"""Spans of OpenTelemetry: created with given ids, activated in the context of handlers, and injected into headers.

Names and attributes follow the semantic conventions for messaging, as far as they fit; they are listed in
docs/tracing.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bellringer.errors import ConfigError
from bellringer.tracing.span_refs import AttemptTrace, Attributes, SpanRef

CLOSE_TIMEOUT_SECONDS: Final = 2.0  # for the last export; a collector that is away must not delay the exit
_SCOPE: Final = "bellringer"
_RUN_SCOPE: Final = "bellringer.runs"  # a tracer of its own, because the ids of its spans are given
_SYSTEM: Final = {"messaging.system": "bellringer"}
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_EXPORTER_VARIABLE: Final = "OTEL_TRACES_EXPORTER"
_EXPORTERS: Final = ("otlp", "console", "none")


class CallerContext(NamedTuple):
    """The W3C headers of the current span."""

    traceparent: str
    tracestate: str | None


class AttemptSpan:
    """The span of one attempt. `activate` makes it the current span of the code that the handler runs."""

    __slots__ = ("_context", "_span", "traceparent")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._context = trace.set_span_in_context(span, Context())
        self.traceparent = _carrier(self._context).get("traceparent")

    def activate(self) -> None:
        """Makes the span current in the calling task or thread, until its context ends."""
        otel_context.attach(self._context)

    def end(self, outcome: str, error: Mapping[str, Any] | None, *, is_success: bool) -> None:
        """Ends the span with the outcome of the attempt. `error` is the stored form of an exception."""
        span = self._span
        span.set_attribute("bellringer.outcome", outcome)
        if error is not None:
            kind, message = str(error.get("type", outcome)), str(error.get("message", ""))
            span.set_attribute("error.type", kind)
            event = {"exception.type": kind, "exception.message": message}
            if stack := error.get("traceback"):
                event["exception.stacktrace"] = str(stack)
            span.add_event("exception", event)
            span.set_status(Status(StatusCode.ERROR, f"{kind}: {message}"))
        elif not is_success:
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end()


class OpenTelemetryTracer:
    """Creates the spans of this process. Thread-safe."""

    def __init__(self, provider: trace.TracerProvider, *, owns_provider: bool) -> None:
        self._provider = provider
        self._owns_provider = owns_provider
        self._tracer = provider.get_tracer(_SCOPE)
        self._run_tracer = provider.get_tracer(_RUN_SCOPE)
        self._given_ids: _GivenIds | None = None
        if isinstance(self._run_tracer, Tracer):
            self._given_ids = _GivenIds(self._run_tracer.id_generator)
            self._run_tracer.id_generator = self._given_ids

    @property
    def derives_ids(self) -> bool:
        """Whether spans of attempts have the ids that `trace_attempt` returns. Other SDKs create their own ids."""
        return self._given_ids is not None

    def close(self) -> None:
        """Exports what was not exported yet, within CLOSE_TIMEOUT_SECONDS. A provider of the app stays open."""
        if isinstance(self._run_tracer, Tracer) and self._given_ids is not None:
            self._run_tracer.id_generator = self._given_ids.other
        if self._owns_provider and isinstance(self._provider, TracerProvider):
            # In a thread, because the exporter repeats a failed export for longer than its own timeouts say.
            closing = threading.Thread(target=self._provider.shutdown, name="bellringer-tracing", daemon=True)
            closing.start()
            closing.join(CLOSE_TIMEOUT_SECONDS)

    # Producers

    @contextmanager
    def sending(self, name: str, attributes: Attributes) -> Iterator[CallerContext | None]:
        """Opens a producer span, and yields the context that the new runs store; None if the provider creates none."""
        kind = {"messaging.operation.type": "send", "messaging.operation.name": "send"}
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.PRODUCER, attributes={**_SYSTEM, **kind, **attributes}
        ):
            carrier = _carrier(otel_context.get_current())
            traceparent = carrier.get("traceparent")
            yield None if traceparent is None else CallerContext(traceparent, carrier.get("tracestate"))

    @contextmanager
    def batch(self, name: str, attributes: Attributes) -> Iterator[Span]:
        """Opens a root span for a step that concerns many runs."""
        with self._tracer.start_as_current_span(name, context=Context(), attributes={**_SYSTEM, **attributes}) as span:
            yield span

    def annotate(self, attributes: Attributes) -> None:
        """Adds attributes to the current span."""
        trace.get_current_span().set_attributes(attributes)

    # Attempts

    def start_attempt(
        self, name: str, place: AttemptTrace, attributes: Attributes, *, claimed_at: datetime
    ) -> AttemptSpan:
        """Starts the consumer span of an attempt, with the ids of `place`."""
        kind = {"messaging.operation.type": "process", "messaging.operation.name": "run"}
        parent = Context() if place.parent is None else self._remote_context(place.parent, name)
        given = self._given_ids
        if given is not None:
            given.give((place.trace_id, place.span_id))
        try:
            span = self._run_tracer.start_span(
                name,
                context=parent,
                kind=SpanKind.CONSUMER,
                attributes={**_SYSTEM, **kind, **attributes},
                links=[Link(_span_context(link, is_sampled=bool(link.is_sampled))) for link in place.links],
            )
        finally:
            if given is not None:
                given.give(None)
        span.add_event("claimed", timestamp=int(claimed_at.timestamp() * 1e9))
        return AttemptSpan(span)

    def _remote_context(self, parent: SpanRef, name: str) -> Context:
        """Returns the context of a span in another process. Whether a derived span was sampled is decided as for the
        root of its trace: samplers decide by the trace id."""
        is_sampled = parent.is_sampled
        if is_sampled is None:
            sampler = getattr(self._run_tracer, "sampler", None)
            is_sampled = sampler is None or bool(
                sampler.should_sample(Context(), parent.trace_id, name, SpanKind.CONSUMER).decision.is_sampled()
            )
        return trace.set_span_in_context(NonRecordingSpan(_span_context(parent, is_sampled=is_sampled)), Context())

    # Contexts

    def headers(self) -> dict[str, str]:
        """Returns traceparent and tracestate of the current span; nothing without one."""
        return _carrier(otel_context.get_current())

    @contextmanager
    def received(self, headers: Sequence[tuple[bytes, bytes]]) -> Iterator[None]:
        """Makes the span that the headers of a request name the current one."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        token = otel_context.attach(_PROPAGATOR.extract(carrier, Context()))
        try:
            yield
        finally:
            otel_context.detach(token)

    def attach_remote(self, traceparent: str) -> object:
        """Makes a span of another process the current one. Returns a token for `detach`."""
        return otel_context.attach(_PROPAGATOR.extract({"traceparent": traceparent}, Context()))

    def detach(self, token: Any) -> None:
        otel_context.detach(token)


class _GivenIds(IdGenerator):
    """Returns the ids that the caller has set for the next span of this thread, or else those of another generator."""

    def __init__(self, other: IdGenerator) -> None:
        self.other = other
        self._of_thread = threading.local()

    @property
    def given(self) -> tuple[int, int] | None:
        found: tuple[int, int] | None = getattr(self._of_thread, "ids", None)
        return found

    def give(self, ids: tuple[int, int] | None) -> None:
        self._of_thread.ids = ids

    def generate_trace_id(self) -> int:
        return self.other.generate_trace_id() if self.given is None else self.given[0]

    def generate_span_id(self) -> int:
        return self.other.generate_span_id() if self.given is None else self.given[1]


def create_tracer(service_name: str) -> OpenTelemetryTracer | None:
    """Returns a tracer of the app's TracerProvider, or of a new one that the variables OTEL_… configure; None if
    OTEL_SDK_DISABLED is true.
    """
    provider = trace.get_tracer_provider()
    if not isinstance(provider, trace.ProxyTracerProvider):
        return OpenTelemetryTracer(provider, owns_provider=False)
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    is_named = OTEL_SERVICE_NAME in os.environ or "service.name=" in os.environ.get(OTEL_RESOURCE_ATTRIBUTES, "")
    resource = Resource.create({} if is_named else {SERVICE_NAME: service_name})
    own = TracerProvider(resource=resource, shutdown_on_exit=False)
    if (exporter := _create_exporter()) is not None:
        own.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(own)
    return OpenTelemetryTracer(own, owns_provider=True)


def _create_exporter() -> SpanExporter | None:
    name = os.environ.get(_EXPORTER_VARIABLE, "").strip() or "otlp"
    if name not in _EXPORTERS:
        raise ConfigError(f"{_EXPORTER_VARIABLE} cannot be {name!r}", hint=f"use {' or '.join(_EXPORTERS)}")
    if name == "none":
        return None
    if name == "console":
        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - may be unused

    return OTLPSpanExporter()


def _span_context(span: SpanRef, *, is_sampled: bool) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([span.state]) if span.state else None
    return SpanContext(span.trace_id, span.span_id, is_remote=True, trace_flags=flags, trace_state=state)


def _carrier(context: Context) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return carrier
