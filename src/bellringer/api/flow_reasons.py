"""Why a node of a workflow run does not start."""

from __future__ import annotations

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, reply
from bellringer.api.explain import told
from bellringer.api.operations import operation, string
from bellringer.errors import InvalidInput
from bellringer.lifecycle import explain
from bellringer.lifecycle.flow import read_node
from bellringer.wire import Explanation
from bellringer.wire.answers import NodeOf


@operation(
    "runs",
    role=Role.VIEWER,
    answers={200: Explanation},
    query=(string("node", "a node by its name, or an element of a map: `transform[3]`"),),
)
async def why(call: Call) -> Response:
    """Why a node of a workflow run does not start, or is where it is: what it waits for, and what its own run says."""
    wanted = call.query().get("node")
    if wanted is None:
        raise InvalidInput("node is missing", hint="name one: ?node=NAME", code="missing_field")
    key = call.run_key()
    found = await explain.node(call.store, key, read_node(wanted, pointer=""), tenant_id=call.tenant_id)
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
            reasons=told(found.reasons),
            workflow=NodeOf(run_id=key.id, job_id=str(at.top_job), job=at.job, node=found.node),
        )
    )
