"""What a built-in task may say of a failure: when to come again, and that there is no again; and what `why` says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, State, decide_next_step
from bellringer.core.tasks import Failed
from bellringer.explain import ExplainFacts, JobFacts, OpenBreaker, QueuedRun, explain_job, explain_run
from bellringer.worker import results

NOW = datetime(2026, 11, 16, 4, tzinfo=UTC)
OPEN = OpenBreaker(
    origin="https://a.example",
    since=NOW - timedelta(minutes=2),
    probe_at=NOW + timedelta(seconds=20),
    why="it answered 503",
)


def bad(after: timedelta | None = None, final: str | None = None) -> Ending:
    return Ending(outcome=Outcome.FAILED, error={"type": "X"}, after=after, final=final)


def test_the_next_attempt_comes_no_sooner_than_asked() -> None:
    retry = Retry(3, delays=["10s"], jitter=0)
    assert decide_next_step(bad(), 1, retry, "").wait == timedelta(seconds=10)
    assert decide_next_step(bad(timedelta(minutes=1)), 1, retry, "").wait == timedelta(minutes=1)
    assert decide_next_step(bad(timedelta(seconds=1)), 1, retry, "").wait == timedelta(seconds=10)
    assert decide_next_step(bad(timedelta(minutes=1)), 3, retry, "").ends_as is State.DEAD


def test_a_final_failure_is_the_last() -> None:
    verdict = decide_next_step(bad(final="gone"), 1, Retry(9), "")
    assert (verdict.ends_as, verdict.reason) == (State.DEAD, "gone")


def test_a_failure_is_stored_with_its_detail() -> None:
    error = Failed("HttpStatus", "it answered 500", after=timedelta(seconds=3), detail={"status": 500})
    ending = results.ending_of_error(error)
    assert (ending.outcome, ending.after, ending.final) == (Outcome.FAILED, timedelta(seconds=3), None)
    assert ending.error is not None
    assert (ending.error["type"], ending.error["status"], ending.error["lineage"]) == (
        "HttpStatus",
        500,
        ["HttpStatus"],
    )


def test_an_open_circuit_is_the_first_reason_of_a_run_that_waits() -> None:
    run = QueuedRun(run_id="run_1", state=State.QUEUED, available_at=NOW + timedelta(seconds=20))
    first, *_ = explain_run(ExplainFacts(run=run, circuit=OPEN), NOW)
    assert (first.code, first.holds) == ("circuit_open", True)
    for words in ("https://a.example", "2m ago", "it answered 503", "the next trial call is in 20s"):
        assert words in first.text


def test_a_job_without_a_run_is_only_explained() -> None:
    found = explain_job(ExplainFacts(job=JobFacts(name="x"), circuit=OPEN), NOW)
    [told] = [reason for reason in found if reason.code == "circuit_open"]
    assert told.holds is False
