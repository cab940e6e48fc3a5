"""The history of a job's definition: its changes, and what each of them changed."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import BigInt, Call, no_job, reply
from bellringer.api.operations import CURSOR, LIMIT, number, operation
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import jobs, revisions
from bellringer.wire.jobs import FieldChange, Revision, RevisionItem, RevisionPage

_LARGEST: Final = (1 << 31) - 1
# What is not of the definition, or follows from it.
_BESIDE: Final = frozenset({"job_id", "revision", "created_at", "updated_at", "next_at", "description"})


class RevisionMark(msgspec.Struct, frozen=True, array_like=True):
    """The last revision of a page."""

    revision: BigInt

    def __post_init__(self) -> None:
        if self.revision > _LARGEST:
            raise ValueError("not a mark of ours")


def no_revision() -> NotFound:
    return NotFound("there is no such revision")


@operation("jobs", role=Role.VIEWER, answers={200: RevisionPage}, query=(LIMIT, CURSOR))
async def listing(call: Call) -> Response:
    """The changes of a job, newest first."""
    call.query()
    job_id, limit = await call.job_id(), call.limit()
    of = f"revisions of {job_id}"
    mark = call.cursor(of, RevisionMark)
    if await jobs.get(call.store, job_id, call.tenant_id) is None:
        raise no_job()
    found = await revisions.before(call.reads, job_id, mark.revision if mark else None, limit + 1)
    following = call.cursor_to(of, RevisionMark(found[limit - 1].revision)) if len(found) > limit else None
    return reply(RevisionPage(items=[RevisionItem(**_told(r)) for r in found[:limit]], next_cursor=following))


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: Revision},
    query=(number("against", "the revision to compare with; without it, the one before", 1, _LARGEST),),
)
async def get(call: Call) -> Response:
    """A job as it was after a change, and what differs from another revision."""
    query = call.query()
    job_id, this = await call.job_id(), _number(call.part("n"))
    other = _number(query["against"]) if "against" in query else None
    if "against" in query and other is None:
        raise InvalidInput("against must be the number of a revision", code="limit_range")
    if this is None or await jobs.get(call.store, job_id, call.tenant_id) is None:
        raise no_revision() if this is None else no_job()
    found = await revisions.one(call.reads, job_id, call.tenant_id, this)
    if found is None:
        raise no_revision()
    against = other or this - 1
    before = await revisions.one(call.reads, job_id, call.tenant_id, against) if against else None
    if other is not None and before is None:
        raise no_revision()
    change, job = found
    return reply(
        Revision(
            **_told(change),
            job=documents.job(job),
            against=against if before else None,
            changes=_changes(before[1], job) if before else [],
        )
    )


def _number(text: str) -> int | None:
    value = int(text) if re.fullmatch("[0-9]{1,10}", text, re.ASCII) else 0
    return value if 1 <= value <= _LARGEST else None


def _told(r: revisions.Revision) -> dict[str, Any]:
    return {"revision": r.revision, "at": r.effective_at, "what": r.what, "by": r.who, "why": r.why}


def _changes(before: jobs.Job, after: jobs.Job) -> list[FieldChange]:
    """Field by field, as they are told."""
    old, new = (msgspec.to_builtins(documents.job(job)) for job in (before, after))
    fields = [name for name in {**old, **new} if name not in _BESIDE]
    return [
        FieldChange(field=name, before=old.get(name), after=new.get(name))
        for name in fields
        if old.get(name) != new.get(name)
    ]
