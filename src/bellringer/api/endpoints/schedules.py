"""Schedules: previews, and schedules in plain English. Nothing is stored."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.jobs import check_name
from bellringer.errors import InvalidInput
from bellringer.schedule import (
    Schedule,
    apply_seed,
    bind_calendar,
    bind_repeat,
    excluded_fires,
    next_fires,
    parse_schedule,
    read_schedule,
    summarize_schedule,
    to_document,
)
from bellringer.schedule.instants import read_instant
from bellringer.store import calendars
from bellringer.wire.routes import Routes
from bellringer.wire.schedules import (
    ExcludedOccurrence,
    Occurrence,
    ParsedSchedule,
    ParseRequest,
    Preview,
    PreviewRequest,
    Remark,
    UnderstoodPart,
)

PREVIEW_COUNTS: Final = range(1, 101)
MAX_EXCLUDED: Final = 20


@operation(Routes.preview, role=Role.VIEWER)
async def preview_schedule(call: RequestContext) -> Response:
    """Previews a schedule: its description and next fire times. Nothing is stored."""
    request = await call.body(PreviewRequest)
    _check_count(request.n)
    # Parsing and evaluating a rule may take a tenth of a second, so it runs in a thread.
    schedule = await _with_calendar(call, await asyncio.to_thread(parse_schedule, request.schedule))
    after = await _start(call, request.after)
    return reply(Preview(**await _preview(call, schedule, request.job, after, request.n)))


@operation(Routes.parse_schedule, role=Role.VIEWER)
async def parse_text(call: RequestContext) -> Response:
    """Reads a schedule from plain English: the schedule, its next fire times, and how each part was understood."""
    request = await call.body(ParseRequest)
    _check_count(request.n)
    after = await _start(call, request.after)
    found = await asyncio.to_thread(read_schedule, request.text, now=after, tz=request.tz)
    schedule = parse_schedule(found.document)
    understood = [UnderstoodPart(text=part.text, meaning=part.meaning) for part in found.understood]
    fields = await _preview(call, schedule, request.job, after, request.n)
    return reply(ParsedSchedule(**fields, understood=understood))


def _check_count(n: int) -> None:
    if n not in PREVIEW_COUNTS:
        raise InvalidInput(f"n must be from {PREVIEW_COUNTS[0]} to {PREVIEW_COUNTS[-1]}", pointer="/n", code="limit")


async def _start(call: RequestContext, text: str | None) -> datetime:
    return await call.store.now() if text is None else read_instant(text, what="from", pointer="/from")


async def _with_calendar(call: RequestContext, schedule: Schedule) -> Schedule:
    """Returns a schedule with the present content of its calendar."""
    try:
        return bind_calendar(schedule, await calendars.current(call.store, call.tenant_id, [schedule]))
    except InvalidInput as error:
        error.pointer = f"/schedule{error.pointer}"
        raise


async def _preview(
    call: RequestContext, schedule: Schedule, job: str | None, after: datetime, n: int
) -> dict[str, Any]:
    if job is not None:
        schedule = apply_seed(schedule, f"{call.tenant_id}:{check_name(job, pointer='/job')}")
    # A job that is registered now would count its occurrences from now on.
    counted = bind_repeat(schedule, after)
    return await asyncio.to_thread(_evaluate, schedule, counted, after, n)


def _evaluate(schedule: Schedule, counted: Schedule, after: datetime, n: int) -> dict[str, Any]:
    fires, ahead = next_fires(counted, after, n), summarize_schedule(counted, after)
    until = fires[-1].at if fires else after
    excluded = excluded_fires(counted, after, until, MAX_EXCLUDED)
    return {
        "schedule": to_document(schedule),
        "description": schedule.describe(),
        "fires": [Occurrence(at=fire.at, local=fire.local, flags=list(fire.flags)) for fire in fires],
        "fires_per_day": ahead.fires_per_day,
        "warnings": [Remark(code=code, text=text) for code, text in ahead.warnings],
        "excluded": [
            ExcludedOccurrence(at=one.at, local=one.local, code=one.reason.code, reason=one.reason.text)
            for one in excluded
        ],
    }
