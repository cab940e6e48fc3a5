"""Lists of jobs: filtered, by their ids or names, page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, reply
from bellringer.api.operations import CURSOR, LIMIT, choice, operation, string
from bellringer.errors import InvalidInput
from bellringer.jobs import check_name
from bellringer.store import jobs
from bellringer.store.jobs import JobFilter
from bellringer.wire import Job, JobPage
from bellringer.wire.answers import Count

MOST_COUNTED: Final = 10_000
LARGE: Final = 2048  # bytes of arguments beyond which a list leaves them out
_CHOICES: Final = {
    "state": ("enabled", "paused", "disabled", "late", "failing"),
    "sort": ("id", "name"),
    "count": ("bounded",),
}
_TEXTS: Final = ("q", "prefix", "tag", "pool", "task", "owner")


class JobMark(msgspec.Struct, frozen=True, array_like=True):
    """The last job of a page: its id, and its name as lists are ordered by it."""

    job_id: UUID
    name: str


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: JobPage},
    query=(
        LIMIT,
        CURSOR,
        string("name", "the job of exactly this name"),
        string("q", "those with this text in their name"),
        string("prefix", "those whose name begins so"),
        string("tag", "those with this tag"),
        choice("state", "those in this state; late and failing are those in trouble", _CHOICES["state"]),
        string("pool", "those of this pool"),
        string("task", "those of this task"),
        string("owner", "those of this owner"),
        choice("sort", "by their ids, which are in the order of their creation, or by their names", _CHOICES["sort"]),
        choice("count", "count them too, as far as that is quick", _CHOICES["count"]),
    ),
)
async def listing(call: Call) -> Response:
    """Jobs that the filters let through. A page may be short, and still have a next one: it looks at 20,000 jobs of the
    state."""
    query = call.query()
    limit = call.limit()
    for name, words in _CHOICES.items():
        if query.get(name, words[0]) not in words:
            raise InvalidInput(f"{name} is not known", hint=f"use {', '.join(words)}", code="choice")
    if "name" in query:
        return reply(JobPage(items=[documents.job(job) for job in await _named(call, query["name"])]))
    return await _page(call, query, limit)


async def _page(call: Call, query: Mapping[str, str], limit: int) -> Response:
    wanted = JobFilter(state=query.get("state"), **{name: query.get(name) for name in _TEXTS})
    by_name = query.get("sort") == "name"
    of = f"jobs {by_name} {wanted.arguments()}"
    mark = call.cursor(of, JobMark)
    after = (mark.job_id, mark.name) if mark else None
    found, reached = await jobs.page(call.reads, call.tenant_id, wanted, by_name=by_name, after=after, most=limit + 1)
    if len(found) > limit:
        last = found[limit - 1]
        reached = (last.job_id, last.name.lower())
    count: Count | UnsetType = UNSET
    if "count" in query:
        value, is_all = await jobs.count(call.reads, call.tenant_id, wanted, MOST_COUNTED)
        count = Count(value=value, relation="eq" if is_all else "gte")
    following = call.cursor_to(of, JobMark(*reached)) if reached else None
    return reply(JobPage(items=[_brief(job) for job in found[:limit]], next_cursor=following, count=count))


def _brief(job: jobs.Job) -> Job:
    """Without large arguments: who wants them reads the job."""
    told = documents.job(job)
    if len(msgspec.json.encode((job.spec.args, job.spec.kwargs))) <= LARGE:
        return told
    return msgspec.structs.replace(told, args=[], kwargs={}, arguments_left_out=True)


async def _named(call: Call, name: str) -> list[jobs.Job]:
    try:
        found = await jobs.find(call.store, call.tenant_id, check_name(name))
    except InvalidInput:
        return []
    stored = await jobs.get(call.store, found[0], call.tenant_id) if found else None
    return [stored] if stored else []
