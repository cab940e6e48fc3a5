"""Test support: the real engine on a database of the test, with a clock that the test moves.

def test_nightly(bellringer_test):
    t = bellringer_test(app, at="2026-03-28T12:00:00+01:00")
    t.advance("3d", drain=True).outage("2d").advance("1d", drain=True)
    assert [fire.outcome for fire in t.fires("cleanup")] == ["fired"] * 3 + ["missed"] + ["fired"] * 2
    t.verify()

Whole years, with outages and crashes: `bellringer.simulate`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bellringer.testing.clock import TestClock
    from bellringer.testing.engine import Engine
    from bellringer.testing.factories import make_definition, make_job, make_run
    from bellringer.testing.postgres import TestServer, serve
    from bellringer.testing.records import Enqueued, FireRecord, Performed
    from bellringer.testing.sync_engine import TestEngine

__all__ = [
    "Engine",
    "Enqueued",
    "FireRecord",
    "Performed",
    "TestClock",
    "TestEngine",
    "TestServer",
    "make_definition",
    "make_job",
    "make_run",
    "serve",
]

_MODULES: Final = {
    "Engine": "engine",
    "Enqueued": "records",
    "FireRecord": "records",
    "Performed": "records",
    "TestClock": "clock",
    "TestEngine": "sync_engine",
    "TestServer": "postgres",
    "make_definition": "factories",
    "make_job": "factories",
    "make_run": "factories",
    "serve": "postgres",
}


if not TYPE_CHECKING:  # or every misspelt name would be of type Any

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is asked for: pytest loads the plugin in every test run."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
