"""Every call of the API, described once: what is sent, and the shape of what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from bellringer.payload import check_payload
from bellringer.wire import answers, reasons

T = TypeVar("T")
Document = Mapping[str, Any]

PREFIX: Final = "/api/v1"
BODY_LIMIT: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Generic[T]):
    """One call: what is sent, and the shape of what comes back."""

    method: str
    path: str
    shape: type[T]
    query: Document = field(default_factory=dict)
    body: Document | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    accepts: tuple[int, ...] = ()  # statuses beyond 2xx that carry the shape too

    def content(self) -> bytes | None:
        """The body. One that is too large is refused here: a server that cuts it off may go unheard."""
        if self.body is None:
            return None
        return check_payload(self.body, limit=BODY_LIMIT, what="the request")


def _get(shape: type[T], path: str, **query: Any) -> Ask[T]:
    given = {name: value for name, value in query.items() if value is not None}
    return Ask(method="GET", path=PREFIX + path, shape=shape, query=given)


def _post(shape: type[T], path: str, body: Document) -> Ask[T]:
    given = {name: value for name, value in body.items() if value is not None}
    return Ask(method="POST", path=PREFIX + path, shape=shape, body=given)


def _at(*parts: str) -> str:
    return "".join("/" + quote(part, safe="") for part in parts)


def jobs(*, name: str | None = None, limit: int | None = None, cursor: str | None = None) -> Ask[answers.JobPage]:
    """A page of jobs, or the one of a name."""
    return _get(answers.JobPage, "/jobs", name=name, limit=limit, cursor=cursor)


def job(job: str) -> Ask[answers.Job]:
    """A job by its id or name."""
    return _get(answers.Job, _at("jobs", job))


def create_job(document: Document) -> Ask[answers.Job]:
    return Ask(method="POST", path=f"{PREFIX}/jobs", shape=answers.Job, body=document)


def patch_job(job: str, patch: Document, *, revision: int | None = None) -> Ask[answers.Job]:
    """Change what the merge patch names; with a revision, only if the job still has it."""
    headers = {"Content-Type": "application/merge-patch+json"}
    if revision is not None:
        headers["If-Match"] = f'"{revision}"'
    path = PREFIX + _at("jobs", job)
    return Ask(method="PATCH", path=path, shape=answers.Job, body=patch, headers=headers)


def delete_job(job: str) -> Ask[None]:
    return Ask(method="DELETE", path=PREFIX + _at("jobs", job), shape=type(None))


def pause(job: str, *, reason: str | None = None, until: str | float | None = None) -> Ask[answers.Job]:
    return _post(answers.Job, _at("jobs", job, "pause"), {"reason": reason, "until": until})


def resume(job: str) -> Ask[answers.Job]:
    return _post(answers.Job, _at("jobs", job, "resume"), {})


def trigger(job: str, *, args: Sequence[Any] | None = None, kwargs: Document | None = None) -> Ask[answers.Run]:
    """Run a job now, whatever its schedule says."""
    return _post(answers.Run, _at("jobs", job, "run"), {"args": args, "kwargs": kwargs})


def job_runs(job: str, *, limit: int | None = None, cursor: str | None = None) -> Ask[answers.RunPage]:
    return _get(answers.RunPage, _at("jobs", job, "runs"), limit=limit, cursor=cursor)


def why(job: str, *, at: str | None = None) -> Ask[reasons.Explanation]:
    """Why a job does not run now, or what became of it at a time."""
    return _get(reasons.Explanation, _at("jobs", job, "why"), at=at)


def runs(*, job: str | None = None, limit: int | None = None, cursor: str | None = None) -> Ask[answers.RunPage]:
    """The newest runs, of all jobs or of one."""
    return _get(answers.RunPage, "/runs", job=job, limit=limit, cursor=cursor)


def run(run_id: str) -> Ask[answers.Run]:
    """A run with its attempts."""
    return _get(answers.Run, _at("runs", run_id))


def explain(run_id: str) -> Ask[reasons.Explanation]:
    """Why a run is where it is."""
    return _get(reasons.Explanation, _at("runs", run_id, "explain"))


def cancel(run_id: str, *, reason: str | None = None) -> Ask[answers.Run]:
    return _post(answers.Run, _at("runs", run_id, "cancel"), {"reason": reason})


def retry(run_id: str) -> Ask[answers.Run]:
    return _post(answers.Run, _at("runs", run_id, "retry"), {})


def logs(run_id: str, *, limit: int | None = None, cursor: str | None = None) -> Ask[answers.Lines]:
    return _get(answers.Lines, _at("runs", run_id, "logs"), limit=limit, cursor=cursor)


def execute(task: str, *, args: Sequence[Any] = (), kwargs: Document | None = None, **options: Any) -> Ask[answers.Run]:
    """Run a task without a job; options are at, delay, pool, priority, timeout, retry, delivery and key."""
    return _post(answers.Run, "/jobs/execute", {"task": task, "args": args, "kwargs": kwargs or {}, **options})


def dead_letters(
    *, fingerprint: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Ask[answers.Letters]:
    return _get(answers.Letters, "/dead-letters", fingerprint=fingerprint, limit=limit, cursor=cursor)


def redrive(
    runs: Sequence[str] | None = None, *, fingerprint: str | None = None, everything: bool = False
) -> Ask[answers.Bulk]:
    """Revive dead letters: these, those of a fingerprint, or everything."""
    return _post(answers.Bulk, "/dead-letters/redrive", _which(runs, fingerprint, everything))


def discard(
    runs: Sequence[str] | None = None, *, fingerprint: str | None = None, everything: bool = False
) -> Ask[answers.Bulk]:
    """Take runs off the dead letters for good: these, those of a fingerprint, or everything."""
    return _post(answers.Bulk, "/dead-letters/discard", _which(runs, fingerprint, everything))


def _which(runs: Sequence[str] | None, fingerprint: str | None, everything: bool) -> Document:
    return {"runs": runs, "fingerprint": fingerprint, "all": True if everything else None}


def workers() -> Ask[answers.Workers]:
    return _get(answers.Workers, "/workers")


def cluster() -> Ask[answers.Cluster]:
    return _get(answers.Cluster, "/cluster")


def preview(schedule: Document, *, n: int | None = None, after: str | None = None) -> Ask[answers.Preview]:
    """What a schedule means, and its next occurrences."""
    return _post(answers.Preview, "/schedules/preview", {"schedule": schedule, "n": n, "from": after})


def version() -> Ask[answers.Version]:
    return _get(answers.Version, "/version")


def ready() -> Ask[answers.Readiness]:
    """Whether the server can serve, and what stands in the way."""
    return Ask(method="GET", path="/readyz", shape=answers.Readiness, accepts=(503,))
