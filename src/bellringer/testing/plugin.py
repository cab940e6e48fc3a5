"""The pytest plugin: `bellringer_dsn` is a fresh database for one test, `bellringer_test` an engine on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bellringer.sdk.app import App
    from bellringer.testing.postgres import TestServer
    from bellringer.testing.sync_engine import TestEngine

# The imports stand inside the fixtures because pytest loads this module in every test run, needed or not.


@pytest.fixture(scope="session")
def bellringer_server() -> Iterator[TestServer]:
    """A PostgreSQL for this test run: that of BELLRINGER_TEST_DSN, or an embedded one."""
    from bellringer.testing.postgres import serve  # noqa: PLC0415

    with serve(in_memory=True) as server:
        yield server


@pytest.fixture
def bellringer_dsn(bellringer_server: TestServer) -> Iterator[str]:
    """The DSN of a fresh, migrated database of this test's own."""
    with bellringer_server.plain_database() as dsn:
        yield dsn


@pytest.fixture
def bellringer_test(bellringer_dsn: str) -> Iterator[Callable[..., TestEngine]]:
    """A factory of engines: `t = bellringer_test(app, at="2026-03-28T12:00:00+01:00")`."""
    from bellringer.testing.engine import DEFAULT_START  # noqa: PLC0415
    from bellringer.testing.sync_engine import TestEngine  # noqa: PLC0415

    engines: list[TestEngine] = []

    def make(app: App, *, at: datetime | str = DEFAULT_START) -> TestEngine:
        engines.append(TestEngine(app, bellringer_dsn, at=at))
        return engines[-1]

    yield make
    for engine in reversed(engines):
        engine.close()
