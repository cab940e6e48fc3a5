"""Why a run, a job or an instant is as it is: pure, from facts to ordered reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from shlex import quote
from zoneinfo import ZoneInfo

from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.reasons.facts import (
    MOMENT,
    NEAR,
    PAUSED,
    PREDECESSOR,
    SILENT,
    TASK_UNKNOWN,
    Facts,
    Gap,
    Held,
    Member,
    Reason,
)
from bellringer.reasons.words import (
    before_it,
    counted,
    fine,
    from_now,
    holds,
    ordered,
    rounded,
    short,
    shown,
    tells,
    told_error,
)
from bellringer.runs import FINAL, State
from bellringer.schedule import Cron, Delay, Schedule
from bellringer.schedule.instants import EPOCH, read_instant


def reasons_for_run(facts: Facts, now: datetime) -> list[Reason]:
    """Why a run has ended, runs, or does not run yet."""
    run = facts.run
    assert run is not None, "there is a run to explain"
    if run.state in FINAL:
        return [_ended(run, now)]
    if run.state is State.RUNNING:
        return _running(run, now)
    due = run.available_at is None or run.available_at <= now
    found = [*_waiting(facts, run, now), *_staff(facts, due=due)]
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
    found = [*_active(job, now), *_held_shard(facts), *_staff(facts, due=False)]
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
        ended = _ended(facts.run, now)
        found.append(tells("last_run", f"its last run: {ended.text}", ended.fix))
    return ordered(found)


def reasons_for_occurrence(facts: Facts, at: datetime, now: datetime) -> list[Reason]:
    """What became, or will become, of a job at an instant."""
    if facts.run is not None:
        return reasons_for_run(facts, now)
    if facts.then.gap is not None:
        return [_passed_over(facts.then.gap, facts.then.job)]
    return _without_run(facts, at, now)


def _without_run(facts: Facts, at: datetime, now: datetime) -> list[Reason]:
    job, then = facts.job, facts.then.job
    assert job is not None, "there is a job to explain"
    if then is None:
        made = f"the job did not exist yet: it was created at {shown(job.created_at)}"
        return [holds("before_job", made)]
    if not _names(then.schedules, at):
        return [_not_an_instant(then.schedules, at)]
    if held := [reason for reason in _active(then, at, now=now) if reason.holds is True]:
        return held
    if at > now:
        coming = tells("in_future", f"it is due at {shown(at)}, {from_now(at, now)}")
        return ordered([coming, *_active(job, at, now=now), *_held_shard(facts), *_staff(facts, due=False)])
    return [_unaccounted(facts, job, at, now)]


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
    zone = next((s.timezone for s in schedules if isinstance(s, Cron)), "UTC")
    return read_instant(datetime.fromisoformat(text.upper()).replace(tzinfo=ZoneInfo(zone)), what="at", pointer="/at")


# A run


def _ended(run: Held, now: datetime) -> Reason:
    when = "" if run.finished_at is None else f" {from_now(run.finished_at, now)}"
    why = told_error(run.error)
    because = f": {why}" if why else ""
    if run.state is State.SUCCEEDED:
        return tells("ended", f"it succeeded{when}, by attempt {run.attempt}")
    if run.state is State.DEAD:
        text = f"it gave up{when}, after {counted(run.attempt, 'attempt')}{because}"
        return holds("ended", text, f"bellringer runs retry {run.run_id}" if run.dead_letter else "")
    return holds("ended", f"it was {run.state}{when}{because}")


def _running(run: Held, now: datetime) -> list[Reason]:
    since = "" if run.since is None else f" for {format_duration(rounded(now - run.since))}"
    progress = run.progress if isinstance(run.progress, dict) else {}
    total = "" if progress.get("total") is None else f" of {progress['total']}"
    done = f", {progress['done']}{total} done" if progress.get("done") is not None else ""
    found = [tells("running", f"it has been running on {run.worker or 'a worker'}{since}, attempt {run.attempt}{done}")]
    if run.cancel_requested:
        text = "it was asked to stop, and ends when its handler lets it"
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
        found.append(_paused(facts.job, now))
    elif facts.job is not None:
        found.append(fine("not_paused", "no pause holds it"))
    if run.blocked & PREDECESSOR:
        what = f"run {run.predecessor}" if run.predecessor else "the run before it"
        fix = f"bellringer runs cancel {run.predecessor}" if run.predecessor else ""
        found.append(holds("blocked_by_predecessor", f"it waits until {what} has ended", fix))
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


# A job


def _active(job: Member, at: datetime, now: datetime | None = None) -> list[Reason]:
    """Whether a job takes part at all, at an instant."""
    found = []
    if not job.enabled:
        found.append(holds("job_disabled", "the job is disabled: its definition says `enabled: false`"))
    if job.pause is not None:
        found.append(_paused(job, now or at))
    elif job.enabled:
        found.append(fine("not_paused", "the job is enabled and not paused"))
    if job.starts_at is not None and at < job.starts_at:
        found.append(holds("before_start", f"the job starts at {shown(job.starts_at)}"))
    if job.ends_at is not None and at > job.ends_at:
        found.append(holds("after_end", f"the job ended at {shown(job.ends_at)}"))
    return found


def _paused(job: Member, now: datetime) -> Reason:
    fix = f"bellringer jobs resume {quote(job.name)}"
    pause = job.pause
    if pause is None:  # it was resumed between two looks
        return holds("job_paused", "it was held by a pause of its job", fix)
    why = f" ({short(pause.why)})" if pause.why else ""
    until = f"until {shown(pause.until)}" if pause.until else "until resumed"
    return holds("job_paused", f"paused by {pause.by or 'somebody'} {from_now(pause.at, now)}{why}, {until}", fix)


def _held_shard(facts: Facts) -> list[Reason]:
    if facts.scheduler is not None:
        return [fine("shard_held", f"scheduler {facts.scheduler} holds its shard {facts.shard}")]
    return [holds("shard_unheld", f"no scheduler holds its shard {facts.shard}", "bellringer scheduler")]


# Workers


def _staff(facts: Facts, *, due: bool) -> list[Reason]:
    """Whether somebody serves its pool, knows its task, and has a free slot."""
    if facts.pool is None or facts.task is None:
        return []
    serving = [worker for worker in facts.workers if facts.pool in worker.pools]
    knowing = [worker for worker in serving if worker.knows]
    if not serving:
        return [_no_worker(facts, facts.pool)]
    if not knowing:
        return [_task_unknown(facts, facts.task, facts.pool, len(serving))]
    slots = sum(worker.pools[facts.pool] for worker in knowing)
    who = f"{counted(len(knowing), 'live worker')} of pool {facts.pool}"
    if due and facts.taken >= slots:
        text = f"all {counted(slots, 'slot')} of the {who} are busy, and {before_it(facts.ahead)} wait before it"
        return [holds("pool_busy", text, _more(facts.pool))]
    if facts.run is not None and facts.run.blocked & TASK_UNKNOWN:
        text = f"it was set aside while nobody knew its task; {who} can do it now, so it comes back in a moment"
        return [holds("set_aside", text)]
    busy = f"{min(facts.taken, slots)} of {counted(slots, 'slot')} busy"
    return [fine("staffed", f"{who} know{'s' if len(knowing) == 1 else ''} the task, {busy}")]


def _no_worker(facts: Facts, pool: str) -> Reason:
    others = sorted({name for worker in facts.workers for name in worker.pools})
    there = (
        f"{counted(len(facts.workers), 'live worker')}, of {', '.join(others)}" if others else "there is none at all"
    )
    return holds("no_worker_for_pool", f"no live worker serves pool {pool} ({there})", _more(pool))


def _task_unknown(facts: Facts, task: str, pool: str, serving: int) -> Reason:
    elsewhere = sorted({name for worker in facts.workers if worker.knows for name in worker.pools})
    near = get_close_matches(task, facts.tasks, n=1)
    hint = ""
    if elsewhere:
        hint = f"; workers of {', '.join(elsewhere)} do"
    elif near:
        hint = f"; did you mean {near[0]}?"
    nobody = "the one live worker" if serving == 1 else f"none of the {serving} live workers"
    text = f"{nobody} of pool {pool} {'does not know' if serving == 1 else 'knows'} the task {task}{hint}"
    return holds("task_unknown", text, _more(pool) if elsewhere else "bellringer worker APP")


def _more(pool: str) -> str:
    return f"bellringer worker APP --pool {quote(pool)}=10"


# An instant


def _names(schedules: Sequence[Schedule], at: datetime) -> bool:
    return any(s.next_after(at - MOMENT) == at for s in schedules if not isinstance(s, Delay))


def _passed_over(gap: Gap, then: Member | None) -> Reason:
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
    }.get(gap.reason, gap.reason)
    if gap.reason == "paused" and then is not None and then.pause is not None:
        note = f" ({short(then.pause.why)})" if then.pause.why else ""
        why = f"{why} by {then.pause.by or 'somebody'}{note}"
    return holds("gap", f"it was passed over: {why}, {span}{into}")


def _not_an_instant(schedules: Sequence[Schedule], at: datetime) -> Reason:
    if not schedules:
        return holds("no_schedule", "the job had no schedule: it ran only by hand")
    if any(isinstance(schedule, Delay) for schedule in schedules):
        return holds("not_an_instant", f"no run was due at {shown(at)}: each is due when the one before has ended")
    back = max(EPOCH, at - timedelta(days=3660))
    before = _best(max, [s.last_at_or_before(at, not_before=back) for s in schedules])
    after = _best(min, [s.next_after(at) for s in schedules])
    sides = [f"the one before is {shown(before)}"] if before else []
    sides += [f"the next is {shown(after)}"] if after else []
    return holds("not_an_instant", f"{shown(at)} is no time of its schedule: {', '.join(sides) or 'it has none'}")


def _unaccounted(facts: Facts, job: Member, at: datetime, now: datetime) -> Reason:
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
