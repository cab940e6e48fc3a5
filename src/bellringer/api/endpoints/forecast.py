"""The forecast of all jobs, and the dry run of a change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import flag, operation, string
from bellringer.api.http.request import RequestContext, reply
from bellringer.api.render import documents
from bellringer.core.jobs import MAX_RUN_AT_DISTANCE, Definition
from bellringer.durations import format_duration, parse_duration
from bellringer.engine import forecast, register
from bellringer.engine.validate import bind_repeats
from bellringer.errors import InvalidInput
from bellringer.forecast import FireCounts, ForecastWindow, SpreadProposal
from bellringer.schedule import to_document
from bellringer.schedule.instants import read_instant
from bellringer.store import jobs
from bellringer.wire import schedules as wire
from bellringer.wire.routes import Routes
from bellringer.wire.schedules import Remark

DEFAULT_SPAN: Final = timedelta(days=1)
DAYS: Final = range(1, 367)
DEFAULT_DAYS: Final = 7
_DERIVED: Final = frozenset({"description", "jitter_by", "next_at", "revision", "routed", "updated_at"})


@operation(
    Routes.forecast,
    role=Role.VIEWER,
    query=(
        string("from", "the start; now if omitted"),
        string("to", "the end: an instant, or a duration after `from`"),
        string("bucket", "the length of one bucket"),
        flag("sub_minute", "false: without jobs that fire more often than every minute"),
    ),
)
async def get(call: RequestContext) -> Response:
    """Forecasts the fires of all jobs; `to` is an instant, or a duration after `from`."""
    query = call.query()
    window = _window(query, await call.store.now())
    word = query.get("sub_minute", "true")
    if word not in {"true", "false"}:
        raise InvalidInput("sub_minute must be true or false", code="choice")
    found = await forecast.forecast_fires(
        call.store, call.catalog, window, tenant_id=call.tenant_id, sub_minute=word == "true"
    )
    return reply(_document(found))


def _window(query: Mapping[str, str], now: datetime) -> ForecastWindow:
    start = read_window_instant(query["from"], "from", now) if "from" in query else now
    bucket = parse_duration(query["bucket"], what="bucket") if "bucket" in query else None
    return ForecastWindow.of(start, _end(query["to"], start, now) if "to" in query else start + DEFAULT_SPAN, bucket)


def _end(text: str, start: datetime, now: datetime) -> datetime:
    """Parses an instant or a duration; text that begins like a date is an instant."""
    if re.match(r"[0-9]{4}-", text):
        return read_window_instant(text, "to", now)
    return start + min(parse_duration(text, what="to"), MAX_RUN_AT_DISTANCE)


def read_window_instant(text: str, what: str, now: datetime) -> datetime:
    """Parses an instant within ten years of now."""
    moment = read_instant(text, what=what)
    if abs(moment - now) > MAX_RUN_AT_DISTANCE:
        raise InvalidInput(f"{what} is more than ten years away", code="limit")
    return moment


def _document(found: forecast.FireForecast) -> wire.Forecast:
    window, totals = found.tally.window, found.tally.totals()
    lanes = sorted(found.tally.pools.items())
    return wire.Forecast(
        start=window.start,
        end=window.end,
        bucket=format_duration(window.bucket),
        pools=[pool for pool, lane in lanes if any(lane)],
        buckets=[
            wire.Bucket(at=window.at(index), fires={pool: lane[index] for pool, lane in lanes if lane[index]})
            for index, total in enumerate(totals)
            if total
        ],
        total=sum(totals),
        peak=_peak(found.tally, totals),
        counted_at=found.counted_at,
        left_out=found.left_out,
        omitted=found.tally.omitted,
        timers_until=found.timers_until,
        proposals=[_proposal(proposal) for proposal in found.proposals],
    )


def _peak(tally: FireCounts, totals: list[int]) -> wire.Peak | None:
    if not any(totals):
        return None
    place = totals.index(max(totals))
    pool = max(tally.pools, key=lambda name: tally.pools[name][place])
    return wire.Peak(at=tally.window.at(place), fires=totals[place], pool=pool)


def _proposal(made: SpreadProposal) -> wire.Proposal:
    return wire.Proposal(
        at=made.at,
        schedule=to_document(made.schedule),
        description=made.schedule.describe(),
        jobs=made.jobs,
        fires=made.fires,
        suggestion=dict(made.suggestion),
        before=made.before,
        after=made.after,
        peak=made.peak,
    )


def wants_dry_run(query: Mapping[str, str]) -> bool:
    word = query.get("dry_run", "false")
    if word not in {"true", "false"}:
        raise InvalidInput(f"dry_run must be true or false, not {word[:40]!r}", hint="give true or false", code="type")
    if word == "false" and "days" in query:
        raise InvalidInput("days requires dry_run=true", code="conflicting_fields")
    return word == "true"


async def dry_run(call: RequestContext, job: jobs.JobRow, definition: Definition) -> Response:
    """Returns what a change would do to a job, without changing it."""
    text = call.request.query_params.get("days", str(DEFAULT_DAYS))
    days = int(text) if re.fullmatch("[0-9]{1,3}", text, re.ASCII) else 0
    if days not in DAYS:
        raise InvalidInput(f"days must be a number from {DAYS[0]} to {DAYS[-1]}", code="limit_range")
    tenant_id = call.tenant_id
    [definition] = await register.as_stored(call.store, call.catalog, [definition], tenant_id=tenant_id)
    definition = bind_repeats(definition, await call.store.now(), job.schedules)
    found = await forecast.dry_run(
        call.store, job, job.definition(), definition, timedelta(days=days), tenant_id=tenant_id
    )
    await call.catalog.pool_ids([found.definition.pool])  # raises if the region does not exist
    fires = found.difference
    answer = wire.DryRun(
        revision=job.revision,
        changes=_changes(job, _apply_definition(job, found.definition)),
        fires=wire.Fires(
            start=fires.start,
            end=fires.end,
            before=fires.before,
            after=fires.after,
            kept=fires.kept,
            removed=list(fires.removed),
            added=list(fires.added),
            truncated=fires.truncated,
        ),
        next_before=found.next_before,
        next_after=found.next_after,
        warnings=[Remark(code=code, text=text) for code, text in found.warnings],
    )
    return reply(answer, ETag=f'"{job.revision}"')


def _changes(before: jobs.JobRow, after: jobs.JobRow) -> list[wire.Change]:
    """Returns the fields that differ, as responses have them."""
    old, new = (msgspec.to_builtins(documents.render_job(job)) for job in (before, after))
    return [
        wire.Change(field=name, before=old.get(name), after=new.get(name))
        for name in {**old, **new}
        if name not in _DERIVED and old.get(name) != new.get(name)
    ]


def _apply_definition(job: jobs.JobRow, d: Definition) -> jobs.JobRow:
    """Returns a job as it would be stored after a change to this definition."""
    return replace(job, **{**jobs.stored_values(d), "owner": job.owner}, spec=d.spec())
