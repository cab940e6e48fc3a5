"""What is asked and told of jobs beside themselves: skips, revisions, and many at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType

from bellringer.wire.answers import Answer, Job
from bellringer.wire.problems import Fault
from bellringer.wire.requests import JobRequest, Request


class SkipRequest(Request, frozen=True):
    """Which coming occurrence, as an instant with an offset, and why."""

    at: str
    reason: str | None = None


class Skip(Answer, frozen=True):
    """An occurrence that will not run, who wanted it so, and why."""

    job_id: str
    at: datetime
    by: str
    reason: str | None
    made_at: datetime


class SkipPage(Answer, frozen=True):
    """Skips to come, the next first."""

    items: list[Skip]
    next_cursor: str | None = None


class RevisionItem(Answer, frozen=True):
    """One change of a job: when, what (created, changed, paused, resumed, deleted), by whom, and why."""

    revision: int
    at: datetime
    what: str
    by: str
    why: str | None


class RevisionPage(Answer, frozen=True):
    """The changes of a job, newest first."""

    items: list[RevisionItem]
    next_cursor: str | None = None


class FieldChange(Answer, frozen=True):
    """A field that differs between two revisions."""

    field: str
    before: Any
    after: Any


class Revision(RevisionItem, frozen=True):
    """A change with the job as it was after it, and what differs from the revision `against`."""

    job: Job
    against: int | None
    changes: list[FieldChange]


class RollbackRequest(Request, frozen=True):
    """The revision whose definition is to hold again."""

    revision: int


class BulkRequest(Request, frozen=True):
    """Jobs to create, up to 10,000: all or none, or, with `atomic` false, each for itself."""

    items: list[JobRequest]
    atomic: bool = True


class BulkItem(Answer, frozen=True):
    """What became of one of them: its place in the request, and its id or what is wrong with it."""

    index: int
    status: int
    job_id: str | UnsetType = UNSET
    job: Job | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    errors: list[Fault] | UnsetType = UNSET


class BulkCreated(Answer, frozen=True):
    """What became of all of them; with `Prefer: return=minimal` the jobs are told by their ids alone."""

    created: int
    failed: int
    items: list[BulkItem] | UnsetType = UNSET
    job_ids: list[str] | UnsetType = UNSET
