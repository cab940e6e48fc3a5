"""Reasons: the decisive one first, with its numbers and what mends it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bellringer.core.runs import FINAL_STATES, State
from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.explain import (
    MAX_RUNS_AHEAD_COUNTED,
    ExplainFacts,
    InstantFacts,
    JobFacts,
    LiveWorker,
    MissedSpan,
    PauseFacts,
    QueuedRun,
    explain_job,
    explain_occurrence,
    explain_run,
    explain_skipped_time,
    format_instant,
    nearest_instant,
    next_instant,
    parse_asked_time,
)
from bellringer.schedule import Schedule, at, cron, delay, every

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
PAUSE = PauseFacts(at=NOW - 3 * HOUR, by="ada", why="INC-42")
JOB = JobFacts(name="nightly", schedules=(every("1h"),), hand_at=NOW + HOUR)
WORKER = LiveWorker(name="w", pools={"short": 4}, knows=True)
FINE = ExplainFacts(
    job=JOB, task="greet", pool="short", shard=7, scheduler="n1", workers=(WORKER, WORKER), tasks=("greet",), taken=1
)


def held(state: State = State.QUEUED, **more: Any) -> QueuedRun:
    return QueuedRun(run_id="run_1", state=state, **{"available_at": NOW, **more})


def soon(**more: Any) -> QueuedRun:
    return held(available_at=NOW + HOUR, **more)


RUNS: dict[str, tuple[ExplainFacts, str, str, str]] = {
    "ready": (FINE, "ready", "the run is ready and starts shortly", ""),
    "ready behind one": (replace(FINE, ahead=1), "ready", "after 1 run ahead of it", ""),
    "not due": (replace(FINE, run=soon()), "not_due_yet", "is not due until 2026-11-16 13:00Z, in 1h", ""),
    "retrying": (
        replace(FINE, run=soon(attempt=3, spent=1, attempts=5, error={"type": "E", "message": "no\n 5"})),
        "waits_for_retry",
        "starts at 2026-11-16 13:00Z, in 1h (1 of 5 attempts used; E: no 5)",
        "bellringer runs retry run_1",
    ),
    "paused": (
        replace(FINE, job=replace(JOB, pause=PAUSE), run=held(State.BLOCKED, blocked=1)),
        "job_paused",
        "paused by ada 3h ago (INC-42), until resumed",
        "bellringer jobs resume nightly",
    ),
    "paused while its timer waits": (
        replace(FINE, job=replace(JOB, pause=replace(PAUSE, until=NOW + HOUR)), run=soon(in_timer=True)),
        "job_paused",
        "until 2026-11-16 13:00Z",
        "bellringer jobs resume nightly",
    ),
    "by hand in a paused job": (replace(FINE, job=replace(JOB, pause=PAUSE)), "ready", "", ""),
    "predecessor": (
        replace(FINE, run=held(State.BLOCKED, blocked=2, predecessor="run_0")),
        "blocked_by_predecessor",
        "until run run_0 has ended",
        "bellringer runs cancel run_0",
    ),
    "timer without scheduler": (
        replace(FINE, scheduler=None, run=held(in_timer=True)),
        "shard_unheld",
        "no scheduler holds shard 7",
        "bellringer scheduler",
    ),
    "queued without scheduler": (replace(FINE, scheduler=None), "ready", "", ""),
    "no pool": (
        replace(FINE, pool="big pool"),
        "no_worker_for_pool",
        "no live worker serves pool big pool (2 live workers, of short)",
        "bellringer worker APP --pool 'big pool'=10",
    ),
    "nobody": (
        replace(FINE, workers=()),
        "no_worker_for_pool",
        "there are no live workers",
        "bellringer worker APP --pool short=10",
    ),
    "task unknown": (
        replace(FINE, task="gret", workers=(replace(WORKER, knows=False),)),
        "task_unknown",
        "the one live worker of pool short does not know the task gret; did you mean greet?",
        "bellringer worker APP",
    ),
    "task known elsewhere": (
        replace(FINE, workers=(replace(WORKER, knows=False), replace(WORKER, pools={"long": 1}))),
        "task_unknown",
        "; workers of long do",
        "bellringer worker APP --pool short=10",
    ),
    "busy": (
        replace(FINE, taken=9, ahead=MAX_RUNS_AHEAD_COUNTED),
        "pool_busy",
        "all 8 slots of the 2 live workers of pool short are busy, with 1,000 or more runs ahead in the queue",
        "bellringer worker APP --pool short=10",
    ),
    "set aside": (replace(FINE, run=held(State.BLOCKED, blocked=4)), "set_aside", "is queued again shortly", ""),
    "running": (
        replace(FINE, run=held(State.RUNNING, worker="w", attempt=2, since=NOW - HOUR, progress={"done": 0})),
        "running",
        "running on w for 1h, attempt 2, 0 done",
        "",
    ),
    "stopping": (
        replace(FINE, run=held(State.RUNNING, cancel_requested=True)),
        "cancel_requested",
        "a cancel was requested",
        "",
    ),
    "silent": (
        replace(FINE, run=held(State.RUNNING, worker_age=70)),
        "worker_silent",
        "last heartbeat 1m10s ago",
        "bellringer scheduler",
    ),
    "succeeded": (
        replace(FINE, run=held(State.SUCCEEDED, attempt=1, finished_at=NOW - 26 * HOUR)),
        "ended",
        "the run succeeded 1d2h ago, on attempt 1",
        "",
    ),
    "dead": (
        replace(FINE, run=held(State.DEAD, attempt=3, finished_at=NOW, error={"reason": "poison"}, dead_letter=True)),
        "ended",
        "the run is dead: it failed now, after 3 attempts: poison",
        "bellringer runs retry run_1",
    ),
    "discarded": (replace(FINE, run=held(State.DEAD, attempt=3)), "ended", "the run is dead", ""),
    "cancelled": (
        replace(FINE, run=held(State.CANCELLED, error={"reason": "wrong customer"})),
        "ended",
        "the run was cancelled: wrong customer",
        "",
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_the_decisive_reason_of_a_run_comes_first(case: str) -> None:
    facts, code, text, fix = RUNS[case]
    facts = facts if facts.run else replace(facts, run=held())
    [first, *rest] = explain_run(facts, NOW)
    assert first.code == code
    assert text in first.text
    assert first.fix == fix
    assert [r.holds for r in rest] == sorted((r.holds for r in rest), key=[True, False, "ok"].index)


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_reason_without_any_help(state: State) -> None:
    reasons = explain_run(ExplainFacts(run=held(state)), NOW)
    assert reasons
    assert (reasons[0].code in {"ended", "skipped"}) == (state in FINAL_STATES)


def test_several_things_in_the_way_are_all_reported() -> None:
    run = soon(in_timer=True, attempt=1)
    facts = replace(FINE, job=replace(JOB, pause=PAUSE), run=run, scheduler=None, workers=())
    found = [reason.code for reason in explain_run(facts, NOW)]
    assert found == ["job_paused", "waits_for_retry", "shard_unheld", "no_worker_for_pool"]


JOBS: dict[str, tuple[JobFacts, str, str]] = {
    "between": (JOB, "not_due_yet", "not due until 2026-11-16 13:00Z, in 1h"),
    "paused": (replace(JOB, pause=PAUSE), "job_paused", "paused by ada"),
    "disabled": (replace(JOB, enabled=False), "job_disabled", "`enabled` is false"),
    "to start": (replace(JOB, starts_at=NOW + 5 * HOUR), "before_start", "starts at 2026-11-16 17:00Z"),
    "over": (replace(JOB, ends_at=NOW - HOUR), "after_end", "ended at 2026-11-16 11:00Z"),
    "by hand": (replace(JOB, schedules=()), "no_schedule", "only when triggered"),
    "once, past": (replace(JOB, schedules=(at(NOW - HOUR),)), "no_more_instants", "no further occurrence"),
    "once, to be deleted": (
        replace(JOB, schedules=(at(NOW - HOUR),), deleted_when_done=True),
        "no_more_instants",
        "deleted once it has no dead letter",
    ),
    "delay": (replace(JOB, schedules=(delay("1h"),)), "not_due_yet", "when the last one ends"),
}


@pytest.mark.parametrize("case", JOBS)
def test_the_decisive_reason_of_a_job_comes_first(case: str) -> None:
    job, code, text = JOBS[case]
    first = explain_job(replace(FINE, job=job), NOW)[0]
    assert (first.code, first.holds) == (code, True)
    assert text in first.text


def test_the_last_run_of_a_job_is_reported_and_an_unfinished_one_decides() -> None:
    dead = replace(FINE, run=held(State.DEAD, dead_letter=True))
    found = {reason.code: reason for reason in explain_job(dead, NOW)}
    assert found["last_run"].holds is False
    assert found["last_run"].fix == "bellringer runs retry run_1"
    assert explain_job(replace(FINE, run=held()), NOW)[0].code == "ready"


def then(job: JobFacts | None = JOB, **more: Any) -> ExplainFacts:
    return replace(FINE, then=InstantFacts(job=job, **more))


def gap(reason: str = "misfire", count: int | None = 3) -> MissedSpan:
    return MissedSpan(from_at=NOW - 5 * HOUR, to_at=NOW, count=count, reason=reason, into_at=NOW)


BEFORE = NOW - 2 * HOUR
INSTANTS: dict[str, tuple[ExplainFacts, datetime, str, str]] = {
    "run": (replace(then(), run=held(State.SUCCEEDED)), BEFORE, "ended", "succeeded"),
    "outage": (then(gap=gap()), BEFORE, "gap", "no scheduler ran in time, from 2026-11-16 07:00Z"),
    "outage, counted": (
        then(gap=gap()),
        BEFORE,
        "gap",
        "3 occurrences in all; the occurrence of 2026-11-16 12:00Z ran",
    ),
    "outage, uncounted": (then(gap=gap(count=None)), BEFORE, "gap", "; 5 occurrences in all"),
    "paused, over": (then(replace(JOB, pause=PAUSE), gap=gap("paused")), BEFORE, "gap", "paused by ada (INC-42)"),
    "before": (then(None), BEFORE, "before_job", "created at 1970-01-01 00:00Z"),
    "paused": (then(replace(JOB, pause=PAUSE)), BEFORE, "job_paused", "3h ago (INC-42)"),
    "disabled": (then(replace(JOB, enabled=False)), BEFORE, "job_disabled", "disabled"),
    "too early": (then(replace(JOB, starts_at=NOW)), BEFORE, "before_start", "starts at"),
    "too late": (then(replace(JOB, ends_at=NOW - 3 * HOUR)), BEFORE, "after_end", "ended at"),
    "between": (
        then(),
        BEFORE + HOUR / 2,
        "not_an_instant",
        (
            "10:30Z is not a time of the schedule: "
            "the previous one is 2026-11-16 10:00Z, the next one is 2026-11-16 11:00Z"
        ),
    ),
    "by hand": (then(replace(JOB, schedules=())), BEFORE, "no_schedule", "only when triggered"),
    "delay": (
        then(replace(JOB, schedules=(delay("1h"),))),
        BEFORE,
        "not_an_instant",
        "after the previous one has ended",
    ),
    "to come": (then(), NOW + HOUR, "in_future", "due at 2026-11-16 13:00Z, in 1h"),
    "to come, nobody there": (replace(then(), scheduler=None), NOW + HOUR, "shard_unheld", "shard 7"),
    "dropped": (then(kept=False), BEFORE, "forgotten", "deleted by retention"),
    "behind": (replace(then(), job=replace(JOB, hand_at=BEFORE)), BEFORE, "scheduler_late", "due 2h ago; scheduler n1"),
    "unheld": (
        replace(then(), job=replace(JOB, hand_at=BEFORE), scheduler=None),
        BEFORE,
        "shard_unheld",
        "due 2h ago, but no scheduler holds shard 7",
    ),
    "lost": (then(), BEFORE, "unaccounted", "please report this as a bug"),
}


@pytest.mark.parametrize("case", INSTANTS)
def test_the_decisive_reason_of_an_instant_comes_first(case: str) -> None:
    facts, moment, code, text = INSTANTS[case]
    first = explain_occurrence(facts, moment, NOW)[0]
    assert first.code == code
    assert text in first.text


def test_a_named_time_means_its_minute() -> None:
    late = every("1h", offset="59s")
    assert nearest_instant([late], NOW) == NOW + timedelta(seconds=59)
    assert nearest_instant([late, every("20s")], NOW) == NOW
    assert nearest_instant([every("1h", offset="1m")], NOW) is None
    assert nearest_instant([delay("1s")], NOW) is None


@pytest.mark.parametrize(
    ("gap", "previous"),
    [
        (
            "next",
            (
                "2027-03-28 01:00Z (2027-03-28 03:00 Europe/Paris), "
                "the first moment after a local time that the clocks skip (DST)"
            ),
        ),
        ("skip", "2027-03-27 01:30Z (2027-03-27 02:30 Europe/Paris)"),
    ],
)
def test_a_local_time_that_the_clocks_skip_is_explained(gap: str, previous: str) -> None:
    nightly = (cron("30 2 * * *", tz="Europe/Paris", gap=gap),)
    at = parse_asked_time("2027-03-28T02:30", nightly)
    [reason] = explain_occurrence(then(replace(JOB, schedules=nightly)), at, NOW)
    assert reason.text == (
        "2027-03-28 01:30Z (2027-03-28 03:30 Europe/Paris) is not a time of the schedule: "
        f"the previous one is {previous}, the next one is 2027-03-29 00:30Z (2027-03-29 02:30 Europe/Paris)"
    )
    skipped = explain_skipped_time("2027-03-28T02:30", nightly)
    assert skipped is not None
    assert skipped.text == (
        "DST: 2027-03-28 02:30 does not exist in Europe/Paris, the clocks skip it; it was read as 03:30"
    )
    for text in ("2027-03-28T03:30", "2027-03-28T02:30Z", "2027-10-31T02:30"):
        assert explain_skipped_time(text, nightly) is None


def test_the_hint_for_an_asked_time_names_the_accepted_forms() -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse_asked_time("20:40", [])
    assert '"2026-12-01T09:00" in the time zone of the job, or "2026-12-01T09:00Z" in UTC' in refused.value.hint
    parse_asked_time("2026-12-01T09:00", [])
    parse_asked_time("2026-12-01T09:00Z", [])


def test_the_next_instant_keeps_to_the_bounds_of_the_job() -> None:
    assert next_instant(replace(JOB, starts_at=NOW + 3 * HOUR), NOW) == NOW + 3 * HOUR
    assert next_instant(replace(JOB, ends_at=NOW + HOUR), NOW) == NOW + HOUR
    assert next_instant(replace(JOB, ends_at=NOW + HOUR / 2), NOW) is None
    assert next_instant(replace(JOB, schedules=(delay("1h"),), timer_at=NOW + HOUR), NOW) == NOW + HOUR


def test_a_time_without_offset_is_read_in_the_zone_of_the_job() -> None:
    paris: list[Schedule] = [every("1h"), cron("30 2 * * *", tz="Europe/Paris")]
    assert parse_asked_time("2026-11-16T02:30", paris) == datetime(2026, 11, 16, 1, 30, tzinfo=UTC)
    assert (
        parse_asked_time("2026-11-16 02:30Z", paris)
        == parse_asked_time("2026-11-16T02:30:00", [])
        == NOW.replace(hour=2, minute=30)
    )
    for wrong in ("02:30", "2026-02-30T00:00", "now", ""):
        with pytest.raises(InvalidInput):
            parse_asked_time(wrong, paris)


def test_an_instant_is_shown_in_utc() -> None:
    assert format_instant(NOW) == "2026-11-16 12:00Z"
    assert format_instant(NOW + timedelta(seconds=5, microseconds=3)) == "2026-11-16 12:00:05Z"
