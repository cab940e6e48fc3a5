"""Explains occurrences that have no run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote
from zoneinfo import ZoneInfo

from bellringer.durations import format_duration
from bellringer.explain.facts import (
    MICROSECOND,
    ExplainFacts,
    ExplainReason,
    FreezeFacts,
    JobFacts,
    MissedSpan,
    PendingBackfill,
)
from bellringer.explain.text import (
    blocking_reason,
    format_count,
    format_in_zone,
    format_instant,
    info_reason,
    round_duration,
    shorten,
)
from bellringer.schedule import At, Delay, Schedule, ZonedSchedule, explain_exclusion
from bellringer.schedule.instants import EPOCH


def is_named_by(schedules: Sequence[Schedule], at: datetime) -> bool:
    return any(s.next_after(at - MICROSECOND) == at for s in schedules if not isinstance(s, Delay))


def outage_reason(gap: MissedSpan, job: JobFacts) -> ExplainReason:
    """The job missed occurrences not long ago: not why it does not run now, but what a user asks next."""
    count = _count_missed(gap, job)
    many = "occurrences" if count is None else format_count(count, "occurrence")
    text = f"{many} missed from {format_instant(gap.from_at)} to {format_instant(gap.to_at)}: no scheduler ran in time"
    instead = f"; the occurrence of {format_instant(gap.into_at)} ran instead" if gap.into_at else ""
    return info_reason("last_gap", text + instead, f"bellringer why {quote(job.name)} {gap.from_at:%Y-%m-%dT%H:%M:%SZ}")


def _count_missed(gap: MissedSpan, job: JobFacts | None) -> int | None:
    if gap.count is None and gap.reason == "misfire" and job is not None and len(job.schedules) == 1:
        return job.schedules[0].count_between(gap.from_at, gap.to_at)  # an outage never spans two revisions
    return gap.count


def gap_reason(gap: MissedSpan, then: JobFacts | None) -> ExplainReason:
    count = _count_missed(gap, then)
    many = "" if count is None else f"; {format_count(count, 'occurrence')} in all"
    span = f"from {format_instant(gap.from_at)} to {format_instant(gap.to_at)}{many}"
    into = f"; the occurrence of {format_instant(gap.into_at)} ran instead" if gap.into_at else ""
    why = {
        "misfire": "no scheduler ran in time",
        "paused": "the job was paused",
        "edited": "the job was changed before a scheduler processed it",
        "deleted": "the job was deleted",
        "cancelled": "its catch-up was cancelled",
        "retimed": "new time zone rules moved it into the past",
    }.get(gap.reason, gap.reason)
    if gap.reason == "paused" and then is not None and then.pause is not None:
        note = f" ({shorten(then.pause.why)})" if then.pause.why else ""
        why = f"{why} by {then.pause.by or 'an unknown user'}{note}"
    return blocking_reason("gap", f"the occurrence was missed: {why}, {span}{into}")


def catchup_reason(waiting: PendingBackfill) -> ExplainReason:
    """The occurrence was missed, and a catch-up will run it later."""
    done = f"{waiting.made:,} of {waiting.total:,} done" if waiting.total is not None else "not started"
    text = f"the occurrence was missed; the catch-up {waiting.name} will run it ({waiting.state}, {done})"
    fix = f"bellringer backfills resume {waiting.name}" if waiting.state == "paused" else ""
    return blocking_reason("catchup_waits", text, fix)


def upcoming_freeze_reason(freeze: FreezeFacts, then: JobFacts | None, at: datetime) -> ExplainReason:
    """A freeze covers a future instant. One-shots and delays are deferred whatever the policy."""
    why = f" ({shorten(freeze.why)})" if freeze.why else ""
    recurs = then is None or is_named_by([s for s in then.schedules if not isinstance(s, At)], at)
    becomes = {
        "skip": "it will be skipped (policy: skip)",
        "collapse": "one run after the freeze replaces all occurrences during it (policy: collapse)",
    }.get(freeze.policy if recurs else "defer", "it will run after the freeze (policy: defer)")
    text = f"the freeze {freeze.name}{why} covers this occurrence until {format_instant(freeze.until)}; {becomes}"
    return blocking_reason("frozen", text, f"bellringer freezes lift {quote(freeze.name)}")


def nearest_reason(asked: datetime) -> ExplainReason:
    """The user asked for a time that is not an instant of the schedule; the reasons are about the next one."""
    return info_reason(
        "nearest", f"{asked.astimezone(UTC):%H:%M:%S}Z is not a time of the schedule; this is the next one"
    )


def not_an_instant_reason(schedules: Sequence[Schedule], at: datetime, now: datetime) -> ExplainReason:
    if off := next((found for schedule in schedules if (found := explain_exclusion(schedule, at))), None):
        return blocking_reason(off.code, off.text)
    if not schedules:
        text = (
            "the job has no schedule: it runs only when triggered"
            if at > now
            else "the job had no schedule: it ran only when triggered"
        )
        return blocking_reason("no_schedule", text)
    if any(isinstance(schedule, Delay) for schedule in schedules):
        verb = "is" if at > now else "was"
        return blocking_reason(
            "not_an_instant",
            f"no run {verb} due at {format_instant(at)}: each run is due after the previous one has ended",
        )
    back = max(EPOCH, at - timedelta(days=3660))
    before = _pick(max, [s.last_at_or_before(at, not_before=back) for s in schedules])
    after = _pick(min, [s.next_after(at) for s in schedules])
    sides = [f"the previous one is {_format_occurrence(before, schedules)}"] if before else []
    sides += [f"the next one is {_format_occurrence(after, schedules)}"] if after else []
    shown = format_in_zone(at, zone_of(schedules))
    return blocking_reason(
        "not_an_instant", f"{shown} is not a time of the schedule: {', '.join(sides) or 'it has none'}"
    )


def zone_of(schedules: Sequence[Schedule]) -> str:
    """Returns the time zone of a job: that of its first schedule that has one."""
    return next((s.timezone for s in schedules if isinstance(s, ZonedSchedule)), "UTC")


def skipped_time_reason(naive: datetime, zone: str) -> ExplainReason | None:
    """Says that a local time does not exist because of a DST change; None if it exists."""
    at = naive.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    local = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    if local == naive:
        return None
    text = f"DST: {naive:%Y-%m-%d %H:%M} does not exist in {zone}, the clocks skip it; it was read as {local:%H:%M}"
    return info_reason("local_time_skipped", text)


def _format_occurrence(at: datetime, schedules: Sequence[Schedule]) -> str:
    shown = format_in_zone(at, zone_of(schedules))
    in_gap = any(
        isinstance(s, ZonedSchedule) and is_named_by([s], at) and "dst_gap" in s.flags_of(at) for s in schedules
    )
    return f"{shown}, the first moment after a local time that the clocks skip (DST)" if in_gap else shown


def unaccounted_reason(facts: ExplainFacts, job: JobFacts, at: datetime, now: datetime) -> ExplainReason:
    """The occurrence was due, but has neither a run nor a gap."""
    late = format_duration(round_duration(now - at))
    if not facts.then.kept:
        return info_reason("forgotten", "the history of that time was deleted by retention")
    behind = job.timer_at == at or (job.hand_at is not None and job.hand_at <= at)
    if behind and facts.scheduler is None:
        text = f"the occurrence was due {late} ago, but no scheduler holds shard {facts.shard}"
        return blocking_reason("shard_unheld", text, "bellringer scheduler")
    if behind:
        return blocking_reason(
            "scheduler_late", f"the occurrence was due {late} ago; scheduler {facts.scheduler} has not processed it yet"
        )
    text = "neither a run nor a gap is recorded for this occurrence; please report this as a bug"
    return blocking_reason("unaccounted", text, f"bellringer verify --job {quote(job.name)}")


def _pick(pick: Callable[..., datetime | None], moments: Sequence[datetime | None]) -> datetime | None:
    return pick((moment for moment in moments if moment is not None), default=None)
