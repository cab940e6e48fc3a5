"""The bench of the lifecycle's tests, for workflows."""

from __future__ import annotations

from tests.properties.conftest import lifecycle

bench = lifecycle.bench
