"""Compares what was accepted, what was executed and what the database says; each difference is a violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from bellringer.core.runs import POISON_LOST_ATTEMPTS

from .app import NODES
from .ledger import FINAL, Ledger, Recorded
from .load import CHAINS, RECURRING, Accepted, Load, bulk_items
from .sink import Execution, by_run, by_tag

BETWEEN: Final = frozenset({"lost", "failed", "timed_out"})  # outcomes after which a run is executed again
LATEST_SECONDS: Final = 15.0  # of the end are not judged: those occurrences may still be under way
CHAIN_SECONDS: Final = 15.0  # within which a living chain has executed
AT_MOST_ONCE_REASON: Final = "the worker was lost, and delivery is at_most_once"


@dataclass(slots=True)
class Verdict:
    """What the oracle found."""

    violations: list[str] = field(default_factory=list)
    executed: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    worst_after_heal: float = 0.0  # seconds from the heal, or from its time, to the first good end of a one-shot
    worst: str = ""


@dataclass(slots=True)
class Oracle:
    """Judges one history."""

    load: Load
    executions: list[Execution]
    ledger: Ledger
    healed: float  # monotonic, as the sink's times
    healed_wall: float
    ended: float

    def judge(self) -> Verdict:
        verdict = Verdict(executed=len(self.executions))
        for check in (self._one_shots, self._runs, self._early, self._recurring, self._order, self._chains):
            verdict.violations.extend(check(verdict))
        return verdict

    # One-shots

    def _one_shots(self, verdict: Verdict) -> Iterator[str]:
        tags = by_tag(self.executions)
        for accepted in self.load.accepted:
            names = [f"{accepted.tag}/{node}" for node in NODES] if accepted.kind == "workflow" else [accepted.tag]
            for name in names:
                yield from self._one_shot(accepted, name, tags.get(name, []), verdict)
        for tag, executed in tags.items():
            if tag not in self.load.jobs and len(runs := {e.run for e in executed}) > 1:
                yield f"{tag}: sent once, and executed as {len(runs)} runs"
        for tag in self.load.unknown:
            if tag.startswith("bulk-") and 0 < len(found := tags.keys() & bulk_items(tag)) < len(bulk_items(tag)):
                yield f"{tag}: stored in part; executed: {', '.join(sorted(found))}"

    def _one_shot(self, accepted: Accepted, tag: str, executed: list[Execution], verdict: Verdict) -> Iterator[str]:
        good = next((e for e in executed if e.outcome == "ok" and e.ended is not None), None)
        recorded = self.ledger.runs.get(executed[0].run if executed else accepted.run_id or "")
        if accepted.kind == "once" and len(executed) > 1:
            yield f"{tag}: delivered at most once, and executed {len(executed)} times"
        if good is None or good.ended is None:
            if recorded is None or not self._may_be_dead(recorded):
                yield f"{tag}: accepted, and not executed to its end; {self._story(recorded, executed)}"
            return
        if recorded is None or recorded.state != "succeeded":
            if recorded is None or not self._may_be_dead(recorded):
                yield f"{tag}: executed to its end, and not recorded so; {self._story(recorded, executed)}"
            return
        # Work that takes long, or that needs several attempts, is late by its own doing.
        if accepted.kind not in {"long", "workflow"}:
            from_due = good.ended - self.healed - max(0.0, accepted.due - self.healed_wall)
            if from_due > verdict.worst_after_heal:
                verdict.worst_after_heal, verdict.worst = from_due, tag

    def _may_be_dead(self, run: Recorded) -> bool:
        """Whether a run died for a reason that the sink or the attempts prove."""
        if run.state != "dead":
            return False
        if run.task == "once":
            return run.reason == AT_MOST_ONCE_REASON and "lost" in run.outcomes.values()
        if run.reason.startswith("poison"):
            return (
                len(run.lost_by) >= POISON_LOST_ATTEMPTS
                and len({e.pid for e in self.executions if e.run == run.id}) >= POISON_LOST_ATTEMPTS
            )
        return False

    # All runs

    def _runs(self, verdict: Verdict) -> Iterator[str]:
        executed = by_run(self.executions)
        for run in self.ledger.runs.values():
            starts = executed.get(run.id, [])
            if run.state == "cancelled":
                yield f"{_named(run)}: cancelled, and nobody cancelled it; {self._story(run, starts)}"
            elif run.state == "lacks":
                yield f"{_named(run)}: neither ended nor queued; {self._story(run, starts)}"
            elif run.state == "dead":
                verdict.dead[run.reason] += 1
                if not self._may_be_dead(run):
                    yield f"{_named(run)}: dead without a proof; {self._story(run, starts)}"
            elif run.state == "succeeded" and not starts and run.task in _TASKS:
                yield f"{_named(run)}: succeeded, and was never executed; {self._story(run, starts)}"
            yield from self._attempts(run, starts, verdict)
        for run_id in executed.keys() - self.ledger.runs.keys():
            yield f"{executed[run_id][0].tag}: executed, and not recorded: {run_id}"

    def _attempts(self, run: Recorded, starts: list[Execution], verdict: Verdict) -> Iterator[str]:
        for first, second in pairwise(starts):
            if second.attempt <= first.attempt:
                yield (
                    f"{_named(run)}: attempt {second.attempt} started {second.began - first.began:.2f} s after attempt"
                    f" {first.attempt}; {self._story(run, starts)}"
                )
            between = run.outcomes.get(first.attempt, "")
            if between not in BETWEEN:
                yield (
                    f"{_named(run)}: executed again though attempt {first.attempt} ended as {between or 'nothing'};"
                    f" {self._story(run, starts)}"
                )
            else:
                verdict.duplicates[between] += 1

    def _early(self, _verdict: Verdict) -> Iterator[str]:
        for execution in self.executions:
            if execution.wall < execution.due:
                yield f"{execution.tag}: started {execution.due - execution.wall:.3f} s before its time"
        due = {accepted.tag: accepted.due for accepted in self.load.accepted}
        for execution in self.executions:
            if execution.tag in due and execution.wall < due[execution.tag] - 0.001:
                early = due[execution.tag] - execution.wall
                yield f"{execution.tag}: started {early:.3f} s before the time that was asked for"

    # Recurring jobs

    def _recurring(self, _verdict: Verdict) -> Iterator[str]:
        last = datetime.fromtimestamp(self.healed_wall + (self.ended - self.healed) - LATEST_SECONDS, UTC)
        executed = by_run(self.executions)
        for name, _, overlap, _ in RECURRING:
            if name not in self.load.jobs:
                continue
            of_job = {run.scheduled_for: run for run in self.ledger.runs.values() if run.job == name}
            instant = datetime.fromtimestamp(int(self.load.jobs[name]) + 2, UTC)
            while instant < last:
                yield from self._occurrence(name, overlap, instant, of_job.get(instant), executed)
                instant += timedelta(seconds=1)

    def _occurrence(
        self, name: str, overlap: str, instant: datetime, run: Recorded | None, executed: dict[str, list[Execution]]
    ) -> Iterator[str]:
        if run is None:
            if not any(start <= instant <= end for start, end in self.ledger.gaps.get(name, [])):
                yield f"{name}: the occurrence of {instant:%H:%M:%S} has neither a run nor a gap"
        elif run.state == "skipped":
            if overlap != "skip" or not run.reason:
                yield f"{_named(run)}: skipped by a job that {overlap}s, because of {run.reason or 'nothing'}"
            elif executed.get(run.id):
                yield f"{_named(run)}: skipped, and executed; {self._story(run, executed[run.id])}"
        elif run.state not in FINAL:
            yield f"{_named(run)}: not ended; {self._story(run, executed.get(run.id, []))}"

    def _order(self, _verdict: Verdict) -> Iterator[str]:
        """Runs of jobs that skip or queue, and of chains, come one after another."""
        one_by_one = {name for name, _, overlap, _ in RECURRING if overlap != "allow"} | {name for name, *_ in CHAINS}
        for name, executions in by_tag(self.executions).items():
            if name not in one_by_one:
                continue
            for first, second in pairwise(executions):
                if first.run == second.run:
                    continue
                if second.due < first.due:
                    yield f"{name}: {_at(second)} started {second.began - first.began:.2f} s after {_at(first)}"
                run = self.ledger.runs.get(first.run)
                lost = run is not None and run.outcomes.get(first.attempt) == "lost"
                if (first.ended is None or second.began < first.ended) and not lost:
                    yield f"{name}: {_at(second)} started while {_at(first)} was under way; {self._story(run, [first])}"

    def _chains(self, _verdict: Verdict) -> Iterator[str]:
        tags = by_tag(self.executions)
        for name, *_ in CHAINS:
            if name not in self.load.jobs:
                continue
            latest = max((execution.began for execution in tags.get(name, [])), default=0.0)
            if self.ended - latest > CHAIN_SECONDS:
                yield f"{name}: the chain has stopped; it executed last {self.ended - latest:.0f} s before the end"

    def _story(self, run: Recorded | None, executed: list[Execution]) -> str:
        """What is known of a run, for whoever looks for the cause."""
        starts = ", ".join(
            f"attempt {e.attempt} by {e.pid} at {e.began - self.healed:+.2f} s {e.outcome or 'without an end'}"
            for e in executed
        )
        if run is None:
            return f"no record; starts: {starts or 'none'}"
        outcomes = ", ".join(f"{attempt} {outcome}" for attempt, outcome in sorted(run.outcomes.items()))
        reason = f" ({run.reason})" if run.reason else ""
        return f"{run.id} is {run.state}{reason}; attempts: {outcomes or 'none'}; starts: {starts or 'none'}"


_TASKS: Final = frozenset({"quick", "plain", "flaky", "slow", "long", "once", "isolated", "step"})


def _named(run: Recorded) -> str:
    return f"{run.job or run.task} of {run.scheduled_for:%H:%M:%S}"


def _at(execution: Execution) -> str:
    return f"{datetime.fromtimestamp(execution.due, UTC):%H:%M:%S} attempt {execution.attempt}"
