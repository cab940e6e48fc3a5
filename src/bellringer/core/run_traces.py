"""The place of a run in a distributed trace: the stored context of its caller, and ids derived from its key.

The trace id of a run without a caller and the span ids of all attempts are hashes of the run's key. So attempts,
workflow nodes, followers and log lines find the spans of other runs without a lookup, and scheduled runs store nothing.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from bellringer.tracing.span_refs import AttemptTrace, SpanRef, parse_traceparent

if TYPE_CHECKING:
    from bellringer.core.runs import RunKey, Spec

OPENING_ATTEMPT: Final = 1  # the attempt of a workflow run that starts its nodes
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class RunTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The trace context that is stored with a run, in its `spec`.

    `parent` and `state` are the W3C headers traceparent and tracestate of the span that created the run. With `linked`,
    the run begins its own trace with a link to that span. `id` is the trace of an outer workflow run without a caller.
    """

    parent: str | None = None
    state: str | None = None
    linked: bool = False
    id: str | None = None


def trace_id_of(key: RunKey, spec: Spec | None) -> int:
    """Returns the id of the trace that the attempts of a run belong to."""
    trace = None if spec is None else spec.trace
    if trace is not None and not trace.linked:
        if (caller := parse_traceparent(trace.parent)) is not None:
            return caller.trace_id
        if trace.id is not None:
            return int(trace.id, 16)
    return key.job_id.int if spec is not None and spec.node is not None else _run_hash(key)


def trace_attempt(key: RunKey, attempt: int, spec: Spec) -> AttemptTrace:
    """Returns the ids of an attempt's span, its parent, and the spans that it is linked to.

    All attempts of a run are siblings, each linked to the one before. A node is a child of the span that opened its
    workflow run. A follower is linked to the attempt that ended its upstream run.
    """
    trace_id, run_hash, trace = trace_id_of(key, spec), _run_hash(key), spec.trace or RunTrace()
    caller = parse_traceparent(trace.parent, trace.state)
    links: list[SpanRef] = []
    parent = None if trace.linked else caller
    if trace.linked and caller is not None:
        links.append(caller)
    if spec.node is not None:  # the job_id of a node is the hash of its workflow run's key
        opened = _span_hash(key.job_id.int, OPENING_ATTEMPT)
        parent = SpanRef(trace_id, opened, caller.is_sampled if parent and caller else None, trace.state)
    if spec.upstream is not None:
        upstream = _run_hash(spec.upstream.key(key.scheduled_for))
        in_trace = int(spec.upstream.trace_id, 16) if spec.upstream.trace_id else upstream
        links.append(SpanRef(in_trace, _span_hash(upstream, spec.upstream.attempt or OPENING_ATTEMPT)))
    if attempt > 1:
        links.append(SpanRef(trace_id, _span_hash(run_hash, attempt - 1)))
    return AttemptTrace(trace_id, _span_hash(run_hash, attempt), parent, tuple(links))


@lru_cache(maxsize=8192)  # of a run: its attempts, log lines and nodes
def _run_hash(key: RunKey) -> int:
    """Returns what the SQL function `flow_of` returns, which is also the job_id of the nodes of a workflow run."""
    micros = (key.scheduled_for - _EPOCH) // _MICROSECOND
    text = f"{key.job_id} {micros} {key.slot}"
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest(), "big")


def _span_hash(run_hash: int, attempt: int) -> int:
    data = run_hash.to_bytes(16, "big") + attempt.to_bytes(4, "big")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
