"""The API over a real database, as in the integration tests."""

from tests.integration.api.conftest import api, lookups

__all__ = ["api", "lookups"]
