"""Between the documents of the API and the words: a job, an order, and a merge patch over a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput
from bellringer.jobs import BUILT_IN, DEFAULT_POOL, DEFAULT_PRIORITY, HTTP, WORKFLOW, Definition, check_name, pool_for
from bellringer.policies import Catchup, Delivery, Limit, Misfire, Overlap, Retry
from bellringer.schedule import Schedule, parse, to_document
from bellringer.schedule.instants import write_instant
from bellringer.wire.reading import Gathering, duration, instant, read, refuse_unknown
from bellringer.wire.requests import ExecuteRequest, JobRequest, TriggerRequest

R = TypeVar("R", JobRequest, ExecuteRequest)
W = TypeVar("W", bound=StrEnum)

SHORTEST_TIMEOUT: Final = timedelta(milliseconds=1)
LONGEST_TIMEOUT: Final = timedelta(days=30)
_KINDS: Final = frozenset({"cron", "every", "delay", "at", "rrule"})


def to_definition(request: JobRequest, *, owner: str = "api") -> Definition:
    """A job's request in words."""
    g = Gathering()
    schedules = _schedules(request, g)
    task, kwargs = what_of(request, g)
    expected = expected_of(request, g)
    definition = Definition(
        name=request.name,
        task=task,
        schedules=schedules,
        args=request.args,
        kwargs=kwargs,
        workflow=request.workflow,
        # However long a workflow takes: its own run has a slot only until its nodes begin.
        pool=request.pool or (DEFAULT_POOL if task == WORKFLOW else pool_for(task, expected)),
        priority=DEFAULT_PRIORITY if request.priority is None else request.priority,
        timeout=timeout_of(request, g),
        heartbeat=heartbeat_of(request, g),
        retry=g.take("/retry", lambda: retry_of(request.retry), Retry()),
        delivery=g.take("/delivery", lambda: delivery_of(request), Delivery.AT_LEAST_ONCE),
        misfire=g.take("/misfire", lambda: word(Misfire, request.misfire, "misfire"), Misfire.FIRE_ONCE),
        catchup=g.take("/max_catchup", lambda: _catchup(request), Catchup()),
        overlap=g.take("/overlap", lambda: word(Overlap, request.overlap, "overlap"), Overlap.SKIP),
        max_concurrency=request.max_concurrency,
        limit=g.take("/concurrency_key", lambda: _limit_of(request), None),
        jitter=g.take("/jitter", lambda: _length(request.jitter, "jitter"), None),
        late_after=g.take("/late_after", lambda: _length(request.late_after, "late_after"), None),
        starts_at=g.take("/starts_at", lambda: instant(request.starts_at, what="starts_at"), None),
        ends_at=g.take("/ends_at", lambda: instant(request.ends_at, what="ends_at"), None),
        enabled=request.enabled,
        owner=owner,
        tags=tuple(request.tags),
        region=request.region,
        expected_duration=expected,
        routed=not request.pool and task not in (HTTP, WORKFLOW),
    )
    g.done()
    return definition


def patched(definition: Definition, patch: Mapping[str, Any]) -> Definition:
    """A definition after a JSON merge patch (RFC 7396): what the patch leaves out stays as it is.

    A workflow is replaced whole: in it, null is a value as any other.
    """
    g = Gathering()
    refuse_unknown(JobRequest, patch, g)
    g.done()
    target = _document(definition)
    patch = dict(patch)
    keeps_graph = definition.task == WORKFLOW and "workflow" not in patch
    workflow = {} if keeps_graph else patch.pop("workflow", None)
    if "payload" in patch and "kwargs" not in patch:
        patch["kwargs"] = patch.pop("payload")
    if "schedule" in patch and "schedules" not in patch:
        target["schedule"] = _patch_target(target.pop("schedules"), patch["schedule"])
    merged = {key: value for key, value in merge(target, patch).items() if value is not None}
    if workflow is not None:
        merged["workflow"] = workflow
    made = to_definition(read(JobRequest, merged), owner=definition.owner)
    if keeps_graph:
        made = replace(made, workflow=None, graph=definition.graph, nodes=definition.nodes)
    return replace(made, pool=definition.pool) if keeps_pool(made, definition) else made


def keeps_pool(made: Definition, before: Definition) -> bool:
    """Whether a changed job stays where its runs have brought it: nobody says, nor said, where it belongs."""
    return all(d.routed and d.expected_duration is None for d in (made, before))


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null removes, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _patch_target(stored: list[dict[str, object]], patch: Any) -> dict[str, object]:
    """What a patch of `schedule` is merged into.

    A patch that names another kind than the stored one replaces it: merged by the letter, {"every": "5m"}
    over a cron would say both.
    """
    if len(stored) != 1 or not isinstance(patch, Mapping):
        return {}
    kinds = _KINDS & patch.keys()
    if not kinds <= stored[0].keys():
        return {}
    # The seed was chosen for the old expression; a new one without `H` has no use for it.
    return {key: value for key, value in stored[0].items() if key != "seed" or not kinds}


def _written(schedule: Schedule) -> dict[str, object]:
    """Without the content of its calendar, which registration looks up anew."""
    return {key: value for key, value in to_document(schedule).items() if key != "calendar_digest"}


def _document(d: Definition) -> dict[str, Any]:
    """A definition as its author could have written it."""
    what = {"task": None if d.task == WORKFLOW else d.task, "args": list(d.args), "kwargs": dict(d.kwargs)}
    return {
        "name": d.name,
        **({"http": dict(d.kwargs)} if d.task == HTTP else what),
        "schedules": [_written(s) for s in d.schedules],
        "pool": None if d.routed else d.pool,
        "expected_duration": format_duration(d.expected_duration) if d.expected_duration else None,
        "priority": d.priority,
        "timeout": format_duration(d.timeout) if d.timeout else None,
        "heartbeat": format_duration(d.heartbeat) if d.heartbeat else None,
        "retry": d.retry.to_document(),
        "delivery": d.delivery.value,
        "misfire": d.misfire.value,
        **_catchup_document(d),
        "overlap": d.overlap.value,
        "max_concurrency": d.max_concurrency,
        "concurrency_key": d.limit.key if d.limit else None,
        "concurrency_limit": d.limit.most if d.limit else None,
        "jitter": format_duration(d.jitter) if d.jitter else None,
        "late_after": format_duration(d.late_after) if d.late_after else None,
        "starts_at": write_instant(d.starts_at) if d.starts_at else None,
        "ends_at": write_instant(d.ends_at) if d.ends_at else None,
        "enabled": d.enabled,
        "tags": list(d.tags),
        "region": d.region,
    }


def _catchup_document(d: Definition) -> dict[str, Any]:
    plain, own = Catchup(), d.catchup
    return {
        "max_catchup": own.most if own.most != plain.most else None,
        "catchup_window": format_duration(own.window) if own.window != plain.window else None,
        "catchup_rate": own.rate,
    }


def _catchup(request: JobRequest) -> Catchup:
    plain = Catchup()
    window = _length(request.catchup_window, "catchup_window")
    most = plain.most if request.max_catchup is None else request.max_catchup
    return Catchup(most, window or plain.window, request.catchup_rate)


def _limit_of(request: JobRequest) -> Limit | None:
    if request.concurrency_key is not None:
        return Limit(request.concurrency_key, 1 if request.concurrency_limit is None else request.concurrency_limit)
    if request.concurrency_limit is not None:
        raise InvalidInput(
            "concurrency_limit goes with concurrency_key",
            hint="to limit this job's own runs, give max_concurrency",
            pointer="/concurrency_limit",
            code="missing_field",
        )
    return None


def _length(value: str | float | None, what: str) -> timedelta | None:
    return None if value is None else parse_duration(value, what=what)


def _schedules(request: JobRequest, g: Gathering) -> tuple[Schedule, ...]:
    if request.schedule is not None and request.schedules is not None:
        g.add(
            InvalidInput(
                "schedule and schedules are both given",
                hint="give one of them",
                pointer="/schedules",
                code="conflicting_fields",
            )
        )
        return ()
    if request.schedule is not None:
        single = request.schedule
        return g.take("/schedule", lambda: (parse(single),), ())
    found: list[Schedule] = []
    for place, document in enumerate(request.schedules or ()):
        found += g.take(f"/schedules/{place}", lambda d=document, p=place: _placed(d, p), [])  # type: ignore[misc]
    return tuple(found)


def _placed(document: Mapping[str, Any], place: int) -> list[Schedule]:
    try:
        return [parse(document)]
    except InvalidInput as error:
        error.pointer = error.pointer.replace("/schedule", f"/schedules/{place}", 1)
        raise


def what_of(request: JobRequest | ExecuteRequest, g: Gathering) -> tuple[str, dict[str, Any]]:
    """The task and its keyword arguments; of a URL to call, the built-in task, which takes the target as they are."""
    if isinstance(request, JobRequest) and request.workflow is not None:
        if other := next((name for name in ("task", "http") if getattr(request, name) is not None), None):
            message, hint = f"workflow and {other} are both given", "a job has one of them"
            g.add(InvalidInput(message, hint=hint, pointer="/workflow", code="conflicting_fields"))
        return WORKFLOW, g.take("/payload", lambda: kwargs_of(request), None) or {}
    if request.http is None:
        task = g.take("/task", lambda: _task_of(request), "")
        kwargs: dict[str, Any] | None = g.take("/payload", lambda: kwargs_of(request), None)
        return task, kwargs or {}
    if request.task is not None or request.args or request.kwargs or request.payload:
        other = "task" if request.task is not None else "arguments"
        message, hint = f"http and {other} are both given", "a job runs a task or calls a URL; give one"
        g.add(InvalidInput(message, hint=hint, pointer="/http", code="conflicting_fields"))
    return HTTP, request.http


def _task_of(request: JobRequest | ExecuteRequest) -> str:
    if request.task is None:
        hint = "name a task, or give http" + (" or workflow" if isinstance(request, JobRequest) else "")
        raise InvalidInput("task is missing", hint=hint, pointer="/task", code="missing_field")
    task = check_name(request.task, what="task", pointer="/task")
    if task in BUILT_IN:
        hint = "give what to call as http" if task == HTTP else "make a job with a workflow"
        raise InvalidInput(f"{task} is a built-in task", hint=hint, pointer="/task", code="name_reserved")
    return task


def task_of(request: JobRequest) -> str:
    """The task whose defaults hold for a job."""
    return request.task or (HTTP if request.workflow is None else WORKFLOW)


def kwargs_of(request: JobRequest | ExecuteRequest | TriggerRequest) -> dict[str, Any] | None:
    """The keyword arguments, by whichever of their two names they came."""
    if request.payload is not None and request.kwargs is not None:
        raise InvalidInput(
            "kwargs and payload are both given",
            hint="they mean the same; give one",
            code="conflicting_fields",
        )
    return request.payload if request.payload is not None else request.kwargs


def timeout_of(request: JobRequest | ExecuteRequest, g: Gathering) -> timedelta | None:
    return g.take("/timeout", lambda: _limit(request.timeout, "timeout"), None)


def heartbeat_of(request: JobRequest | ExecuteRequest, g: Gathering) -> timedelta | None:
    return g.take("/heartbeat", lambda: _limit(request.heartbeat, "heartbeat"), None)


def _limit(value: str | float | None, what: str) -> timedelta | None:
    return duration(value, what=what, least=SHORTEST_TIMEOUT, most=LONGEST_TIMEOUT)


def expected_of(request: JobRequest | ExecuteRequest, g: Gathering) -> timedelta | None:
    return g.take("/expected_duration", lambda: _length(request.expected_duration, "expected_duration"), None)


def delivery_of(request: JobRequest | ExecuteRequest) -> Delivery:
    return Delivery.AT_LEAST_ONCE if request.delivery is None else word(Delivery, request.delivery, "delivery")


def filled(request: R, defaults: Mapping[str, Any]) -> R:
    """A request in which what was left out is as the task's code wants it."""
    missing = {name: value for name, value in defaults.items() if getattr(request, name) is None}
    return msgspec.structs.replace(request, **missing) if missing else request


def retry_of(document: int | dict[str, Any] | None) -> Retry:
    try:
        return Retry() if document is None else Retry.parse(document)
    except TypeError:  # such as a number where a list of delays belongs
        raise InvalidInput("retry cannot be read", hint="delays is a list", code="type") from None


def word(kind: type[W], text: str, what: str) -> W:
    """One of a policy's words."""
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(kind)
    raise InvalidInput(f"{what} {text[:40]!r} is not known", hint=f"use {known}", code="unknown_word")
