"""Why: the reasons of a run, and of a job now or at a time."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from starlette.responses import Response

from bellringer import reasons
from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, reply
from bellringer.api.operations import operation, string
from bellringer.lifecycle import explain
from bellringer.lifecycle.explain import Explained
from bellringer.wire import Explanation, Reason


@operation("runs", role=Role.VIEWER, answers={200: Explanation})
async def run(call: Call) -> Response:
    """Why a run is where it is."""
    call.query()
    return _reply(await explain.run(call.store, call.run_key(), tenant_id=call.tenant_id))


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: Explanation},
    query=(string("at", "the occurrence to explain; without it, now"),),
)
async def why(call: Call) -> Response:
    """Why a job does not run now; with `at`, what became of that time."""
    time = call.query().get("at")
    job_id = await call.job_id()
    return _reply(await explain.why(call.store, job_id, time, tenant_id=call.tenant_id))


def _reply(found: Explained) -> Response:
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
            reasons=told(found.reasons),
            workflow=UNSET if found.placed is None else documents.node_of(found.placed, spec),
        )
    )


def told(found: Sequence[reasons.Reason]) -> list[Reason]:
    return [Reason(code=r.code, holds=r.holds, text=r.text, fix=r.fix) for r in found]
