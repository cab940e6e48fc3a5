"""For those who test: the real engine on a database of the test's own, with a clock that the test moves.

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
    from bellringer.testing.facade import TestEngine
    from bellringer.testing.factories import make_definition, make_job, make_run
    from bellringer.testing.records import Enqueued, Fire, Performed
    from bellringer.testing.server import TestServer, serve

__all__ = [
    "Engine",
    "Enqueued",
    "Fire",
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
    "Fire": "records",
    "Performed": "records",
    "TestClock": "clock",
    "TestEngine": "facade",
    "TestServer": "server",
    "make_definition": "factories",
    "make_job": "factories",
    "make_run": "factories",
    "serve": "server",
}


if not TYPE_CHECKING:  # or every misspelt name would be of type Any

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is asked for: pytest loads the plugin in every test run."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
