"""How many runs are in which state."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, no_job, reply
from bellringer.api.operations import operation
from bellringer.api.run_filters import QUERY, of_query, run_filter
from bellringer.store import jobs, run_lists
from bellringer.store.run_lists import STATES
from bellringer.wire.answers import Count
from bellringer.wire.overview import RunCounts

MOST_COUNTED: Final = 1_000  # of a state


@operation(
    "runs",
    role=Role.VIEWER,
    answers={200: RunCounts},
    query=[query for query in QUERY if query.name != "state"],
    problems=(404,),
)
async def get(call: Call) -> Response:
    """How many of the runs that fit the filters are in which state, each as far as one look reaches."""
    call.query()
    wanted = await run_filter(call, of_query(call.request.query_params))
    if wanted.job is not None and await jobs.get(call.store, wanted.job, call.tenant_id) is None:
        raise no_job()
    counts = {}
    for state in STATES:
        found = await run_lists.page(call.reads, call.tenant_id, replace(wanted, states=(state,)), None, MOST_COUNTED)
        counts[state] = Count(value=len(found.places), relation="gte" if found.stop else "eq")
    return reply(RunCounts(states=counts))
