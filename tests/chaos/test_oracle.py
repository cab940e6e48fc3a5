"""The oracle finds each kind of violation, and none where there is none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from .ledger import Ledger, Recorded
from .load import Accepted, Load, bulk_items
from .oracle import Oracle
from .sink import Execution

HEALED = 1_000_000.0  # by both clocks
AT_MOST_ONCE = "the worker was lost, and delivery is at_most_once"


def executed(number: int = 1, attempt: int = 1, **more: object) -> Execution:
    """An execution that began and ended well, ten seconds before the heal."""
    began = HEALED - 10 + attempt
    told = {"tag": f"quick-{number}", "task": "quick", "due": began - 1, "wall": began, "outcome": "ok", **more}
    return Execution(run=f"run-{number}", attempt=attempt, pid=attempt, began=began, ended=began + 0.1, **told)  # type: ignore[arg-type]


def recorded(number: int = 1, state: str = "succeeded", task: str = "quick", **more: object) -> Recorded:
    told = {"job": None, "slot": 0, "reason": "", "outcomes": {1: "ok"}, **more}
    return Recorded(f"run-{number}", task=task, state=state, scheduled_for=_instant(-11), **told)  # type: ignore[arg-type]


def accepted(number: int = 1, kind: str = "quick", due: float = -11.0) -> Accepted:
    return Accepted(kind, f"quick-{number}", HEALED + due, f"run-{number}")


def judged(
    runs: list[Recorded],
    executions: list[Execution],
    sent: list[Accepted] | None = None,
    jobs: dict[str, float] | None = None,
) -> list[str]:
    load = Load(0, accepted=sent if sent is not None else [accepted()], jobs=jobs or {})
    ledger = Ledger({run.id: run for run in runs}, {})
    return Oracle(load, executions, ledger, HEALED, HEALED, HEALED + 60).judge().violations


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(HEALED + seconds, UTC)


def test_a_run_that_is_executed_once_is_as_it_should_be() -> None:
    assert judged([recorded()], [executed()]) == []


def test_a_run_that_is_executed_again_after_a_lost_attempt_is_as_it_should_be() -> None:
    twice = [executed(outcome=""), executed(attempt=2)]
    assert judged([recorded(outcomes={1: "lost", 2: "ok"})], twice) == []


@pytest.mark.parametrize(
    ("runs", "executions", "violation"),
    [
        ([recorded(state="queued", outcomes={})], [], "not executed to its end"),
        ([], [], "not executed to its end"),
        ([recorded(state="queued")], [executed()], "not recorded so"),
        ([recorded(state="cancelled")], [executed()], "nobody cancelled it"),
        ([recorded(state="lacks")], [executed()], "neither ended nor queued"),
        ([recorded(state="dead", reason="no retries left")], [executed()], "dead without a proof"),
        ([recorded(state="dead", reason="poison: …", lost_by={"a", "b"})], [executed()], "dead without a proof"),
        ([recorded(outcomes={1: "ok", 2: "ok"})], [executed(), executed(attempt=2)], "executed again though"),
        ([recorded()], [executed(wall=HEALED - 30)], "before its time"),
        ([recorded(), recorded(2)], [executed()], "was never executed"),
        ([recorded()], [executed(), executed(2)], "not recorded: run-2"),
    ],
)
def test_each_violation_is_found(runs: list[Recorded], executions: list[Execution], violation: str) -> None:
    assert any(violation in told for told in judged(runs, executions))


def test_an_attempt_that_starts_after_a_later_one_is_found() -> None:
    late = executed(outcome="ok")
    late.began, late.ended = HEALED, HEALED + 1
    told = judged([recorded(outcomes={1: "lost", 2: "ok"})], [executed(attempt=2), late])
    assert any("attempt 1 started" in each for each in told)


def test_a_one_shot_that_has_two_runs_is_found() -> None:
    twice = [executed(), executed(2, tag="quick-1")]
    assert judged([recorded(), recorded(2)], twice) == ["quick-1: sent once, and executed as 2 runs"]


def test_a_bulk_that_is_stored_in_part_is_found() -> None:
    items = bulk_items("bulk-1")
    runs = [recorded(number) for number in range(len(items))]
    executions = [executed(number, tag=item) for number, item in enumerate(items)]
    load = Load(0, unknown={"bulk-1": "TimeoutError: "})

    def violations(stored: int) -> list[str]:
        ledger = Ledger({run.id: run for run in runs[:stored]}, {})
        return Oracle(load, executions[:stored], ledger, HEALED, HEALED, HEALED + 60).judge().violations

    assert violations(0) == violations(len(items)) == []
    assert violations(1) == ["bulk-1: stored in part; executed: bulk-1/0"]


def test_a_run_delivered_at_most_once_may_die_of_a_lost_attempt_and_of_nothing_else() -> None:
    sent = [accepted(kind="once")]
    lost = recorded(state="dead", task="once", reason=AT_MOST_ONCE, outcomes={1: "lost"})
    assert judged([lost], [executed(outcome="")], sent) == []
    failed = recorded(state="dead", task="once", reason="no retries left", outcomes={1: "failed"})
    assert judged([failed], [executed(outcome="")], sent) != []
    twice = [executed(outcome=""), executed(attempt=2)]
    assert any("executed 2 times" in each for each in judged([recorded(task="once")], twice, sent))


def test_an_occurrence_without_a_run_or_a_gap_is_found() -> None:
    began = HEALED - 20
    seconds = [began + 2 + n for n in range(80)]
    runs = [
        Recorded(f"run-{at}", "allow-quick", "quick", 0, datetime.fromtimestamp(at, UTC), "succeeded", "", {1: "ok"})
        for at in seconds
    ]
    executions = [
        Execution(run.id, 1, 1, "quick", "allow-quick", at, at, at, at, "ok")
        for run, at in zip(runs, seconds, strict=True)
    ]
    assert judged(runs, executions, [], {"allow-quick": began}) == []
    told = judged(runs[:30] + runs[31:], executions[:30] + executions[31:], [], {"allow-quick": began})
    assert told == [f"allow-quick: the occurrence of {runs[30].scheduled_for:%H:%M:%S} has neither a run nor a gap"]


def test_a_chain_that_has_stopped_and_runs_that_overlap_are_found() -> None:
    runs = [recorded(number, job="chain-quick") for number in (1, 2)]
    runs[1].scheduled_for += timedelta(seconds=1)
    first, second = (executed(number, tag="chain-quick", due=HEALED - 20 + number) for number in (1, 2))
    told = judged(runs, [first, second], [], {"chain-quick": HEALED - 20})
    assert any("was under way" in each for each in told)
    assert any("the chain has stopped" in each for each in told)
