"""Of some tries the one that lost least to the host is told."""

from __future__ import annotations

import pytest

from bellringer.bench import stolen
from bellringer.clock import SystemClock


async def tried(monkeypatch: pytest.MonkeyPatch, parts: list[float]) -> stolen.Calmest[int]:
    """Tries of a second each on one processor, of which the host takes these parts."""
    account, clock = [0.0], [0.0]
    monkeypatch.setattr(stolen, "stolen", lambda: account[0])
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock[0])

    async def measure(number: int) -> int:
        clock[0] += 1
        account[0] += parts[number - 1]
        return number

    return await stolen.calmest(measure, len(parts))


async def test_the_calmest_try_is_told_with_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await tried(monkeypatch, [0.4, 0.2, 0.3]) == stolen.Calmest(2, 0.2, 3)


async def test_a_calm_one_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await tried(monkeypatch, [0.4, 0.001, 0.0]) == stolen.Calmest(2, 0.001, 2)


def test_the_account_only_grows() -> None:
    first = stolen.stolen()
    assert 0 <= first <= stolen.stolen()
