"""The rules that explain a run, a job or an occurrence: facts in, ordered reasons out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Final
from zoneinfo import ZoneInfo

from bellringer.core.policies import After
from bellringer.core.run_blocked_flags import Blocked
from bellringer.core.runs import FINAL_STATES, State
from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.explain.facts import (
    ASKED_TIME_SPAN,
    MICROSECOND,
    WORKER_SILENT_AFTER,
    ExplainFacts,
    ExplainReason,
    JobFacts,
    LimitFacts,
    OrphanFacts,
    QueuedRun,
    UpstreamFacts,
)
from bellringer.explain.occurrence import (
    catchup_reason,
    gap_reason,
    is_named_by,
    nearest_reason,
    not_an_instant_reason,
    outage_reason,
    skipped_time_reason,
    unaccounted_reason,
    upcoming_freeze_reason,
    zone_of,
)
from bellringer.explain.text import (
    blocking_reason,
    format_ahead,
    format_count,
    format_error,
    format_instant,
    format_relative,
    info_reason,
    passed_check,
    pause_reason,
    round_duration,
    shorten,
    sort_reasons,
)
from bellringer.explain.workers import explain_circuit, explain_pool_choice, explain_tenant_cap, explain_workers
from bellringer.explain.workflow_nodes import explain_workflow_run
from bellringer.schedule import Delay, Schedule
from bellringer.schedule.instants import read_instant


def explain_run(facts: ExplainFacts, now: datetime) -> list[ExplainReason]:
    """Explains why a run has ended, is running, or does not run yet."""
    run = facts.run
    assert run is not None, "facts of a run"
    if run.upstream is not None:
        first, *others = explain_run(replace(facts, run=replace(run, upstream=None)), now)
        return [first, info_reason("follows", f"it was started by {run.upstream}"), *others]
    if run.state in FINAL_STATES:
        behind = explain_workers(facts, due=False) if is_skipped_behind_unstarted(run) else []
        return sort_root_cause_first(run, [_ended_reason(run, now, facts.job), *behind, *_blocked_loop_reasons(facts)])
    if run.state is State.RUNNING:
        if facts.flow is not None:
            return explain_workflow_run(facts.flow, now)
        return sort_reasons([*_blocked_loop_reasons(facts), *_running_reasons(run, now)])
    due = run.available_at is None or run.available_at <= now
    found = [
        *explain_circuit(facts, now),
        *_waiting_reasons(facts, run, now),
        *explain_tenant_cap(facts),
        *explain_workers(facts, due=due),
    ]
    found += [*explain_pool_choice(facts.job, facts.pool), *_blocked_loop_reasons(facts)]
    if run.behind:
        found.append(
            info_reason(
                "behind_live_work", "the run starts after live work and uses at most a quarter of each worker's slots"
            )
        )
    if not any(reason.holds is True for reason in found):
        before = f", after {format_ahead(facts.ahead)} ahead of it" if facts.ahead else ""
        found.insert(0, info_reason("ready", f"the run is ready and starts shortly{before}"))
    return sort_root_cause_first(run, found)


def explain_job(facts: ExplainFacts, now: datetime) -> list[ExplainReason]:
    """Explains why a job does not run now: the state of its unfinished run, or what the job waits for."""
    job = facts.job
    assert job is not None, "facts of a job"
    outage = [] if facts.outage is None else [outage_reason(facts.outage, job)]
    if facts.run is not None and facts.run.state not in FINAL_STATES:
        return [*explain_run(facts, now), *outage]
    found = [
        *_job_state_reasons(job, now),
        *_hold_reasons(facts, now),
        *_shard_reasons(facts),
        *explain_workers(facts, due=False),
    ]
    found += explain_pool_choice(job, facts.pool)
    if job.orphan is not None:
        found.append(_orphan_reason(job.name, job.orphan, now))
    found += [
        replace(reason, holds=False) for reason in explain_circuit(facts, now)
    ]  # for future runs it is only information
    if (coming := next_instant(job, now)) is not None:
        if not any(reason.holds is True for reason in found):
            found.append(
                blocking_reason(
                    "not_due_yet", f"the job is not due until {format_instant(coming)}, {format_relative(coming, now)}"
                )
            )
    elif job.after is not None:
        found.append(_upstream_reason(job.after, job.upstream))
    elif not job.schedules:
        text, fix = "the job has no schedule: it runs only when triggered", f"bellringer jobs trigger {quote(job.name)}"
        found.append(blocking_reason("no_schedule", text, fix))
    elif any(isinstance(schedule, Delay) for schedule in job.schedules):
        found.append(
            blocking_reason("not_due_yet", "the job uses a delay: its next run is scheduled when the last one ends")
        )
    else:
        kept = "; the job will be deleted once it has no dead letter" if job.deleted_when_done else ""
        text = f"the schedule of the job has ended: there is no further occurrence{kept}"
        found.append(blocking_reason("no_more_instants", text))
    found += outage
    if facts.run is not None:
        ended = _ended_reason(facts.run, now, job)
        found.append(info_reason("last_run", f"last run: {ended.text}", ended.fix))
        found += _blocked_loop_reasons(facts)
    return sort_root_cause_first(facts.run if is_skipped_behind_unstarted(facts.run) else None, found)


def _orphan_reason(job: str, orphan: OrphanFacts, now: datetime) -> ExplainReason:
    last = f"; version {orphan.version} was the last that did" if orphan.version else ""
    since = format_relative(orphan.since, now)
    text = f"the code of the app {orphan.app} no longer declares the job since {since}{last}"
    return info_reason("orphaned", text, f"bellringer jobs delete {quote(job)}")


_STATE_WORDS: Final = {
    State.SUCCEEDED: "succeeded",
    State.DEAD: "failed",
    State.CANCELLED: "was cancelled",
    State.SKIPPED: "was skipped",
}


def _upstream_reason(after: After, upstream: UpstreamFacts | None) -> ExplainReason:
    """Explains what a job waits for that starts after another job."""
    text = f"the job starts {after.describe()}"
    if upstream is None:
        fix = "create that job, or change `after` of this one"
        return blocking_reason("upstream_missing", f"{text}, and there is no job {after.job}", fix)
    if upstream.state is None:
        last = f"{after.job} has not run yet"
    elif upstream.state in FINAL_STATES:
        last = f"the last run of {after.job} {_STATE_WORDS[upstream.state]}"
    else:
        last = f"the last run of {after.job} is {upstream.state}"
    return blocking_reason("waits_for_upstream", f"{text}; {last}", f"bellringer why {quote(after.job)}")


def explain_occurrence(
    facts: ExplainFacts, at: datetime, now: datetime, asked: datetime | None = None
) -> list[ExplainReason]:
    """Explains what happened, or will happen, to a job at an instant. `asked` is the time that the user entered."""
    found = _explain_instant(facts, at, now)
    return found if asked in {None, at} else sort_reasons([*found, nearest_reason(asked or at)])


def _explain_instant(facts: ExplainFacts, at: datetime, now: datetime) -> list[ExplainReason]:
    if facts.run is not None and facts.run.backfill is not None:
        [first, *others] = explain_run(facts, now)
        own, *_ = _explain_instant(replace(facts, run=None), at, now)  # why the schedule itself created no run
        return [
            replace(first, text=f"created by backfill {facts.run.backfill}: {first.text}"),
            replace(own, holds=False),
            *others,
        ]
    if facts.run is not None:
        found = explain_run(facts, now)
        return (
            sort_reasons([*_freeze_reasons(facts, at, now), *found])
            if facts.run.in_timer and not facts.run.attempt
            else found
        )
    if facts.then.gap is not None:
        return [gap_reason(facts.then.gap, facts.then.job)]
    if facts.then.waiting is not None:
        return [catchup_reason(facts.then.waiting)]
    return _explain_without_run(facts, at, now)


def _explain_without_run(facts: ExplainFacts, at: datetime, now: datetime) -> list[ExplainReason]:
    job, then = facts.job, facts.then.job
    assert job is not None, "facts of a job"
    if then is None:
        made = f"the job did not exist yet: it was created at {format_instant(job.created_at)}"
        return [blocking_reason("before_job", made)]
    if not is_named_by(then.schedules, at):
        return [not_an_instant_reason(then.schedules, at, now)]
    resting = _freeze_reasons(facts, at, now)
    if held := [reason for reason in _job_state_reasons(then, at, now=now) if reason.holds is True]:
        return [*held, *resting]
    if at > now:
        coming = info_reason("in_future", f"the occurrence is due at {format_instant(at)}, {format_relative(at, now)}")
        return sort_reasons(
            [
                coming,
                *resting,
                *_job_state_reasons(job, at, now=now),
                *_shard_reasons(facts),
                *explain_workers(facts, due=False),
            ]
        )
    return [unaccounted_reason(facts, job, at, now)]


def _freeze_reasons(facts: ExplainFacts, at: datetime, now: datetime) -> list[ExplainReason]:
    return (
        [upcoming_freeze_reason(facts.then.freeze, facts.then.job, at)]
        if facts.then.freeze is not None and at > now
        else []
    )


def next_instant(job: JobFacts, now: datetime) -> datetime | None:
    """Returns the next instant of the job by its schedules and bounds, whether or not the job is paused."""
    start = now if job.starts_at is None else max(now, job.starts_at - MICROSECOND)
    coming = [s.next_after(start) for s in job.schedules if not isinstance(s, Delay)]
    known = [moment for moment in (*coming, job.timer_at) if moment is not None and moment > now]
    found = min(known, default=None)
    return None if found is None or (job.ends_at is not None and found > job.ends_at) else found


def nearest_instant(schedules: Sequence[Schedule], at: datetime) -> datetime | None:
    """Returns the instant that a user means by a time: the first one in the minute that begins there."""
    coming = [s.next_after(at - MICROSECOND) for s in schedules if not isinstance(s, Delay)]
    return min((moment for moment in coming if moment is not None and moment - at < ASKED_TIME_SPAN), default=None)


ASKED_TIME_HINT: Final = (
    'write it with its date, like "2026-12-01T09:00" in the time zone of the job, or "2026-12-01T09:00Z" in UTC'
)


def parse_asked_time(text: str, schedules: Sequence[Schedule]) -> datetime:
    """Parses RFC 3339. A time without an offset is in the time zone of the job."""
    try:
        return read_instant(text, what="at", pointer="/at", hint=ASKED_TIME_HINT)
    except InvalidSchedule as error:
        if error.code != "offset_required":
            raise
    local = datetime.fromisoformat(text.upper()).replace(tzinfo=ZoneInfo(zone_of(schedules)))
    return read_instant(local, what="at", pointer="/at")


def explain_skipped_time(text: str, schedules: Sequence[Schedule]) -> ExplainReason | None:
    """Explains that a time that `parse_asked_time` has parsed does not exist on the clocks of the job's time zone."""
    asked = datetime.fromisoformat(text.upper())
    return None if asked.tzinfo else skipped_time_reason(asked, zone_of(schedules))


# A run


def _ended_reason(run: QueuedRun, now: datetime, job: JobFacts | None) -> ExplainReason:
    when = "" if run.finished_at is None else f" {format_relative(run.finished_at, now)}"
    why = format_error(run.error)
    because = f": {why}" if why else ""
    if run.state is State.SUCCEEDED:
        return info_reason("ended", f"the run succeeded{when}, on attempt {run.attempt}")
    if run.state is State.SKIPPED:
        return _skipped_reason(run, when, job)
    if run.state is State.DEAD:
        text = f"the run is dead: it failed{when}, after {format_count(run.attempt, 'attempt')}{because}"
        return blocking_reason("ended", text, f"bellringer runs retry {run.run_id}" if run.dead_letter else "")
    if run.replaced_by is not None:
        because = f": replaced by the run of {format_instant(run.replaced_by)} (overlap: replace)"
    error = run.error if isinstance(run.error, dict) else {}
    if error.get("type") == "Cancelled" and not error.get("requested") and run.attempt:
        return blocking_reason(
            "cancelled_unasked", f"the run was cancelled{when}, but no cancel request is recorded{because}"
        )
    return blocking_reason("ended", f"the run was {run.state}{when}{because}")


def _skipped_reason(run: QueuedRun, when: str, job: JobFacts | None) -> ExplainReason:
    """A run that ended without an attempt. The run that caused the skip is named by its scheduled time."""
    error = run.error if isinstance(run.error, dict) else {}
    reason, other = str(error.get("reason") or ""), error.get("run") or {}
    which = f"the run of {_format_instant_of(other)}" if _format_instant_of(other) else "an earlier run"
    if reason == "overlap":
        text = f"the run was skipped{when}: {which} was unfinished when this one was due (overlap: skip)"
        fix = f"bellringer jobs update {quote(job.name)} --overlap queue" if job else ""
        return blocking_reason("skipped_overlap", text, fix)
    if reason == "coalesced":
        return blocking_reason("coalesced", f"the run was coalesced{when} into {which}, which was already waiting")
    if reason == "expired":
        text = f"the run expired{when}: it had not started when its time was over (expires_in), and never ran"
        return blocking_reason("expired", text)
    return blocking_reason("skipped", f"the run was skipped{when}: {reason or 'no reason is recorded'}")


def _format_instant_of(other: Any) -> str:
    text = other.get("scheduled_for") if isinstance(other, dict) else None
    return format_instant(datetime.fromisoformat(text)) if isinstance(text, str) else ""


def _running_reasons(run: QueuedRun, now: datetime) -> list[ExplainReason]:
    since = "" if run.since is None else f" for {format_duration(round_duration(now - run.since))}"
    progress = run.progress if isinstance(run.progress, dict) else {}
    total = "" if progress.get("total") is None else f" of {progress['total']}"
    done = f", {progress['done']}{total} done" if progress.get("done") is not None else ""
    found = [info_reason("running", f"running on {run.worker or 'a worker'}{since}, attempt {run.attempt}{done}")]
    if run.cancel_requested:
        why = f" by the run of {format_instant(run.replaced_by)} (overlap: replace)" if run.replaced_by else ""
        text = f"a cancel was requested{why}; the run ends when its handler returns"
        found.insert(0, blocking_reason("cancel_requested", text))
    if run.worker_state in {"lost", "stopped"} or run.worker_age > WORKER_SILENT_AFTER.total_seconds():
        silent = format_duration(round_duration(timedelta(seconds=run.worker_age)))
        text = f"its worker sent its last heartbeat {silent} ago; a scheduler gives the run to another worker"
        found.insert(0, blocking_reason("worker_silent", text, "bellringer scheduler"))
    elif run.unconfirmed:
        text = f"{run.worker or 'the worker'} holds the run{since} but has not confirmed that it executes it"
        lost = "the response to the claim may be lost; the worker returns such a run within seconds"
        found.insert(0, blocking_reason("unconfirmed", f"{text}: {lost}"))
    return found


def _blocked_loop_reasons(facts: ExplainFacts) -> list[ExplainReason]:
    """Reasons about coroutines that block the event loop of the run. Only a loop that is still blocked prevents
    progress.
    """
    found = []
    for block in facts.blocks:
        length = format_duration(round_duration(block.length))
        own = facts.run is not None and block.run_id == facts.run.run_id
        fix = "declare the handler with `def`, or move the blocking call to `await asyncio.to_thread(…)`"
        if own:
            text = (
                f"the handler {'blocked' if block.is_over else 'is blocking'} the event loop of its worker for {length}"
            )
        else:
            verb = "was" if block.is_over else "is"
            text = f"the event loop of the run {verb} blocked for {length} by task {block.task} (run {block.run_id})"
        holding = not block.is_over and facts.run is not None and facts.run.state is State.RUNNING
        found.append(blocking_reason("blocked_loop", text, fix) if holding else info_reason("blocked_loop", text, fix))
    return found


def _waiting_reasons(facts: ExplainFacts, run: QueuedRun, now: datetime) -> list[ExplainReason]:
    """Reasons of the run itself: a pause, a predecessor, a freeze, a limit, or its time."""
    found = []
    pause = facts.job.pause if facts.job is not None else None
    if facts.job is not None and (run.blocked & Blocked.PAUSED or (run.in_timer and pause is not None)):
        found.append(pause_reason(facts.job, now))
    elif facts.job is not None:
        found.append(passed_check("not_paused", "the job is not paused"))
    if run.blocked & Blocked.PREDECESSOR:
        what = f"run {run.predecessor}" if run.predecessor else "the run before it"
        fix = f"bellringer runs cancel {run.predecessor}" if run.predecessor else ""
        found.append(blocking_reason("blocked_by_predecessor", f"the run waits until {what} has ended", fix))
    if run.blocked & Blocked.FROZEN:
        found.append(_frozen_reason(facts, now))
    if facts.suspended_at is not None:
        found.append(_suspended_reason(facts.suspended_at, now))
    if run.blocked & Blocked.LIMITED and run.limit is not None:
        found.append(_limit_reason(run.limit))
    if run.available_at is not None and run.available_at > now:
        found.append(_not_due_reason(run, run.available_at, now))
    if run.in_timer:
        found += _shard_reasons(facts)
    if run.expires_at is not None:
        until = f"{format_instant(run.expires_at)}, {format_relative(run.expires_at, now)}"
        found.append(info_reason("expires", f"the run does not start at or after its deadline: {until} (expires_in)"))
    return found


def _not_due_reason(run: QueuedRun, at: datetime, now: datetime) -> ExplainReason:
    until = f"{format_instant(at)}, {format_relative(at, now)}"
    if not run.attempt:
        return blocking_reason("not_due_yet", f"the run is not due until {until}")
    why = format_error(run.error)
    tries = f"{min(run.spent, run.attempts)} of {run.attempts} attempts used"
    text = f"the next attempt starts at {until} ({tries}{f'; {why}' if why else ''})"
    return blocking_reason("waits_for_retry", text, f"bellringer runs retry {run.run_id}")


def _frozen_reason(facts: ExplainFacts, now: datetime) -> ExplainReason:
    freeze = facts.freeze
    if freeze is None:  # lifted between two reads
        return blocking_reason("frozen", "a freeze held the run until just now; it continues shortly")
    why = f" ({shorten(freeze.why)})" if freeze.why else ""
    until = f"{format_instant(freeze.until)}, {format_relative(freeze.until, now)}"
    text = f"the freeze {freeze.name}{why} is in effect until {until}"
    return blocking_reason("frozen", text, f"bellringer freezes lift {quote(freeze.name)}")


def _suspended_reason(since: datetime, now: datetime) -> ExplainReason:
    text = f"the tenant was suspended {format_relative(since, now)}"
    return blocking_reason("tenant_suspended", text, "bellringer tenants unsuspend NAME")


def _limit_reason(limit: LimitFacts) -> ExplainReason:
    whose = f"the concurrency key {limit.key}" if limit.key else "the job"
    text = f"{whose} uses {limit.taken} of at most {format_count(limit.most, 'concurrent run')}"
    if limit.taken < limit.most:
        return passed_check("within_limit", text)
    which = f": {', '.join(limit.runs)}" if limit.runs else ""
    fix = f"bellringer runs cancel {limit.runs[0]}" if limit.runs else ""
    return blocking_reason("limit_reached", f"{text}{which}", fix)


# A job


def _job_state_reasons(job: JobFacts, at: datetime, now: datetime | None = None) -> list[ExplainReason]:
    """Reasons why a job is not active at an instant."""
    found = []
    if not job.enabled:
        found.append(blocking_reason("job_disabled", "the job is disabled (`enabled` is false)"))
    if job.pause is not None:
        found.append(pause_reason(job, now or at))
    elif job.enabled:
        found.append(passed_check("not_paused", "the job is enabled and not paused"))
    if job.starts_at is not None and at < job.starts_at:
        found.append(blocking_reason("before_start", f"the job starts at {format_instant(job.starts_at)}"))
    if job.ends_at is not None and at > job.ends_at:
        verb = "ends" if job.ends_at > (now or at) else "ended"
        found.append(blocking_reason("after_end", f"the job {verb} at {format_instant(job.ends_at)}"))
    return found


def _hold_reasons(facts: ExplainFacts, now: datetime) -> list[ExplainReason]:
    """Reasons that hold all schedules of a tenant or a tag: a freeze, a suspension."""
    found = []
    if facts.freeze is not None:
        found.append(_frozen_reason(facts, now))
    if facts.suspended_at is not None:
        found.append(_suspended_reason(facts.suspended_at, now))
    return found


def _shard_reasons(facts: ExplainFacts) -> list[ExplainReason]:
    if facts.scheduler is not None:
        return [passed_check("shard_held", f"scheduler {facts.scheduler} holds shard {facts.shard}")]
    if facts.waits_for is not None:
        text = f"no scheduler holds shard {facts.shard}: a scheduler is waiting for {facts.waits_for}"
        return [blocking_reason("shard_unheld", text)]
    return [blocking_reason("shard_unheld", f"no scheduler holds shard {facts.shard}", "bellringer scheduler")]


_ROOT_CAUSES: Final = frozenset({"task_unknown", "no_worker_for_pool", "pool_paused", "task_paused"})
_CONSEQUENCES: Final = frozenset({"blocked_by_predecessor", "skipped_overlap", "last_run"})


def is_skipped_behind_unstarted(run: QueuedRun | None) -> bool:
    """Whether a run was skipped because of an earlier run that still has not started."""
    if run is None or run.state is not State.SKIPPED or not run.predecessor_waits:
        return False
    return isinstance(run.error, dict) and run.error.get("reason") == "overlap"


def sort_root_cause_first(run: QueuedRun | None, found: Sequence[ExplainReason]) -> list[ExplainReason]:
    """Sorts the reasons. If no worker can start the run before this one, that reason comes first, and its
    consequences lose their fix: neither a cancel nor another overlap policy would help.
    """
    roots = [reason for reason in found if reason.holds is True and reason.code in _ROOT_CAUSES]
    if run is None or not run.predecessor_waits or not roots:
        return sort_reasons(found)
    rest = [
        replace(reason, fix="") if reason.code in _CONSEQUENCES else reason for reason in found if reason not in roots
    ]
    return sort_reasons([*roots, *rest])
