"""Chooses the best round of each system in each scenario, and compares them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

OURS: Final = "bellringer"
CONTENDER_RATIO: Final = 1 / 3  # of the best peer; what is slower runs in the first round only

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best round of a system in a scenario."""

    system: str
    result: Result
    rounds: int
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The ratio is above 1 if Bellringer is better; it is None if one of the two has no figure."""

    ours: Best | None
    peer: Best | None
    ratio: float | None


def score(scenario: str, result: Result) -> float:
    """Returns a number that is higher for better results: a rate, or the inverse of the p99 lateness."""
    return 1000 / max(float(result["p99_ms"]), 0.001) if scenario == "S4" else float(result["per_second"])


def best_rounds(results: Iterable[Result], scenario: str) -> dict[str, Best]:
    """Returns the best round of each system that has a figure, best system first."""
    by_system: dict[str, list[Result]] = {}
    for result in results:
        if result["scenario"] == scenario:
            by_system.setdefault(result["system"], []).append(result)
    found = []
    for system, rounds in by_system.items():
        if measured := [result for result in rounds if "failed" not in result]:
            best = max(measured, key=lambda result: score(scenario, result))
            failures = tuple(result["failed"] for result in rounds if "failed" in result)
            found.append(Best(system=system, result=best, rounds=len(rounds), failures=failures))
    found.sort(key=lambda best: -score(scenario, best.result))
    return {best.system: best for best in found}


def only_failures(results: Iterable[Result], scenario: str) -> dict[str, str]:
    """Returns the systems that have no figure, with the reason of the last round."""
    measured = best_rounds(results := list(results), scenario)
    failed = {result["system"]: result["failed"] for result in results if _is_failure(result, scenario)}
    return {system: reason for system, reason in failed.items() if system not in measured}


def best_peer(results: Iterable[Result], scenario: str) -> Best | None:
    peers = (best for system, best in best_rounds(results, scenario).items() if system != OURS)
    return next(peers, None)


def compare(results: Iterable[Result], scenario: str, field: str) -> Comparison:
    """Compares a figure of Bellringer's best round with the best figure of all peers' best rounds."""
    best = best_rounds(results, scenario)
    sign = 1 if field == "per_second" else -1  # a high rate is good, a high lateness is bad
    peers = [found for system, found in best.items() if system != OURS]
    peer = max(peers, key=lambda found: sign * float(found.result[field]), default=None)
    ours = best.get(OURS)
    ratio = None
    if ours and peer:
        ratio = (float(ours.result[field]) / float(peer.result[field])) ** sign
    return Comparison(ours=ours, peer=peer, ratio=ratio)


def is_contender(results: Sequence[Result], system: str, scenarios: Iterable[str]) -> bool:
    """Whether another round of these scenarios could change a comparison."""
    if system == OURS:
        return True
    for scenario in scenarios:
        own, peer = best_rounds(results, scenario).get(system), best_peer(results, scenario)
        if own and peer and score(scenario, own.result) >= CONTENDER_RATIO * score(scenario, peer.result):
            return True
    return False


def _is_failure(result: Result, scenario: str) -> bool:
    return result["scenario"] == scenario and "failed" in result
