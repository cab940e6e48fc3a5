"""Calls about jobs beside reading and changing one: lists, skips, revisions, and many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bellringer.wire import answers
from bellringer.wire import jobs as beside
from bellringer.wire.asks import PREFIX, Ask, Document, _at, _get, _post

BULK_LIMIT: Final = 16 * 1024 * 1024
MOST_JOBS: Final = 10_000  # in one request


def jobs(*, limit: int | None = None, cursor: str | None = None, **filters: Any) -> Ask[answers.JobPage]:
    """A page of jobs, or the one of a name.

    Filters are name, q, prefix, tag, state, pool, task and owner; sort is id or name; count="bounded" counts them.
    """
    return _get(answers.JobPage, "/jobs", limit=limit, cursor=cursor, **filters)


def put_job(
    name: str, document: Document, *, revision: int | None = None, create_only: bool = False
) -> Ask[answers.Job]:
    """Make the job of a name what the document says; with a revision, only if it still has that one."""
    headers = {} if revision is None else {"If-Match": f'"{revision}"'}
    headers |= {"If-None-Match": "*"} if create_only else {}
    return Ask(method="PUT", path=PREFIX + _at("jobs", name), shape=answers.Job, body=document, headers=headers)


def delete_job(job: str, *, runs: str | None = None) -> Ask[None]:
    """End a job's future; what runs finishes (runs="keep"), or is asked to stop ("cancel")."""
    query = {} if runs is None else {"runs": runs}
    return Ask(method="DELETE", path=PREFIX + _at("jobs", job), shape=type(None), query=query)


def skip(job: str, at: str, *, reason: str | None = None) -> Ask[beside.Skip]:
    """Let one coming occurrence of a job not run."""
    return _post(beside.Skip, _at("jobs", job, "skip"), {"at": at, "reason": reason})


def unskip(job: str, at: str) -> Ask[None]:
    """Let an occurrence run after all."""
    return Ask(method="DELETE", path=PREFIX + _at("jobs", job, "skip"), shape=type(None), query={"at": at})


def skips(job: str, *, limit: int | None = None, cursor: str | None = None) -> Ask[beside.SkipPage]:
    """What is skipped of a job's future."""
    return _get(beside.SkipPage, _at("jobs", job, "skip"), limit=limit, cursor=cursor)


def revisions(job: str, *, limit: int | None = None, cursor: str | None = None) -> Ask[beside.RevisionPage]:
    """The changes of a job, newest first."""
    return _get(beside.RevisionPage, _at("jobs", job, "revisions"), limit=limit, cursor=cursor)


def revision(job: str, revision: int, *, against: int | None = None) -> Ask[beside.Revision]:
    """A job as it was, and what differs from the revision before it, or from another."""
    return _get(beside.Revision, _at("jobs", job, "revisions", str(revision)), against=against)


def rollback(job: str, revision: int, *, expected: int | None = None) -> Ask[answers.Job]:
    """Let the definition of an old revision hold again; `expected` is the revision that the job must have."""
    headers = {} if expected is None else {"If-Match": f'"{expected}"'}
    path = PREFIX + _at("jobs", job, "rollback")
    return Ask(method="POST", path=path, shape=answers.Job, body={"revision": revision}, headers=headers)


def create_jobs(documents: Sequence[Document], atomic: bool = True) -> Ask[beside.BulkCreated]:
    """Create up to 10,000 jobs, all or none; with `atomic` false each for itself. Answers their ids."""
    return Ask(
        method="POST",
        path=f"{PREFIX}/jobs/bulk",
        shape=beside.BulkCreated,
        body={"items": list(documents), "atomic": atomic},
        headers={"Prefer": "return=minimal"},
        limit=BULK_LIMIT,
    )
