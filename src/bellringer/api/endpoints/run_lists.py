"""Lists and counts of runs by filter."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import (
    CURSOR_PARAMETER,
    LIMIT_PARAMETER,
    Query,
    choice,
    moment,
    number,
    operation,
    string,
)
from bellringer.api.http.request import BigInt, RequestContext, check_utc, find_job, no_job, reply
from bellringer.api.render import documents
from bellringer.core.runs import Cause, RunKey
from bellringer.errors import InvalidInput
from bellringer.store import jobs, run_lists, workers, workflows
from bellringer.store.run_lists import STATES, RunFilter, RunPosition
from bellringer.wire.decode import Gathering, instant
from bellringer.wire.models import Count
from bellringer.wire.routes import Routes
from bellringer.wire.runs import RunCounts, RunPage, RunsFilter

MAX_FILTER_LENGTH: Final = 255
_MAX_INT32: Final = (1 << 31) - 1

FILTER_PARAMETERS: Final[tuple[Query, ...]] = (
    string("state", f"only runs in these states, comma-separated or repeated: {', '.join(STATES)}"),
    string("job", "only runs of this job, by id or name"),
    string("task", "only runs of this task"),
    string("pool", "only runs of this pool"),
    choice("cause", "only runs with this cause", list(Cause)),
    string("tag", "only runs of jobs with this tag"),
    number("worker", "only runs that this worker executes or has executed, by its number", 1, _MAX_INT32),
    string("q", "only runs with this text in the name of their job or task"),
    moment("from", "only runs scheduled at or after this time"),
    moment("to", "only runs scheduled before this time"),
)


def read_filter(given: QueryParams) -> RunsFilter:
    """Reads the filter from the query parameters."""
    worker = given.get("worker")
    if worker is not None and not (worker.isascii() and worker.isdecimal() and 0 < int(worker[:11]) <= _MAX_INT32):
        raise InvalidInput(
            "worker must be the number of a worker", hint="`GET /workers` lists them", code="limit_range"
        )
    return RunsFilter(
        state=given.getlist("state") or None,
        **{name: given.get(name) for name in ("job", "task", "pool", "cause", "tag", "q")},
        worker=None if worker is None else int(worker),
        from_at=given.get("from"),
        to_at=given.get("to"),
    )


async def run_filter(call: RequestContext, wanted: RunsFilter, pointer: str = "") -> RunFilter:
    """Returns the filter in the form that the store takes; raises with all faults at once."""
    g = Gathering()
    for name in ("task", "pool", "tag", "q"):
        text = getattr(wanted, name)
        if text is not None and not 0 < len(text) <= MAX_FILTER_LENGTH:
            g.add(
                InvalidInput(
                    f"{name} must have 1 to {MAX_FILTER_LENGTH} characters", pointer=f"{pointer}/{name}", code="limit"
                )
            )
        elif text is not None and "\0" in text:
            g.add(InvalidInput(f"{name} contains a NUL character", pointer=f"{pointer}/{name}", code="nul_character"))
    states = g.take(f"{pointer}/state", lambda: _states(wanted.state), None)
    cause = g.take(f"{pointer}/cause", lambda: _cause(wanted.cause), None)
    from_at = g.take(f"{pointer}/from", lambda: instant(wanted.from_at, what="from"), None)
    to_at = g.take(f"{pointer}/to", lambda: instant(wanted.to_at, what="to"), None)
    g.done()
    return RunFilter(
        job=None if wanted.job is None else await find_job(call, wanted.job),
        states=states,
        task=wanted.task,
        pool=wanted.pool,
        cause=cause,
        tag=wanted.tag,
        worker=wanted.worker,
        q=wanted.q,
        from_at=from_at,
        to_at=to_at,
    )


def _states(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    texts = [given] if isinstance(given, str) else given
    words = {word.strip() for text in texts for word in text.split(",")}
    for word in sorted(words):
        _check_choices(word, STATES, "state")
    return tuple(sorted(words)) or None


def _cause(given: str | None) -> str | None:
    return None if given is None else _check_choices(given, list(Cause), "cause")


def _check_choices(word: str, words: Sequence[str], what: str) -> str:
    if word not in words:
        near = get_close_matches(word[:40], words, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(words)}"
        raise InvalidInput(f"unknown {what} {word[:40]!r}", hint=hint, code=f"{what}_unknown")
    return word


MAX_COUNTED: Final = 10_000
COUNT_PARAMETER: Final = choice("count", "also count the runs, up to a limit", ["bounded"])


class PlaceMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a run: its whole key, because many runs share an instant; and its end, in lists by end."""

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
    Routes.runs,
    role=Role.VIEWER,
    query=(LIMIT_PARAMETER, CURSOR_PARAMETER, COUNT_PARAMETER, *FILTER_PARAMETERS),
    problems=(404,),
)
async def listing(call: RequestContext) -> Response:
    """Lists runs, the newest first.

    The order is by scheduled time; for dead, cancelled and skipped runs only, by end.
    """
    query = call.query()
    wanted = await run_filter(call, read_filter(call.request.query_params))
    return await _page(call, wanted, count=_wants_count(query.get("count")))


@operation(Routes.job_runs, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def of_job(call: RequestContext) -> Response:
    """Lists the runs of one job, the newest first."""
    call.query()
    return await _page(call, RunFilter(job=await call.job_id()), count=False)


async def _page(call: RequestContext, wanted: RunFilter, *, count: bool) -> Response:
    limit, tenant_id = call.limit(), call.tenant_id
    of = f"runs {hashlib.sha256(msgspec.json.encode(wanted)).hexdigest()[:16]}"
    mark = call.cursor(of, PlaceMark)
    if wanted.job is not None and await jobs.get(call.store, wanted.job, tenant_id) is None:
        raise no_job()
    after = RunPosition(RunKey(mark.job_id, mark.scheduled_for, mark.slot), mark.shard, mark.ended_at) if mark else None
    found = await run_lists.find_runs(call.reads, tenant_id, wanted, after, limit)
    shown = await run_lists.load_runs(call.reads, tenant_id, found.keys)
    nodes = [run.key for run in shown if run.cause == Cause.WORKFLOW]
    placed = await workflows.find_node_placements(call.reads, tenant_id, nodes)
    names = await _worker_names(call, {run.worker_id for run in shown if run.worker_id is not None})
    return reply(
        RunPage(
            items=[
                documents.render_run_item(run, placed.get(run.key), worker=names.get(run.worker_id, UNSET))
                for run in shown
            ],
            next_cursor=call.cursor_to(of, _mark(found.stop)) if found.stop else None,
            scanned=found.scanned,
            count=await count_runs(call, wanted) if count else UNSET,
        )
    )


async def _worker_names(call: RequestContext, ids: Collection[int]) -> dict[int | None, str]:
    """Returns the names of workers, as far as the caller may see them."""
    known = await workers.find_names(call.reads, ids) if documents.sees_machines(call.caller) else {}
    return {number: documents.worker_name(number, known.get(number, f"worker-{number}"), call.caller) for number in ids}


def _mark(place: RunPosition) -> PlaceMark:
    key = place.key
    return PlaceMark(key.scheduled_for, key.job_id, key.slot, place.shard, place.ended_at)


def _wants_count(text: str | None) -> bool:
    if text not in {None, "bounded"}:
        raise InvalidInput("count must be bounded", code="choice")
    return text is not None


async def count_runs(call: RequestContext, wanted: RunFilter) -> Count:
    """Counts the runs that match, up to a limit."""
    found = await run_lists.find_runs(call.reads, call.tenant_id, wanted, None, MAX_COUNTED)
    return Count(value=len(found.positions), relation="gte" if found.stop else "eq")


MAX_COUNTED_PER_STATE: Final = 1_000


@operation(
    Routes.run_counts,
    role=Role.VIEWER,
    query=[query for query in FILTER_PARAMETERS if query.name != "state"],
    problems=(404,),
)
async def get(call: RequestContext) -> Response:
    """Counts the runs that match the filters by state, each up to a limit."""
    call.query()
    wanted = await run_filter(call, read_filter(call.request.query_params))
    if wanted.job is not None and await jobs.get(call.store, wanted.job, call.tenant_id) is None:
        raise no_job()
    counts = {}
    for state in STATES:
        found = await run_lists.find_runs(
            call.reads, call.tenant_id, replace(wanted, states=(state,)), None, MAX_COUNTED_PER_STATE
        )
        counts[state] = Count(value=len(found.positions), relation="gte" if found.stop else "eq")
    return reply(RunCounts(states=counts))
