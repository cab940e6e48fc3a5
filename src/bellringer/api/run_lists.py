"""Lists of runs, by typed filters and page by page."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import BigInt, Call, check_utc, no_job, reply
from bellringer.api.operations import CURSOR, LIMIT, choice, operation
from bellringer.api.run_filters import QUERY, of_query, run_filter
from bellringer.errors import InvalidInput
from bellringer.runs import Cause, RunKey
from bellringer.store import flow_reads, jobs, run_lists
from bellringer.store.run_lists import Place, RunFilter
from bellringer.wire.answers import Count, RunPage

MOST_COUNTED: Final = 10_000
COUNT: Final = choice("count", "count them too, as far as that is quick", ["bounded"])


class PlaceMark(msgspec.Struct, frozen=True, array_like=True):
    """The last run of a page: its whole key, because many runs share an instant; and its end, where they go by that."""

    scheduled_for: datetime
    job_id: UUID
    slot: BigInt
    shard: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    ended_at: datetime | None = None

    def __post_init__(self) -> None:
        check_utc(self.scheduled_for)
        if self.ended_at is not None:
            check_utc(self.ended_at)


@operation(
    "runs",
    role=Role.VIEWER,
    answers={200: RunPage},
    query=(LIMIT, CURSOR, COUNT, *QUERY),
    problems=(404,),
)
async def listing(call: Call) -> Response:
    """The newest runs that fit the filters.

    By the time that they were scheduled for; those asked for by dead, cancelled and skipped alone, by their end.
    """
    query = call.query()
    wanted = await run_filter(call, of_query(call.request.query_params))
    return await _page(call, wanted, count=_wants_count(query.get("count")))


@operation("runs", role=Role.VIEWER, answers={200: RunPage}, query=(LIMIT, CURSOR))
async def of_job(call: Call) -> Response:
    """The newest runs of one job."""
    call.query()
    return await _page(call, RunFilter(job=await call.job_id()), count=False)


async def _page(call: Call, wanted: RunFilter, *, count: bool) -> Response:
    limit, tenant_id = call.limit(), call.tenant_id
    of = f"runs {hashlib.sha256(msgspec.json.encode(wanted)).hexdigest()[:16]}"
    mark = call.cursor(of, PlaceMark)
    if wanted.job is not None and await jobs.get(call.store, wanted.job, tenant_id) is None:
        raise no_job()
    after = Place(RunKey(mark.job_id, mark.scheduled_for, mark.slot), mark.shard, mark.ended_at) if mark else None
    found = await run_lists.page(call.reads, tenant_id, wanted, after, limit)
    shown = await run_lists.items(call.reads, tenant_id, found.keys)
    nodes = [run.key for run in shown if run.cause == Cause.WORKFLOW]
    placed = await flow_reads.placed(call.reads, tenant_id, nodes)
    return reply(
        RunPage(
            items=[documents.run_item(run, placed.get(run.key)) for run in shown],
            next_cursor=call.cursor_to(of, _mark(found.stop)) if found.stop else None,
            scanned=found.scanned,
            count=await counted(call, wanted) if count else UNSET,
        )
    )


def _mark(place: Place) -> PlaceMark:
    key = place.key
    return PlaceMark(key.scheduled_for, key.job_id, key.slot, place.shard, place.ended_at)


def _wants_count(text: str | None) -> bool:
    if text not in {None, "bounded"}:
        raise InvalidInput("count can only be bounded", code="choice")
    return text is not None


async def counted(call: Call, wanted: RunFilter) -> Count:
    """How many fit, as far as one look reaches."""
    found = await run_lists.page(call.reads, call.tenant_id, wanted, None, MOST_COUNTED)
    return Count(value=len(found.places), relation="gte" if found.stop else "eq")
