"""cronsim as a second opinion, wherever it is known to be right and understands the expression."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from bellringer.schedule import cron

EXPRESSIONS = [
    "*/15 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "30 1 * * *",
    "0 3 * * *",
    "15 2,3 * * *",
    "0 9-17 * * MON-FRI",
    "5/20 */6 * * *",
    "0 0 1,15 * *",
    "0 0 L * *",
    "0 0 LW * *",
    "0 12 * * 5L",
    "0 12 * * MON#2",
    "0 0 13 * FRI",
    "0 0 */2 * MON",
    "0 0 29 2 *",
    "0 6 * JAN,JUL SUN",
    "0 0 * * 1/3",
]
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Europe/Dublin", "Asia/Kolkata", "Asia/Kathmandu"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_cronsim_agrees(expression: str, zone: str) -> None:
    start = datetime(2026, 2, 20, 12, 34, 56, tzinfo=UTC)
    theirs = CronSim(expression, start.astimezone(ZoneInfo(zone)))
    ours = cron(expression, tz=zone).between(start, datetime(2900, 1, 1, tzinfo=UTC))
    assert list(islice(ours, 200)) == [instant.astimezone(UTC) for instant in islice(theirs, 200)]
