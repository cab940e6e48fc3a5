"""The ids of spans: derived from the keys of runs, or taken from the stored context of a caller."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from bellringer.core.messages import Message, MessageKind
from bellringer.core.run_traces import RunTrace, trace_attempt, trace_id_of
from bellringer.core.runs import RunKey, Spec, UpstreamRun
from bellringer.store.connection_pool import Store
from bellringer.tracing.span_refs import parse_traceparent

KEY = RunKey(UUID("01a1efce-cd75-73c1-a3da-b811bafc34ca"), datetime(2026, 1, 2, 3, 4, 5, 678901, UTC))
CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"


async def test_the_derived_trace_id_is_the_id_of_a_workflow_runs_nodes(store: Store) -> None:
    flow = await store.pool.fetchval("select flow_of($1, $2, $3)", KEY.job_id, KEY.scheduled_for, KEY.slot)
    assert trace_id_of(KEY, Spec()) == flow.int
    node = RunKey(flow, KEY.scheduled_for, 3)
    assert trace_id_of(node, Spec(node="load")) == flow.int
    parent = trace_attempt(node, 1, Spec(node="load")).parent
    assert parent is not None
    assert parent.span_id == trace_attempt(KEY, 1, Spec()).span_id


def test_attempts_have_spans_of_their_own_in_one_trace() -> None:
    first, second = trace_attempt(KEY, 1, Spec()), trace_attempt(KEY, 2, Spec())
    assert first.trace_id == second.trace_id
    assert first.parent is second.parent is None
    assert [(link.trace_id, link.span_id) for link in second.links] == [(first.trace_id, first.span_id)]
    assert first.links == ()


def test_a_stored_context_is_the_parent_or_a_link() -> None:
    child = trace_attempt(KEY, 1, Spec(trace=RunTrace(parent=CALLER, state="vendor=1")))
    assert child.trace_id == int("ab" * 16, 16)
    assert child.parent == (int("ab" * 16, 16), int("cd" * 8, 16), True, "vendor=1")
    linked = trace_attempt(KEY, 1, Spec(trace=RunTrace(parent=CALLER, linked=True)))
    assert linked.parent is None
    assert linked.trace_id == trace_attempt(KEY, 1, Spec()).trace_id
    assert [link.trace_id for link in linked.links] == [int("ab" * 16, 16)]


def test_a_follower_is_linked_to_the_attempt_that_ended_its_upstream_run() -> None:
    upstream = UpstreamRun(job_id=UUID(int=5), job="extract", slot=0, state="succeeded", attempt=3)
    follower = trace_attempt(KEY, 1, Spec(upstream=upstream))
    ended = trace_attempt(upstream.key(KEY.scheduled_for), 3, Spec())
    assert [(link.trace_id, link.span_id) for link in follower.links] == [(ended.trace_id, ended.span_id)]


@pytest.mark.parametrize(
    "header",
    [None, "", "00-1-2-01", f"00-{'0' * 32}-{'cd' * 8}-01", f"ff-{'ab' * 16}-{'cd' * 8}-01", CALLER.upper()],
)
def test_an_invalid_traceparent_is_ignored(header: str | None) -> None:
    assert parse_traceparent(header) is None
    assert trace_attempt(KEY, 1, Spec(trace=RunTrace(parent=header))).parent is None


def test_the_spec_of_a_message_has_the_trace_only_if_there_is_one() -> None:
    message = Message(MessageKind(task="charge"), b'{"args":[1],"kwargs":{}}')
    assert "trace" not in message.spec()
    traced = message.spec(RunTrace(parent=CALLER))
    assert traced == message.spec()[:-1] + f',"trace":{{"parent":"{CALLER}"}}}}'
