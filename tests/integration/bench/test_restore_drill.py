"""The restore drill: base backup, WAL archive, point-in-time recovery, and the cluster goes on with nothing missing."""

from __future__ import annotations

import os

import pytest
from bench.peers.servers import find_programs
from bench.restore import run_drill

from bellringer.errors import ConfigError


@pytest.fixture
def stock_programs() -> None:
    try:
        find_programs()
    except (ConfigError, FileNotFoundError, RuntimeError) as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO STOCK POSTGRESQL FOR THIS TEST: {error}")


@pytest.mark.usefixtures("stock_programs")
def test_nothing_accepted_before_the_recovery_point_is_missing_and_verify_is_clean() -> None:
    figures = run_drill(1.5, jobs=15, sends=30)
    assert figures.accepted_before_point > 30
    assert figures.accepted_after_point > 0  # the drill loses something, or it shows nothing
    assert (figures.missing, figures.unexecuted) == ([], [])
    assert figures.findings == []
    assert figures.expected > 15
    assert figures.gaps["misfire"] > 0
    assert figures.runs_by_cause["catchup"] > 0
    assert (figures.executed_again > 0, figures.unexplained) == (True, [])
    assert figures.repeatable >= figures.executed_again
    assert (figures.audit_seals > 0, figures.audit_broken) == (True, None)
    assert figures.is_clean
