"""Why a run, a job or an instant is as it is: pure, from facts to ordered reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Any
from zoneinfo import ZoneInfo

from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.reasons.facts import (
    FROZEN,
    LIMITED,
    MOMENT,
    NEAR,
    PAUSED,
    PREDECESSOR,
    SILENT,
    Facts,
    Held,
    Limit,
    Member,
    Reason,
)
from bellringer.reasons.nodes import reasons_for_flow
from bellringer.reasons.occurrence import (
    comes_later,
    names,
    nearest,
    not_an_instant,
    passed_over,
    unaccounted,
    will_rest,
)
from bellringer.reasons.staff import circuit, flight, routed, staff
from bellringer.reasons.words import (
    before_it,
    counted,
    fine,
    from_now,
    holds,
    ordered,
    paused,
    rounded,
    short,
    shown,
    tells,
    told_error,
)
from bellringer.runs import FINAL, State
from bellringer.schedule import Delay, Schedule, Timetable
from bellringer.schedule.instants import read_instant


def reasons_for_run(facts: Facts, now: datetime) -> list[Reason]:
    """Why a run has ended, runs, or does not run yet."""
    run = facts.run
    assert run is not None, "there is a run to explain"
    if run.state in FINAL:
        return [_ended(run, now, facts.job)]
    if run.state is State.RUNNING:
        return _running(run, now) if facts.flow is None else reasons_for_flow(facts.flow, now)
    due = run.available_at is None or run.available_at <= now
    found = [*circuit(facts, now), *_waiting(facts, run, now), *flight(facts), *staff(facts, due=due)]
    found += routed(facts.job, facts.pool)
    if run.behind:
        found.append(tells("behind_live_work", "it runs behind live work, in a quarter of each worker's slots at most"))
    if not any(reason.holds is True for reason in found):
        before = f", after {before_it(facts.ahead)} before it" if facts.ahead else ""
        found.insert(0, tells("ready", f"it is ready, and a worker takes it in a moment{before}"))
    return ordered(found)


def reasons_for_job(facts: Facts, now: datetime) -> list[Reason]:
    """Why a job does not run now: its unfinished run where there is one, or what it waits for."""
    job = facts.job
    assert job is not None, "there is a job to explain"
    if facts.run is not None and facts.run.state not in FINAL:
        return reasons_for_run(facts, now)
    found = [*_active(job, now), *_resting(facts, now), *_held_shard(facts), *staff(facts, due=False)]
    found += routed(job, facts.pool)
    found += [replace(reason, holds=False) for reason in circuit(facts, now)]  # of what is to come, it only tells
    if (coming := next_of(job, now)) is not None:
        if not any(reason.holds is True for reason in found):
            found.append(holds("not_due_yet", f"it is not due before {shown(coming)}, {from_now(coming, now)}"))
    elif not job.schedules:
        text, fix = "it has no schedule: it runs only by hand", f"bellringer jobs trigger {quote(job.name)}"
        found.append(holds("no_schedule", text, fix))
    elif any(isinstance(schedule, Delay) for schedule in job.schedules):
        found.append(holds("not_due_yet", "its next time is set when its last run ends"))
    else:
        found.append(holds("no_more_instants", "its schedule names no further time"))
    if facts.run is not None:
        ended = _ended(facts.run, now, job)
        found.append(tells("last_run", f"its last run: {ended.text}", ended.fix))
    return ordered(found)


def reasons_for_occurrence(facts: Facts, at: datetime, now: datetime, asked: datetime | None = None) -> list[Reason]:
    """What became, or will become, of a job at an instant; `asked` is the time that somebody meant it by."""
    found = _of_instant(facts, at, now)
    return found if asked in {None, at} else ordered([*found, nearest(asked or at)])


def _of_instant(facts: Facts, at: datetime, now: datetime) -> list[Reason]:
    if facts.run is not None and facts.run.backfill is not None:
        [first, *others] = reasons_for_run(facts, now)
        own, *_ = _of_instant(replace(facts, run=None), at, now)  # why the schedule has no run of its own there
        return [
            replace(first, text=f"by the backfill {facts.run.backfill}: {first.text}"),
            replace(own, holds=False),
            *others,
        ]
    if facts.run is not None:
        found = reasons_for_run(facts, now)
        return ordered([*_will_rest(facts, at, now), *found]) if facts.run.in_timer and not facts.run.attempt else found
    if facts.then.gap is not None:
        return [passed_over(facts.then.gap, facts.then.job)]
    if facts.then.waiting is not None:
        return [comes_later(facts.then.waiting)]
    return _without_run(facts, at, now)


def _without_run(facts: Facts, at: datetime, now: datetime) -> list[Reason]:
    job, then = facts.job, facts.then.job
    assert job is not None, "there is a job to explain"
    if then is None:
        made = f"the job did not exist yet: it was created at {shown(job.created_at)}"
        return [holds("before_job", made)]
    if not names(then.schedules, at):
        return [not_an_instant(then.schedules, at, now)]
    resting = _will_rest(facts, at, now)
    if held := [reason for reason in _active(then, at, now=now) if reason.holds is True]:
        return [*held, *resting]
    if at > now:
        coming = tells("in_future", f"it is due at {shown(at)}, {from_now(at, now)}")
        return ordered([coming, *resting, *_active(job, at, now=now), *_held_shard(facts), *staff(facts, due=False)])
    return [unaccounted(facts, job, at, now)]


def _will_rest(facts: Facts, at: datetime, now: datetime) -> list[Reason]:
    return [will_rest(facts.then.freeze, facts.then.job, at)] if facts.then.freeze is not None and at > now else []


def next_of(job: Member, now: datetime) -> datetime | None:
    """Its next instant by its schedules and bounds; paused or not."""
    start = now if job.starts_at is None else max(now, job.starts_at - MOMENT)
    coming = [s.next_after(start) for s in job.schedules if not isinstance(s, Delay)]
    known = [moment for moment in (*coming, job.timer_at) if moment is not None and moment > now]
    found = min(known, default=None)
    return None if found is None or (job.ends_at is not None and found > job.ends_at) else found


def instant_near(schedules: Sequence[Schedule], at: datetime) -> datetime | None:
    """The instant that somebody means who names a time: the first of the minute that begins there."""
    coming = [s.next_after(at - MOMENT) for s in schedules if not isinstance(s, Delay)]
    return min((moment for moment in coming if moment is not None and moment - at < NEAR), default=None)


def read_time(text: str, schedules: Sequence[Schedule]) -> datetime:
    """RFC 3339; a time without offset is one of the job's zone."""
    try:
        return read_instant(text, what="at", pointer="/at")
    except InvalidSchedule as error:
        if error.code != "offset_required":
            raise
    zone = next((s.timezone for s in schedules if isinstance(s, Timetable)), "UTC")
    return read_instant(datetime.fromisoformat(text.upper()).replace(tzinfo=ZoneInfo(zone)), what="at", pointer="/at")


# A run


def _ended(run: Held, now: datetime, job: Member | None) -> Reason:
    when = "" if run.finished_at is None else f" {from_now(run.finished_at, now)}"
    why = told_error(run.error)
    because = f": {why}" if why else ""
    if run.state is State.SUCCEEDED:
        return tells("ended", f"it succeeded{when}, by attempt {run.attempt}")
    if run.state is State.SKIPPED:
        return _skipped(run, when, job)
    if run.state is State.DEAD:
        text = f"it gave up{when}, after {counted(run.attempt, 'attempt')}{because}"
        return holds("ended", text, f"bellringer runs retry {run.run_id}" if run.dead_letter else "")
    if run.replaced_by is not None:
        because = f": it was replaced by the run of {shown(run.replaced_by)}, as the job's overlap is replace"
    return holds("ended", f"it was {run.state}{when}{because}")


def _skipped(run: Held, when: str, job: Member | None) -> Reason:
    """It ended without a try; the run that was in its way is told of by its instant."""
    error = run.error if isinstance(run.error, dict) else {}
    reason, other = str(error.get("reason") or ""), error.get("run") or {}
    which = f"the run of {_instant_of(other)}" if _instant_of(other) else "an earlier run"
    if reason == "overlap":
        text = f"it was skipped{when}: {which} was unfinished when its time came, and the job's overlap is skip"
        fix = f"bellringer jobs update {quote(job.name)} --overlap queue" if job else ""
        return holds("skipped_overlap", text, fix)
    if reason == "coalesced":
        return holds("coalesced", f"it was coalesced{when} into {which}, which waited already")
    return holds("skipped", f"it was skipped{when}: {reason or 'no reason is recorded'}")


def _instant_of(other: Any) -> str:
    text = other.get("scheduled_for") if isinstance(other, dict) else None
    return shown(datetime.fromisoformat(text)) if isinstance(text, str) else ""


def _running(run: Held, now: datetime) -> list[Reason]:
    since = "" if run.since is None else f" for {format_duration(rounded(now - run.since))}"
    progress = run.progress if isinstance(run.progress, dict) else {}
    total = "" if progress.get("total") is None else f" of {progress['total']}"
    done = f", {progress['done']}{total} done" if progress.get("done") is not None else ""
    found = [tells("running", f"it has been running on {run.worker or 'a worker'}{since}, attempt {run.attempt}{done}")]
    if run.cancel_requested:
        why = f" for the run of {shown(run.replaced_by)}: the job's overlap is replace" if run.replaced_by else ""
        text = f"it was asked to stop{why}, and ends when its handler lets it"
        found.insert(0, holds("cancel_requested", text))
    if run.worker_state in {"lost", "stopped"} or run.worker_age > SILENT.total_seconds():
        silent = format_duration(rounded(timedelta(seconds=run.worker_age)))
        text = f"its worker was last heard of {silent} ago; a scheduler gives the run to another"
        found.insert(0, holds("worker_silent", text, "bellringer scheduler"))
    return found


def _waiting(facts: Facts, run: Held, now: datetime) -> list[Reason]:
    """What of its own holds it: a pause, a predecessor, its time."""
    found = []
    pause = facts.job.pause if facts.job is not None else None
    if facts.job is not None and (run.blocked & PAUSED or (run.in_timer and pause is not None)):
        found.append(paused(facts.job, now))
    elif facts.job is not None:
        found.append(fine("not_paused", "no pause holds it"))
    if run.blocked & PREDECESSOR:
        what = f"run {run.predecessor}" if run.predecessor else "the run before it"
        fix = f"bellringer runs cancel {run.predecessor}" if run.predecessor else ""
        found.append(holds("blocked_by_predecessor", f"it waits until {what} has ended", fix))
    if run.blocked & FROZEN:
        found.append(_frozen(facts, now))
    if facts.suspended_at is not None:
        found.append(_suspended(facts.suspended_at, now))
    if run.blocked & LIMITED and run.limit is not None:
        found.append(_limited(run.limit))
    if run.available_at is not None and run.available_at > now:
        found.append(_not_due(run, run.available_at, now))
    if run.in_timer:
        found += _held_shard(facts)
    return found


def _not_due(run: Held, at: datetime, now: datetime) -> Reason:
    until = f"{shown(at)}, {from_now(at, now)}"
    if not run.attempt:
        return holds("not_due_yet", f"it is not due before {until}")
    why = told_error(run.error)
    tries = f"{min(run.spent, run.attempts)} of {run.attempts} attempts used"
    text = f"it waits for its next attempt until {until} ({tries}{f'; {why}' if why else ''})"
    return holds("waits_for_retry", text, f"bellringer runs retry {run.run_id}")


def _frozen(facts: Facts, now: datetime) -> Reason:
    freeze = facts.freeze
    if freeze is None:  # it was lifted between two looks
        return holds("frozen", "a freeze held it; it is over, so the run goes on in a moment")
    why = f" ({short(freeze.why)})" if freeze.why else ""
    text = f"the freeze {freeze.name}{why} holds it until {shown(freeze.until)}, {from_now(freeze.until, now)}"
    return holds("frozen", text, f"bellringer freezes lift {quote(freeze.name)}")


def _suspended(since: datetime, now: datetime) -> Reason:
    text = f"its tenant was suspended {from_now(since, now)}"
    return holds("tenant_suspended", text, "bellringer tenants unsuspend NAME")


def _limited(limit: Limit) -> Reason:
    whose = f"the key {limit.key}" if limit.key else "this job"
    text = f"{limit.taken} of the {counted(limit.most, 'run')} that may be under way at once for {whose} are"
    if limit.taken < limit.most:
        return fine("within_limit", text)
    which = f": {', '.join(limit.runs)}" if limit.runs else ""
    fix = f"bellringer runs cancel {limit.runs[0]}" if limit.runs else ""
    return holds("limit_reached", f"{text}{which}", fix)


# A job


def _active(job: Member, at: datetime, now: datetime | None = None) -> list[Reason]:
    """Whether a job takes part at all, at an instant."""
    found = []
    if not job.enabled:
        found.append(holds("job_disabled", "the job is disabled: its definition says `enabled: false`"))
    if job.pause is not None:
        found.append(paused(job, now or at))
    elif job.enabled:
        found.append(fine("not_paused", "the job is enabled and not paused"))
    if job.starts_at is not None and at < job.starts_at:
        found.append(holds("before_start", f"the job starts at {shown(job.starts_at)}"))
    if job.ends_at is not None and at > job.ends_at:
        verb = "ends" if job.ends_at > (now or at) else "ended"
        found.append(holds("after_end", f"the job {verb} at {shown(job.ends_at)}"))
    return found


def _resting(facts: Facts, now: datetime) -> list[Reason]:
    """What keeps all schedules of a tenant, or of a tag, from firing."""
    found = []
    if facts.freeze is not None:
        found.append(_frozen(facts, now))
    if facts.suspended_at is not None:
        found.append(_suspended(facts.suspended_at, now))
    return found


def _held_shard(facts: Facts) -> list[Reason]:
    if facts.scheduler is not None:
        return [fine("shard_held", f"scheduler {facts.scheduler} holds its shard {facts.shard}")]
    if facts.waits_for is not None:
        text = f"no scheduler holds its shard {facts.shard}: one waits for {facts.waits_for}"
        return [holds("shard_unheld", text)]
    return [holds("shard_unheld", f"no scheduler holds its shard {facts.shard}", "bellringer scheduler")]
