"""What is to come: the forecast of all jobs, and the dry run of a change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, reply
from bellringer.api.operations import operation, string
from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput
from bellringer.forecasting import Proposal, Tally, Window
from bellringer.jobs import FARTHEST, Definition
from bellringer.lifecycle import forecast, register
from bellringer.schedule import to_document
from bellringer.schedule.instants import read_instant
from bellringer.store import jobs
from bellringer.wire import Remark
from bellringer.wire import forecast as wire

SPAN: Final = timedelta(days=1)
DAYS: Final = range(1, 367)
USUAL_DAYS: Final = 7
_DERIVED: Final = frozenset({"description", "jitter_by", "next_at", "revision", "routed", "updated_at"})


@operation(
    "schedules",
    role=Role.VIEWER,
    answers={200: wire.Forecast},
    query=(
        string("from", "the start; now, where it is not given"),
        string("to", "the end: an instant, or a length of time"),
        string("bucket", "the length of one bucket"),
    ),
)
async def get(call: Call) -> Response:
    """The expected fires of the next time; `to` is an instant, or a length of time after `from`."""
    query = call.query()
    window = _window(query, await call.store.now())
    found = await forecast.forecast(call.store, call.names, window, tenant_id=call.tenant_id)
    return reply(_document(found))


def _window(query: Mapping[str, str], now: datetime) -> Window:
    start = _instant(query["from"], "from", now) if "from" in query else now
    bucket = parse_duration(query["bucket"], what="bucket") if "bucket" in query else None
    return Window.of(start, _end(query["to"], start, now) if "to" in query else start + SPAN, bucket)


def _end(text: str, start: datetime, now: datetime) -> datetime:
    """An instant, or a length of time: what begins like a date is one."""
    if re.match(r"[0-9]{4}-", text):
        return _instant(text, "to", now)
    return start + min(parse_duration(text, what="to"), FARTHEST)


def _instant(text: str, what: str, now: datetime) -> datetime:
    moment = read_instant(text, what=what)
    if abs(moment - now) > FARTHEST:
        raise InvalidInput(f"{what} is more than ten years away", code="limit")
    return moment


def _document(found: forecast.Forecast) -> wire.Forecast:
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
        timers_until=found.timers_until,
        proposals=[_proposal(proposal) for proposal in found.proposals],
    )


def _peak(tally: Tally, totals: list[int]) -> wire.Peak | None:
    if not any(totals):
        return None
    place = totals.index(max(totals))
    pool = max(tally.pools, key=lambda name: tally.pools[name][place])
    return wire.Peak(at=tally.window.at(place), fires=totals[place], pool=pool)


def _proposal(made: Proposal) -> wire.Proposal:
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
        raise InvalidInput(f"dry_run is {word[:40]!r}", hint="give true or false", code="type")
    if word == "false" and "days" in query:
        raise InvalidInput("days goes with dry_run=true", code="conflicting_fields")
    return word == "true"


async def dry_run(call: Call, job: jobs.Job, definition: Definition) -> Response:
    """What a change would do to a job; nothing is changed."""
    text = call.request.query_params.get("days", str(USUAL_DAYS))
    days = int(text) if re.fullmatch("[0-9]{1,3}", text, re.ASCII) else 0
    if days not in DAYS:
        raise InvalidInput(f"days must be a number from {DAYS[0]} to {DAYS[-1]}", code="limit_range")
    tenant_id = call.tenant_id
    [definition] = await register.as_stored(call.store, call.names, [definition], tenant_id=tenant_id)
    found = await forecast.dry_run(
        call.store, job, job.definition(), definition, timedelta(days=days), tenant_id=tenant_id
    )
    await call.names.pool_ids([found.definition.pool])  # refuses one that there is not
    fires = found.difference
    answer = wire.DryRun(
        revision=job.revision,
        changes=_changes(job, _changed(job, found.definition)),
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


def _changes(before: jobs.Job, after: jobs.Job) -> list[wire.Change]:
    """What differs, in the words of the API."""
    old, new = (msgspec.to_builtins(documents.job(job)) for job in (before, after))
    return [
        wire.Change(field=name, before=old.get(name), after=new.get(name))
        for name in {**old, **new}
        if name not in _DERIVED and old.get(name) != new.get(name)
    ]


def _changed(job: jobs.Job, d: Definition) -> jobs.Job:
    """A job as it would be stored after a change: the other way of `Job.definition`."""
    return replace(
        job,
        name=d.name,
        task=d.task,
        spec=d.spec(),
        nodes=d.nodes,
        schedules=d.schedules,
        pool=d.pool,
        routed=d.routed,
        expected_duration=d.expected_duration,
        priority=d.priority,
        misfire=d.misfire.value,
        catchup=d.catchup,
        overlap=d.overlap.value,
        cap=d.max_concurrency,
        limit=d.limit,
        jitter=d.jitter,
        late_after=d.late_after,
        starts_at=d.starts_at,
        ends_at=d.ends_at,
        enabled=d.enabled,
        tags=d.tags,
    )
