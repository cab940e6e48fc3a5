"""What became of an instant that has no run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote

from bellringer.durations import format_duration
from bellringer.reasons.facts import MOMENT, Facts, Freeze, Gap, Member, Reason, Waiting
from bellringer.reasons.words import counted, holds, rounded, short, shown, tells
from bellringer.schedule import At, Delay, Schedule
from bellringer.schedule.calendars import why_off
from bellringer.schedule.instants import EPOCH


def names(schedules: Sequence[Schedule], at: datetime) -> bool:
    return any(s.next_after(at - MOMENT) == at for s in schedules if not isinstance(s, Delay))


def passed_over(gap: Gap, then: Member | None) -> Reason:
    count = gap.count
    if count is None and gap.reason == "misfire" and then is not None and len(then.schedules) == 1:
        count = then.schedules[0].count_between(gap.from_at, gap.to_at)  # an outage lies within one revision
    many = "" if count is None else f"; {counted(count, 'occurrence')} in all"
    span = f"from {shown(gap.from_at)} to {shown(gap.to_at)}{many}"
    into = f"; the one of {shown(gap.into_at)} ran in their place" if gap.into_at else ""
    why = {
        "misfire": "no scheduler ticked in time",
        "paused": "the job was paused",
        "edited": "the job was changed before a scheduler came to it",
        "deleted": "the job was deleted",
        "cancelled": "its catch-up was cancelled",
        "retimed": "new rules of its time zone put it into the past",
    }.get(gap.reason, gap.reason)
    if gap.reason == "paused" and then is not None and then.pause is not None:
        note = f" ({short(then.pause.why)})" if then.pause.why else ""
        why = f"{why} by {then.pause.by or 'somebody'}{note}"
    return holds("gap", f"it was passed over: {why}, {span}{into}")


def comes_later(waiting: Waiting) -> Reason:
    """It was missed, and is still to be run behind live work."""
    done = f"{waiting.made:,} of {waiting.total:,} done" if waiting.total is not None else "not begun"
    text = f"it was missed, and waits in the catch-up {waiting.name}, {waiting.state}, {done}"
    fix = f"bellringer backfills resume {waiting.name}" if waiting.state == "paused" else ""
    return holds("catchup_waits", text, fix)


def will_rest(freeze: Freeze, then: Member | None, at: datetime) -> Reason:
    """A freeze covers an instant that is still to come; a one-shot or fixed delay is deferred in any case."""
    why = f" ({short(freeze.why)})" if freeze.why else ""
    recurs = then is None or names([s for s in then.schedules if not isinstance(s, At)], at)
    becomes = {
        "skip": "skip: it will be skipped",
        "collapse": "collapse: one run waits for the end and stands for all that are due in it",
    }.get(freeze.policy if recurs else "defer", "defer: it will wait, and run after the end")
    text = f"the freeze {freeze.name}{why} covers it until {shown(freeze.until)}; {becomes}"
    return holds("frozen", text, f"bellringer freezes lift {quote(freeze.name)}")


def nearest(asked: datetime) -> Reason:
    """A time that somebody named means the minute that begins there."""
    return tells("nearest", f"{asked.astimezone(UTC):%H:%M:%S}Z is no time of its schedule; this is the next one")


def not_an_instant(schedules: Sequence[Schedule], at: datetime, now: datetime) -> Reason:
    if off := next((told for schedule in schedules if (told := why_off(schedule, at))), None):
        return holds("calendar", off)
    if not schedules:
        text = (
            "the job has no schedule: it runs only by hand"
            if at > now
            else "the job had no schedule: it ran only by hand"
        )
        return holds("no_schedule", text)
    if any(isinstance(schedule, Delay) for schedule in schedules):
        verb = "is" if at > now else "was"
        return holds("not_an_instant", f"no run {verb} due at {shown(at)}: each is due when the one before has ended")
    back = max(EPOCH, at - timedelta(days=3660))
    before = _best(max, [s.last_at_or_before(at, not_before=back) for s in schedules])
    after = _best(min, [s.next_after(at) for s in schedules])
    sides = [f"the one before is {shown(before)}"] if before else []
    sides += [f"the next is {shown(after)}"] if after else []
    return holds("not_an_instant", f"{shown(at)} is no time of its schedule: {', '.join(sides) or 'it has none'}")


def unaccounted(facts: Facts, job: Member, at: datetime, now: datetime) -> Reason:
    """It was due, and there is neither a run nor a gap."""
    late = format_duration(rounded(now - at))
    if not facts.then.kept:
        return tells("forgotten", "its history is past retention, and was dropped")
    behind = job.timer_at == at or (job.hand_at is not None and job.hand_at <= at)
    if behind and facts.scheduler is None:
        text = f"it was due {late} ago, but no scheduler holds its shard {facts.shard}"
        return holds("shard_unheld", text, "bellringer scheduler")
    if behind:
        return holds("scheduler_late", f"it was due {late} ago; scheduler {facts.scheduler} has not come to it yet")
    text = "there is no account of it; this should not be: please report it"
    return holds("unaccounted", text, f"bellringer verify --job {quote(job.name)}")


def _best(pick: Callable[..., datetime | None], moments: Sequence[datetime | None]) -> datetime | None:
    return pick((moment for moment in moments if moment is not None), default=None)
