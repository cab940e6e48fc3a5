"""What a built-in task may say of a failure: when to come again, and that there is no again; and what `why` says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bellringer.policies import Retry
from bellringer.reasons import Circuit, Facts, Held, Member, reasons_for_job, reasons_for_run
from bellringer.runs import Ending, Outcome, State, judge
from bellringer.tasks import Failed
from bellringer.worker import endings

NOW = datetime(2026, 11, 16, 4, tzinfo=UTC)
OPEN = Circuit(
    origin="https://a.example",
    since=NOW - timedelta(minutes=2),
    probe_at=NOW + timedelta(seconds=20),
    why="it answered 503",
)


def bad(after: timedelta | None = None, final: str | None = None) -> Ending:
    return Ending(outcome=Outcome.FAILED, error={"type": "X"}, after=after, final=final)


def test_the_next_attempt_comes_no_sooner_than_asked() -> None:
    retry = Retry(3, delays=["10s"])
    assert judge(bad(), 1, retry, "").wait == timedelta(seconds=10)
    assert judge(bad(timedelta(minutes=1)), 1, retry, "").wait == timedelta(minutes=1)
    assert judge(bad(timedelta(seconds=1)), 1, retry, "").wait == timedelta(seconds=10)
    assert judge(bad(timedelta(minutes=1)), 3, retry, "").ends_as is State.DEAD


def test_a_final_failure_is_the_last() -> None:
    verdict = judge(bad(final="gone"), 1, Retry(9), "")
    assert (verdict.ends_as, verdict.reason) == (State.DEAD, "gone")


def test_a_failure_is_stored_with_its_detail() -> None:
    error = Failed("HttpStatus", "it answered 500", after=timedelta(seconds=3), detail={"status": 500})
    ending = endings.raised(error)
    assert (ending.outcome, ending.after, ending.final) == (Outcome.FAILED, timedelta(seconds=3), None)
    assert ending.error is not None
    assert (ending.error["type"], ending.error["status"], ending.error["lineage"]) == (
        "HttpStatus",
        500,
        ["HttpStatus"],
    )


def test_an_open_circuit_is_the_first_reason_of_a_run_that_waits() -> None:
    run = Held(run_id="run_1", state=State.QUEUED, available_at=NOW + timedelta(seconds=20))
    first, *_ = reasons_for_run(Facts(run=run, circuit=OPEN), NOW)
    assert (first.code, first.holds) == ("circuit_open", True)
    for words in ("https://a.example", "2m ago", "it answered 503", "tries it again in 20s"):
        assert words in first.text


def test_of_a_job_without_a_run_it_only_tells() -> None:
    found = reasons_for_job(Facts(job=Member(name="x"), circuit=OPEN), NOW)
    [told] = [reason for reason in found if reason.code == "circuit_open"]
    assert told.holds is False
