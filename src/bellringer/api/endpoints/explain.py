"""Explains why a job, a run or a node of a workflow does not start."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from starlette.responses import Response

from bellringer import explain as reasons
from bellringer.access import Role
from bellringer.api.http.operation import operation, string
from bellringer.api.http.request import RequestContext, reply
from bellringer.api.render import documents
from bellringer.engine import explain
from bellringer.engine.explain import ExplainResult
from bellringer.engine.workflow_commands import parse_node
from bellringer.errors import InvalidInput
from bellringer.wire.routes import Routes
from bellringer.wire.runs import Explanation, NodeOf, Reason


@operation(Routes.explain, role=Role.VIEWER)
async def run(call: RequestContext) -> Response:
    """Explains the state of a run."""
    call.query()
    return _reply(await explain.load_run_explanation(call.store, call.run_key(), tenant_id=call.tenant_id))


@operation(Routes.why, role=Role.VIEWER, query=(string("at", "the occurrence to explain; now if omitted"),))
async def why(call: RequestContext) -> Response:
    """Explains why a job does not run now; with `at`, what happened to that occurrence."""
    time = call.query().get("at")
    job_id = await call.job_id()
    return _reply(await explain.load_job_explanation(call.store, job_id, time, tenant_id=call.tenant_id))


def _reply(found: ExplainResult) -> Response:
    spec = found.run.spec if found.run else None
    return reply(
        Explanation(
            job_id=str(found.job_id),
            job=found.job,
            task=found.task,
            run_id=found.run.key.id if found.run else None,
            state=found.run.state.value if found.run else None,
            at=found.at,
            next_at=found.next_at,
            reasons=render_explanation(found.reasons),
            workflow=UNSET if found.placed is None else documents.node_of(found.placed, spec),
        )
    )


def render_explanation(found: Sequence[reasons.ExplainReason]) -> list[Reason]:
    return [Reason(code=r.code, holds=r.holds, text=r.text, fix=r.fix) for r in found]


@operation(
    Routes.node_why, role=Role.VIEWER, query=(string("node", "a node by name, or an element of a map: `transform[3]`"),)
)
async def why_node(call: RequestContext) -> Response:
    """Explains why a node of a workflow run does not start: what it waits for, and the state of its own run."""
    wanted = call.query().get("node")
    if wanted is None:
        raise InvalidInput("node is missing", hint="name one: ?node=NAME", code="missing_field")
    key = call.run_key()
    found = await explain.load_node_explanation(
        call.store, key, parse_node(wanted, pointer=""), tenant_id=call.tenant_id
    )
    at = found.at
    return reply(
        Explanation(
            job_id=str(at.top_job),
            job=at.job,
            task=found.run.task if found.run else None,
            run_id=found.run.key.id if found.run else None,
            state=found.state,
            at=key.scheduled_for,
            next_at=None,
            reasons=render_explanation(found.reasons),
            workflow=NodeOf(run_id=key.id, job_id=str(at.top_job), job=at.job, node=found.node),
        )
    )
