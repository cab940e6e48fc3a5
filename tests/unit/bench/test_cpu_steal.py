"""Of some tries those that lost least to the host count, and the middle one of them is told."""

from __future__ import annotations

import pytest

from bellringer.bench import cpu_steal
from bellringer.clock import SystemClock


async def tried(
    monkeypatch: pytest.MonkeyPatch, parts: list[float], figures: list[int] | None = None
) -> cpu_steal.Calmest[int]:
    """Tries of a second each on one processor, of which the host takes these parts; by default they measure their
    number."""
    account, clock = [0.0], [0.0]
    monkeypatch.setattr(cpu_steal, "stolen", lambda: account[0])
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock[0])

    async def measure(number: int) -> int:
        clock[0] += 1
        account[0] += parts[number - 1]
        return figures[number - 1] if figures else number

    return await cpu_steal.calmest(measure, float, len(parts))


async def test_of_the_three_calmest_the_middle_one_is_reported_with_what_it_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await tried(monkeypatch, [0.4, 0.2, 0.9, 0.3, 0.8], [10, 30, 1, 20, 99])
    assert found == cpu_steal.Calmest(20, 0.3, 5)


async def test_three_calm_ones_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await tried(monkeypatch, [0.4, 0.001, 0.0, 0.3, 0.0, 0.0], [9, 3, 1, 9, 2, 9])
    assert found == cpu_steal.Calmest(2, 0.0, 5)


async def test_fewer_tries_than_that_count_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await tried(monkeypatch, [0.5], [7]) == cpu_steal.Calmest(7, 0.5, 1)


def test_the_account_only_grows() -> None:
    first = cpu_steal.stolen()
    assert 0 <= first <= cpu_steal.stolen()
