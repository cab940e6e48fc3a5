"""A database of its own, freshly copied, for every test that asks; the server is the one of `bellringer.testing`."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator
from itertools import accumulate
from pathlib import Path

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

# Tests in these mostly wait: for leases that end, servers that start, pages that load. So many seconds each, roughly …
WAITING = {"cluster": 20.0, "console": 3.0, "engines": 2.0, "process": 10.0}
OTHERS = {"unit": 0.0}  # … a quarter of a second elsewhere, but for these …
# … and but for these files.
LONGEST = {
    "cluster/test_cluster_up.py": 90,
    "engines/test_dispatch_contract.py": 90,
    "cluster/test_etcd_wipe.py": 85,
    "console/test_pages.py": 80,
    "cluster/test_kafka_faults.py": 70,
    "process/test_dev.py": 70,
    "api/test_schemathesis.py": 70,
    "engines/test_services.py": 60,
    "engines/test_time_index.py": 60,
    "properties/test_machine.py": 60,
    "engines/test_kafka.py": 55,
    "unit/schedule/test_minute_walk.py": 50,
    "engines/test_dispatch_bench.py": 45,
    "cluster/test_workflow_faults.py": 45,
    "cluster/test_herd.py": 40,
    "console/test_workflows.py": 40,
    "store/test_plans_workflows.py": 40,
    "cluster/test_leader.py": 35,
    "engines/test_redis_faults.py": 30,
    "workflows/test_property.py": 30,
    "cluster/test_workers.py": 25,
    "engines/test_embedded.py": 25,
    "engines/test_leases_contract.py": 25,
    "process/test_figures.py": 25,
    "cluster/test_regions.py": 20,
    "cluster/test_tiers.py": 20,
    "engines/test_cache_contract.py": 10,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As if one process did all that waits and another computed, each its longest file first.

    Files are given to processes in this order. So there is work for the cores while tests wait, and no process is
    left with a long file at the end.
    """
    lengths = {path: _length(path, count) for path, count in Counter(item.path for item in items).items()}
    begins: dict[Path, float] = {}
    for waits in (True, False):
        files = [path for path in lengths if (path.parent.name in WAITING) is waits]
        files.sort(key=lambda path: -lengths[path])
        begins |= zip(files, accumulate((lengths[path] for path in files), initial=0), strict=False)
    items.sort(key=lambda item: (begins[item.path], item.path))


def _length(path: Path, tests: int) -> float:
    name = path.relative_to(Path(__file__).parent)
    return LONGEST.get(str(name), tests * (WAITING | OTHERS).get(name.parts[0], 0.25))


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
