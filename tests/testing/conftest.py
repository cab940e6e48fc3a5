"""The fixtures that users get, for the tests of what users call."""

from __future__ import annotations

from bellringer.testing.plugin import bellringer_dsn, bellringer_server, bellringer_test

__all__ = ["bellringer_dsn", "bellringer_server", "bellringer_test"]
