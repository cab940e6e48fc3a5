"""Calls about many: lists of runs and dead letters, their parts, and operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from bellringer.wire import answers
from bellringer.wire import letters as dead
from bellringer.wire import operations as bulks
from bellringer.wire import runs as parts
from bellringer.wire.asks import PREFIX, Ask, Document

T = TypeVar("T")


def _get(shape: type[T], path: str, **query: Any) -> Ask[T]:
    return Ask(method="GET", path=PREFIX + path, shape=shape, query=_given(query))


def _post(shape: type[T], path: str, body: Document) -> Ask[T]:
    return Ask(method="POST", path=PREFIX + path, shape=shape, body=_given(body))


def _given(values: Document) -> Document:
    return {name: value for name, value in values.items() if value is not None}


def _at(*parts: str) -> str:
    return "".join("/" + quote(part, safe="") for part in parts)


def runs(
    *,
    job: str | None = None,
    state: str | Sequence[str] | None = None,
    task: str | None = None,
    pool: str | None = None,
    cause: str | None = None,
    tag: str | None = None,
    worker: int | None = None,
    q: str | None = None,
    start: str | None = None,
    end: str | None = None,
    count: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Ask[answers.RunPage]:
    """The newest runs that fit; `start` and `end` mean the time that they were scheduled for."""
    states = state if state is None or isinstance(state, str) else ",".join(state)
    filters = {"job": job, "state": states, "task": task, "pool": pool, "cause": cause, "tag": tag, "worker": worker}
    times = {"from": start, "to": end}
    return _get(answers.RunPage, "/runs", **filters, q=q, **times, count=count, limit=limit, cursor=cursor)


def wait_run(run_id: str, *, seconds: int | None = None) -> Ask[answers.Run]:
    """The run when it has ended, or as it is after so many seconds; up to 60."""
    return _get(answers.Run, _at("runs", run_id, "wait"), timeout=seconds)


def result(run_id: str) -> Ask[parts.Result]:
    """What an ended run gave back."""
    return _get(parts.Result, _at("runs", run_id, "result"))


def attempts(run_id: str) -> Ask[parts.Attempts]:
    return _get(parts.Attempts, _at("runs", run_id, "attempts"))


def attempt(run_id: str, number: int) -> Ask[answers.Attempt]:
    return _get(answers.Attempt, _at("runs", run_id, "attempts", str(number)))


def logs(
    run_id: str,
    *,
    level: str | None = None,
    attempt: int | None = None,
    q: str | None = None,
    tail: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Ask[answers.Lines]:
    """What a run's handler logged; `level` is the least that is wanted."""
    query = {"level": level, "attempt": attempt, "q": q, "tail": tail, "limit": limit, "cursor": cursor}
    return _get(answers.Lines, _at("runs", run_id, "logs"), **query)


def replay(
    run_id: str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Document | None = None,
    reason: str | None = None,
) -> Ask[answers.Run]:
    """Run an ended occurrence once more; arguments that are given change those that it had."""
    return _post(answers.Run, _at("runs", run_id, "replay"), {"args": args, "kwargs": kwargs, "reason": reason})


def dead_letters(
    *,
    fingerprint: str | None = None,
    job: str | None = None,
    task: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Ask[answers.Letters]:
    return _get(
        answers.Letters, "/dead-letters", fingerprint=fingerprint, job=job, task=task, limit=limit, cursor=cursor
    )


def dead_letter_groups(*, limit: int | None = None, cursor: str | None = None) -> Ask[dead.LetterGroups]:
    """Dead letters by what they died of."""
    return _get(dead.LetterGroups, "/dead-letters", group_by="fingerprint", limit=limit, cursor=cursor)


def redrive(
    runs: Sequence[str] | None = None,
    *,
    fingerprint: str | None = None,
    everything: bool = False,
    rate: float | None = None,
) -> Ask[answers.Bulk]:
    """Revive dead letters: these, those of a fingerprint, or everything; so many a minute at most."""
    return _post(answers.Bulk, "/dead-letters/redrive", {**_which(runs, fingerprint, everything), "rate": rate})


def discard(
    runs: Sequence[str] | None = None, *, fingerprint: str | None = None, everything: bool = False
) -> Ask[answers.Bulk]:
    """Take runs off the dead letters for good: these, those of a fingerprint, or everything."""
    return _post(answers.Bulk, "/dead-letters/discard", _which(runs, fingerprint, everything))


def _which(runs: Sequence[str] | None, fingerprint: str | None, everything: bool) -> Document:
    return {"runs": runs, "fingerprint": fingerprint, "all": True if everything else None}


def plan_bulk(
    action: str,
    *,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - it is what the API calls it
    ids: Sequence[str] | None = None,
) -> Ask[bulks.BulkPlan]:
    """What an operation would be about; nothing is done."""
    return _post(bulks.BulkPlan, "/bulk", {"action": action, "filter": filter, "ids": ids, "dry_run": True})


def bulk(
    action: str,
    *,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - it is what the API calls it
    ids: Sequence[str] | None = None,
    expected_count: int | None = None,
    rate: float | None = None,
    reason: str | None = None,
) -> Ask[bulks.Operation]:
    """Do something to all that are named or fit a filter; {} are all."""
    terms = {"expected_count": expected_count, "rate": rate, "reason": reason}
    return _post(bulks.Operation, "/bulk", {"action": action, "filter": filter, "ids": ids, **terms})


def operations(*, limit: int | None = None, cursor: str | None = None) -> Ask[bulks.OperationPage]:
    """The newest operations."""
    return _get(bulks.OperationPage, "/operations", limit=limit, cursor=cursor)


def operation(operation_id: str) -> Ask[bulks.Operation]:
    return _get(bulks.Operation, _at("operations", operation_id))


def abort_operation(operation_id: str) -> Ask[bulks.Operation]:
    """Let an operation do no more; what was done stays done."""
    return Ask(method="POST", path=PREFIX + _at("operations", operation_id, "abort"), shape=bulks.Operation, body={})
