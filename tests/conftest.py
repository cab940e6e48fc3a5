"""A database of its own, freshly copied, for every test that asks; the server is the one of `bellringer.testing`."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import open_tenants
from bellringer.testing.server import TestServer

settings.register_profile("shared machine", deadline=None)  # another process may take the core at any moment
settings.load_profile("shared machine")

# A shell that starts us in the background lets us ignore Ctrl-C, and so would all that tests start and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW = ("properties", "cluster", "engines", "console", "process", "verify", "cli")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first, so that no process is left with one of them at the end."""
    places = {name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(SLOW)))


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
