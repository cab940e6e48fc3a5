"""Converts between job requests and job definitions, and applies merge patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from bellringer.core.jobs import (
    BUILT_IN_TASKS,
    DEFAULT_POOL,
    HTTP_TASK,
    JOB_FIELDS,
    NOTIFY_TASK,
    WORKFLOW_TASK,
    Definition,
    JobFields,
    check_name,
    pool_for,
)
from bellringer.core.policies import After, Catchup, Delivery, Limit, Misfire, Overlap
from bellringer.core.redaction import check_paths
from bellringer.core.retry_policy import Retry
from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule import Schedule, parse_schedule, to_document
from bellringer.schedule.instants import write_instant
from bellringer.wire.decode import Gathering, duration, instant, read, refuse_unknown
from bellringer.wire.jobs import JobRequest, TriggerRequest
from bellringer.wire.runs import ExecuteRequest

R = TypeVar("R", JobRequest, ExecuteRequest)
W = TypeVar("W", bound=StrEnum)

SHORTEST_TIMEOUT: Final = timedelta(milliseconds=1)
LONGEST_TIMEOUT: Final = timedelta(days=30)
_KINDS: Final = frozenset({"cron", "every", "delay", "at", "rrule"})


def to_definition(request: JobRequest, *, owner: str = "api") -> Definition:
    """Returns the definition that a request describes; raises DecodeErrors with all faults at once."""
    g = Gathering()
    fields = {name: _read_field(request, name, g) for name in _REQUEST_FIELDS}
    schedules = _schedules(request, g)
    task, kwargs = what_of(request, g)
    definition = Definition(
        **fields,
        name=request.name,
        task=task,
        schedules=schedules,
        args=request.args,
        kwargs=kwargs,
        workflow=request.workflow,
        # The run of a workflow holds a slot only until its nodes begin, however long the workflow takes.
        pool=request.pool or (DEFAULT_POOL if task == WORKFLOW_TASK else pool_for(task, fields["expected_duration"])),
        timeout=timeout_of(request, g),
        heartbeat=heartbeat_of(request, g),
        retry=g.take("/retry", lambda: retry_of(request.retry), Retry()),
        delivery=g.take("/delivery", lambda: delivery_of(request), Delivery.AT_LEAST_ONCE),
        keep_result=bool(request.keep_result),
        redact=g.take("/redact", lambda: check_paths(request.redact or ()), ()),
        misfire=g.take("/misfire", lambda: word(Misfire, request.misfire, "misfire"), Misfire.FIRE_ONCE),
        catchup=g.take("/max_catchup", lambda: _catchup(request), Catchup()),
        overlap=g.take("/overlap", lambda: word(Overlap, request.overlap, "overlap"), Overlap.SKIP),
        max_concurrency=request.max_concurrency,
        limit=g.take("/concurrency_key", lambda: _limit_of(request), None),
        owner=owner,
        region=request.region,
        routed=not request.pool and task not in (HTTP_TASK, WORKFLOW_TASK),
    )
    g.done()
    return definition


_FIELD_TYPES: Final = get_type_hints(JobFields)
_REQUEST_FIELDS: Final = tuple(name for name in JOB_FIELDS if name in JobRequest.__struct_fields__)


def _read_field(request: JobRequest, name: str, g: Gathering) -> Any:
    """Converts the value of a request to the type that `JobFields` declares."""
    value, kind, default = getattr(request, name), _FIELD_TYPES[name], getattr(_DEFAULTS, name)
    if value is None:
        return default
    if kind == timedelta | None:
        return g.take(f"/{name}", lambda: parse_duration(value, what=name), default)
    if kind == datetime | None:
        return g.take(f"/{name}", lambda: instant(value, what=name), default)
    if kind == After | None:
        return g.take(f"/{name}", lambda: After.parse(value), default)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return g.take(f"/{name}", lambda: word(kind, value, name), default)
    return tuple(value) if isinstance(value, list) else value


_DEFAULTS: Final = JobFields()


def render_fields(source: JobFields) -> dict[str, Any]:
    """Returns the values of `JobFields` as requests and responses have them: durations as text, tuples as lists."""
    return {name: _render_value(getattr(source, name)) for name in JOB_FIELDS}


def _render_value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, After):
        return value.to_document()
    return list(value) if isinstance(value, tuple) else value


def patched(definition: Definition, patch: Mapping[str, Any]) -> Definition:
    """Apply a JSON merge patch (RFC 7396) to a definition; omitted fields are not changed.

    A workflow is replaced as a whole, because null is an ordinary value inside it.
    """
    g = Gathering()
    refuse_unknown(JobRequest, patch, g)
    g.done()
    target = definition_document(definition)
    patch = dict(patch)
    keeps_graph = definition.task == WORKFLOW_TASK and "workflow" not in patch
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
    """Whether a changed job keeps its learned pool: neither version names a pool or an expected duration."""
    return all(d.routed and d.expected_duration is None for d in (made, before))


def merge(target: Any, patch: Any) -> Any:
    """Merge a patch (RFC 7396): objects are merged, null removes a key, anything else replaces the value."""
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
    """The stored schedule that a patch of `schedule` is merged into.

    A patch with another kind of schedule replaces the stored one: merging {"every": "5m"} into a cron schedule would
    give both kinds.
    """
    if len(stored) != 1 or not isinstance(patch, Mapping):
        return {}
    kinds = _KINDS & patch.keys()
    if not kinds <= stored[0].keys():
        return {}
    # The seed belongs to the old expression; a new one without `H` must not have it.
    return {key: value for key, value in stored[0].items() if key != "seed" or not kinds}


def _written(schedule: Schedule) -> dict[str, object]:
    """Render a schedule without the content of its calendar, which registration looks up."""
    return {key: value for key, value in to_document(schedule).items() if key != "calendar_digest"}


def definition_document(d: Definition) -> dict[str, Any]:
    """Returns the request document that would create this definition."""
    what = {"task": None if d.task == WORKFLOW_TASK else d.task, "args": list(d.args), "kwargs": dict(d.kwargs)}
    fields = render_fields(d)
    return {
        **{name: _write_if_instant(fields[name]) for name in _REQUEST_FIELDS},
        "name": d.name,
        **({"http": dict(d.kwargs)} if d.task == HTTP_TASK else what),
        "schedules": [_written(s) for s in d.schedules],
        "pool": None if d.routed else d.pool,
        "timeout": format_duration(d.timeout) if d.timeout else None,
        "heartbeat": format_duration(d.heartbeat) if d.heartbeat else None,
        "retry": d.retry.to_document(),
        "delivery": d.delivery.value,
        "keep_result": d.keep_result or None,
        "redact": list(d.redact) or None,
        "misfire": d.misfire.value,
        **_catchup_document(d),
        "overlap": d.overlap.value,
        "max_concurrency": d.max_concurrency,
        "concurrency_key": d.limit.key if d.limit else None,
        "concurrency_limit": d.limit.most if d.limit else None,
        "region": d.region,
    }


def _write_if_instant(value: Any) -> Any:
    return write_instant(value) if isinstance(value, datetime) else value


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
            "concurrency_limit needs concurrency_key",
            hint="to limit the runs of this job only, use max_concurrency",
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
        return g.take("/schedule", lambda: (parse_schedule(single),), ())
    found: list[Schedule] = []
    for place, document in enumerate(request.schedules or ()):
        found += g.take(f"/schedules/{place}", lambda d=document, p=place: _placed(d, p), [])  # type: ignore[misc]
    return tuple(found)


def _placed(document: Mapping[str, Any], place: int) -> list[Schedule]:
    try:
        return [parse_schedule(document)]
    except InvalidInput as error:
        error.pointer = error.pointer.replace("/schedule", f"/schedules/{place}", 1)
        raise


def what_of(request: JobRequest | ExecuteRequest, g: Gathering) -> tuple[str, dict[str, Any]]:
    """The task and its keyword arguments; for a URL, the built-in task with the target as its arguments."""
    if isinstance(request, JobRequest) and request.workflow is not None:
        if other := next((name for name in ("task", "http") if getattr(request, name) is not None), None):
            message, hint = f"workflow and {other} are both given", "give only one of them"
            g.add(InvalidInput(message, hint=hint, pointer="/workflow", code="conflicting_fields"))
        return WORKFLOW_TASK, g.take("/payload", lambda: kwargs_of(request), None) or {}
    if request.http is None:
        task = g.take("/task", lambda: _task_of(request), "")
        kwargs: dict[str, Any] | None = g.take("/payload", lambda: kwargs_of(request), None)
        return task, kwargs or {}
    if request.task is not None or request.args or request.kwargs or request.payload:
        other = "task" if request.task is not None else "arguments"
        message, hint = f"http and {other} are both given", "a job runs a task or calls a URL; give one"
        g.add(InvalidInput(message, hint=hint, pointer="/http", code="conflicting_fields"))
    return HTTP_TASK, request.http


def _task_of(request: JobRequest | ExecuteRequest) -> str:
    if request.task is None:
        hint = "name a task, or give http" + (" or workflow" if isinstance(request, JobRequest) else "")
        raise InvalidInput("task is missing", hint=hint, pointer="/task", code="missing_field")
    task = check_name(request.task, what="task", pointer="/task")
    if task in BUILT_IN_TASKS:
        hint = {HTTP_TASK: "use the field http", NOTIFY_TASK: "see docs/notifications.md"}.get(
            task, "use the field workflow"
        )
        raise InvalidInput(f"{task} is a built-in task", hint=hint, pointer="/task", code="name_reserved")
    return task


def task_of(request: JobRequest) -> str:
    """The task whose defaults apply to a job."""
    return request.task or (HTTP_TASK if request.workflow is None else WORKFLOW_TASK)


def kwargs_of(request: JobRequest | ExecuteRequest | TriggerRequest) -> dict[str, Any] | None:
    """The keyword arguments, given as kwargs or as payload."""
    if request.payload is not None and request.kwargs is not None:
        raise InvalidInput(
            "kwargs and payload are both given",
            hint="they are synonyms; give only one",
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


def expires_of(request: ExecuteRequest, g: Gathering) -> timedelta | None:
    return g.take("/expires_in", lambda: _length(request.expires_in, "expires_in"), None)


def delivery_of(request: JobRequest | ExecuteRequest) -> Delivery:
    return Delivery.AT_LEAST_ONCE if request.delivery is None else word(Delivery, request.delivery, "delivery")


def filled(request: R, defaults: Mapping[str, Any]) -> R:
    """Fill omitted fields of a request with the defaults of the task."""
    fields = request.__struct_fields__  # a send has fewer than a job
    missing = {name: value for name, value in defaults.items() if name in fields and getattr(request, name) is None}
    return msgspec.structs.replace(request, **missing) if missing else request


def retry_of(document: int | dict[str, Any] | None) -> Retry:
    try:
        return Retry() if document is None else Retry.parse(document)
    except TypeError:  # such as a number instead of a list of delays
        raise InvalidInput("retry cannot be read", hint="delays is a list", code="type") from None


def word(kind: type[W], text: str, what: str) -> W:
    """Convert a word to a member of an enumeration."""
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(kind)
    raise InvalidInput(f"{what} {text[:40]!r} is not known", hint=f"use {known}", code="unknown_word")
