"""Reads the jobs and sends of request bodies: applies the task's defaults, encrypts secrets, and finds warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from bellringer.api.http.request import RequestContext
from bellringer.codecs import encrypt_arguments
from bellringer.core.jobs import DEFAULT_PRIORITY, HTTP_TASK, MAX_RUN_AT_DISTANCE, Definition, pool_for
from bellringer.core.messages import MessageKind
from bellringer.core.policies import Delivery
from bellringer.core.redaction import check_paths, restore_masked
from bellringer.core.retry_policy import Retry
from bellringer.core.secret_references import find_references
from bellringer.engine import http_targets, named_secrets
from bellringer.engine.drift import differing_fields
from bellringer.engine.send import SendSpec
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.store.jobs import JobRow
from bellringer.wire.decode import Gathering, duration, instant, read
from bellringer.wire.definitions import (
    delivery_of,
    expected_of,
    expires_of,
    filled,
    heartbeat_of,
    retry_of,
    task_of,
    timeout_of,
    to_definition,
    what_of,
)
from bellringer.wire.jobs import Job, JobRequest
from bellringer.wire.models import RequestWarning
from bellringer.wire.runs import ExecuteRequest, Run

D = TypeVar("D", Definition, SendSpec)
A = TypeVar("A", Job, Run)


async def read_definition(call: RequestContext, document: Any) -> Definition:
    """Reads a job's document; fields that it omits get the defaults of the task's code."""
    if not isinstance(document, dict):
        raise InvalidInput("a job must be an object", code="type")
    request = read(JobRequest, document)
    return to_definition(filled(request, await call.service.read_cache.task_defaults(task_of(request))))


async def read_send(call: RequestContext, request: ExecuteRequest) -> SendSpec:
    """Returns the send that a request describes; fields that it omits get the defaults of the task's code."""
    request = filled(request, await call.service.read_cache.task_defaults(request.task or HTTP_TASK))
    g = Gathering()
    if request.at is not None and request.delay is not None:
        g.add(InvalidInput("at and delay are both given", hint="give one", pointer="/delay", code="conflicting_fields"))
    task, kwargs = what_of(request, g)
    order = SendSpec(
        task=task,
        args=request.args,
        kwargs=kwargs,
        at=g.take("/at", lambda: instant(request.at, what="at"), None),
        delay=g.take("/delay", lambda: read_delay(request.delay), None),
        pool=request.pool or pool_for(task, expected_of(request, g)),
        priority=DEFAULT_PRIORITY if request.priority is None else request.priority,
        timeout=timeout_of(request, g),
        heartbeat=heartbeat_of(request, g),
        retry=g.take("/retry", lambda: retry_of(request.retry), Retry()),
        delivery=g.take("/delivery", lambda: delivery_of(request), Delivery.AT_LEAST_ONCE),
        key=request.key,
        expires_in=expires_of(request, g),
        redact=g.take("/redact", lambda: check_paths(request.redact or ()), ()),
    )
    g.done()
    return order


def read_delay(value: str | float | None) -> timedelta | None:
    return duration(value, what="delay", least=timedelta(0), most=MAX_RUN_AT_DISTANCE)


async def prepare_target(call: RequestContext, wanted: D, before: Mapping[str, Any] | None = None) -> D:
    """Checks the target of an HTTP job or send and encrypts its secret; `before` is the target that the job had.

    Arguments of other tasks are encrypted if the server has a codec for payloads.
    """
    if wanted.task != HTTP_TASK:
        if call.service.payload_codec is None:
            return wanted
        args, kwargs = protect_arguments(call, wanted.task, wanted.args, wanted.kwargs)
        return replace(wanted, args=args, kwargs=kwargs)
    until = None
    if isinstance(wanted, SendSpec):
        until = wanted.at or await call.store.now() + (wanted.delay or timedelta(0))
    stored = await http_targets.prepare_target(
        call.store,
        call.service.egress,
        wanted.kwargs,
        tenant_id=call.tenant_id,
        before=before,
        needed_until=until,
    )
    return replace(wanted, kwargs=stored)


def protect_arguments(
    call: RequestContext, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns arguments encrypted, if the server has a codec; values that are encrypted already stay as they are."""
    codec = call.service.payload_codec
    if codec is None or task == HTTP_TASK:
        return list(args), dict(kwargs)
    return encrypt_arguments(codec, args, kwargs, tenant=call.caller.tenant, task=task)


def protect_overrides(
    call: RequestContext, task: str | None, args: list[Any] | None, kwargs: dict[str, Any] | None
) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Returns the arguments of a single run as `protect_arguments` does."""
    if task is None:
        return args, kwargs
    encrypted = protect_arguments(call, task, args or (), kwargs or {})
    return None if args is None else encrypted[0], None if kwargs is None else encrypted[1]


def keep_masked(stored: JobRow, wanted: Definition) -> Definition:
    """Returns a changed definition in which hidden values that the client sent back as *** are the stored ones."""
    if not stored.spec.redact or stored.task != wanted.task:
        return wanted
    paths, spec = stored.spec.redact, stored.spec
    if wanted.task == HTTP_TASK:
        body = restore_masked(wanted.kwargs.get("body"), spec.kwargs.get("body"), paths)
        return replace(wanted, kwargs={**wanted.kwargs, "body": body}) if body is not None else wanted
    args = restore_masked({"args": list(wanted.args)}, {"args": spec.args}, paths)["args"]
    return replace(wanted, args=args, kwargs=restore_masked(dict(wanted.kwargs), spec.kwargs, paths))


async def replace_secret(call: RequestContext, wanted: Definition, before: Mapping[str, Any] | None) -> None:
    """Replaces the stored secret of an HTTP job by the one that its change to `wanted` brought."""
    if wanted.task == HTTP_TASK and before is not None:
        await http_targets.rotate_changed_secret(
            call.store, call.service.egress, wanted.kwargs, before, tenant_id=call.tenant_id
        )


async def find_warnings(
    call: RequestContext, wanted: Definition | SendSpec | MessageKind, pointer: str = "/task"
) -> list[RequestWarning]:
    """Returns a warning if no live worker knows the task; raises InvalidInput if unknown tasks are refused."""
    found = await call.service.known_tasks.check(wanted.task, wanted.pool)
    warnings = [] if found is None else [RequestWarning(found.code, pointer, found.detail, found.hint)]
    if not isinstance(wanted, MessageKind):
        warnings += await _missing_secrets(call, wanted)
    return warnings


async def _missing_secrets(call: RequestContext, wanted: Definition | SendSpec) -> list[RequestWarning]:
    """Returns a warning for each secret that the arguments refer to and the sealed store does not have."""
    is_http = wanted.task == HTTP_TASK
    names = {found.name for found in find_references([list(wanted.args), wanted.kwargs], short=not is_http)}
    if not names:
        return []
    missing = await named_secrets.missing_names(call.store, names, tenant_id=call.tenant_id)
    hint = "set it with `bellringer secrets set`, unless workers have it in a file or an environment variable"
    pointer = "/http" if is_http else "/kwargs"
    return [
        RequestWarning("secret_missing", pointer, f"the secret {name} is not in the sealed store", hint)
        for name in missing
    ]


KEPT_BY_APPS: Final = frozenset({"enabled"})  # fields that the next start of an app leaves as an operator has set them


def warn_of_override(stored: JobRow, wanted: Definition) -> list[RequestWarning]:
    """Returns a warning if the code of an app declares the job: its next start overrides all fields but `enabled`."""
    if stored.app is None or stored.orphaned_at is not None:
        return []
    fields = [one.field for one in differing_fields(stored.definition(), wanted) if one.field not in KEPT_BY_APPS]
    if not fields:
        return []
    detail = f"the next start of the app {stored.app} overrides this change of {', '.join(fields)}"
    return [RequestWarning("declared_by_code", f"/{fields[0]}", detail, "change the code; a pause is kept")]


def with_warnings(response: A, warnings: Sequence[RequestWarning]) -> A:
    return msgspec.structs.replace(response, warnings=list(warnings)) if warnings else response


def read_until(value: str | float, now: datetime) -> datetime:
    """Parses an instant, or a duration from now; text that begins like a date is an instant."""
    if isinstance(value, str) and value[:4].isdecimal() and value[4:5] == "-":
        moment = read_instant(value, what="until", pointer="/until")
    else:
        try:
            length = duration(value, what="until", least=timedelta(seconds=1), most=MAX_RUN_AT_DISTANCE)
        except InvalidInput as error:
            error.pointer = "/until"
            raise
        assert length is not None
        moment = now + length
    if not now < moment <= now + MAX_RUN_AT_DISTANCE:
        raise InvalidInput("until must be in the next ten years", pointer="/until", code="limit")
    return moment
