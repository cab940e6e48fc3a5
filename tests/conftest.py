"""A database of its own, freshly copied, for every test that asks; the server is the one of `bellringer.testing`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import open_tenants
from bellringer.testing.server import TestServer

settings.register_profile("shared machine", deadline=None)  # another process may take the core at any moment
settings.load_profile("shared machine")


@pytest.fixture
async def dsn(bellringer_server: TestServer) -> AsyncIterator[str]:
    """A migrated database of this test's own."""
    async with bellringer_server.database() as made:
        yield made


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    opened = await Store.open(dsn)
    yield opened
    await opened.close()


@pytest.fixture
async def tenants(dsn: str) -> AsyncIterator[Store]:
    """What the API reaches the database by for its callers."""
    opened = await open_tenants(dsn)
    yield opened
    await opened.close()


@pytest.fixture
def names(store: Store) -> Names:
    return Names(store)
