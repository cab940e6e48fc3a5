"""Jobs that are workflows: a list of them, the graph of one, its versions, and what differs between two of these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents, flow_documents
from bellringer.api.calls import Call, no_job, reply
from bellringer.api.flows import no_part
from bellringer.api.operations import CURSOR, LIMIT, number, operation, string
from bellringer.api.revisions import no_revision
from bellringer.errors import InvalidInput
from bellringer.store import flow_reads, job_history, jobs, revisions
from bellringer.store.flow_reads import GraphRows, VersionRow
from bellringer.store.job_history import PastRun
from bellringer.wire.workflows import (
    Graph,
    GraphDifference,
    GraphVersion,
    GraphVersions,
    LastRun,
    Workflow,
    WorkflowPage,
)
from bellringer.workflows import difference as compared
from bellringer.workflows import read_graph

_LARGEST: Final = (1 << 31) - 1


class NameMark(msgspec.Struct, frozen=True, array_like=True):
    """The last job of a page, by its name as lists are ordered."""

    name: str


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: WorkflowPage},
    query=(LIMIT, CURSOR, string("q", "those with this text in their name")),
)
async def listing(call: Call) -> Response:
    """Jobs that are workflows by their names, each with its last run."""
    q, limit = call.query().get("q"), call.limit()
    of = f"workflows {q}"
    mark = call.cursor(of, NameMark)
    found = await flow_reads.workflows(call.reads, call.tenant_id, mark.name if mark else None, q, limit + 1)
    following = call.cursor_to(of, NameMark(found[limit - 1][1])) if len(found) > limit else None
    ids = [job_id for job_id, _ in found[:limit]]
    last = {run.key.job_id: run for run in await job_history.last_runs(call.reads, call.tenant_id, ids, 1)}
    stored = await jobs.some(call.reads, ids, call.tenant_id)
    items = [_workflow(job, last.get(job.job_id)) for job in stored if job.spec.graph is not None]
    return reply(WorkflowPage(items=items, next_cursor=following))


def _workflow(job: jobs.Job, last: PastRun | None) -> Workflow:
    assert job.spec.graph is not None
    return Workflow(
        job_id=str(job.job_id),
        name=job.name,
        version=job.spec.graph,
        nodes=job.nodes,
        paused=job.paused_at is not None,
        next_at=documents.next_at(job),
        last=None if last is None else _last(last),
    )


def _last(run: PastRun) -> LastRun:
    return LastRun(run_id=run.key.id, state=run.state, started_at=run.started_at, finished_at=run.finished_at)


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: Graph},
    query=(
        number("version", "a version of it; without one, the present", 1, _LARGEST),
        number("revision", "as it was at this revision of the job", 1, _LARGEST),
    ),
)
async def graph(call: Call) -> Response:
    """The graph of a workflow: what its author wrote, its nodes and edges."""
    query = call.query()
    version, revision = _whole(query, "version"), _whole(query, "revision")
    if version and revision:
        raise InvalidInput("version and revision are both given", hint="give one", code="conflicting_fields")
    job = await _job(call)
    if version is not None:
        revision = (await _version(call, job, version)).revision
    elif revision is not None:
        found = await revisions.one(call.reads, job.job_id, call.tenant_id, revision)
        if found is None:
            raise no_revision()
        version = found[1].spec.graph
    else:
        version, revision = job.spec.graph, job.revision
    return reply(flow_documents.graph(await _graph(call, version), revision))


@operation("jobs", role=Role.VIEWER, answers={200: GraphVersions})
async def versions(call: Call) -> Response:
    """The versions of a workflow, newest first, each with the first revision of the job that had it."""
    call.query()
    job = await _job(call)
    found = await flow_reads.versions(call.reads, job.job_id)
    items = [
        GraphVersion(version=v.version, revision=v.revision, effective_at=v.effective_at, who=v.who) for v in found
    ]
    return reply(GraphVersions(items=items))


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: GraphDifference},
    query=(
        number("from", "a version; without one, that before the other", 1, _LARGEST),
        number("to", "a version; without one, the present", 1, _LARGEST),
    ),
)
async def difference(call: Call) -> Response:
    """What differs between two versions of a workflow: nodes, their fields, and edges."""
    query = call.query()
    before, after = _whole(query, "from"), _whole(query, "to")
    job = await _job(call)
    newer = (await _version(call, job, after)) if after else None
    later = newer.version if newer else job.spec.graph
    earlier = (await _version(call, job, before)).version if before else await _before(call, job, later)
    old, new = await _graph(call, earlier), await _graph(call, later)
    found = compared(read_graph(old.document), read_graph(new.document))
    return reply(flow_documents.difference(old.graph_id, new.graph_id, found))


async def _job(call: Call) -> jobs.Job:
    job = await jobs.get(call.store, await call.job_id(), call.tenant_id)
    if job is None:
        raise no_job()
    return job


async def _version(call: Call, job: jobs.Job, number: int) -> VersionRow:
    found = next((v for v in await flow_reads.versions(call.reads, job.job_id) if v.version == number), None)
    if found is None:
        raise no_part("the job has no such version", "list them with `bellringer workflows versions JOB`")
    return found


async def _before(call: Call, job: jobs.Job, version: int | None) -> int | None:
    """The version that came before one; of the first, itself."""
    known = [v.version for v in await flow_reads.versions(call.reads, job.job_id)]
    behind = known[known.index(version) + 1 :] if version in known else []
    return behind[0] if behind else version


async def _graph(call: Call, version: int | None) -> GraphRows:
    found = None if version is None else await flow_reads.graph(call.reads, call.tenant_id, version)
    if found is None:
        raise no_part("the job is no workflow", "jobs with a `workflow` are; see `bellringer workflows list`")
    return found


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    value = int(text) if re.fullmatch("[0-9]{1,10}", text, re.ASCII) else 0
    if not 1 <= value <= _LARGEST:
        raise InvalidInput(f"{name} must be a number from 1 on", code="limit_range")
    return value
