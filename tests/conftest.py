"""A new migrated database for every test that requests one, on the server of `bellringer.testing`."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from tests.support.engine_harness import harness  # noqa: F401 - a fixture
from tests.support.pooled_server import POOLER_VARIABLE, TOLERATED, PooledTestServer, documented_settings, pooled
from tests.support.previous_release import previous_release  # noqa: F401 - a fixture
from tests.support.real_servers import etcd_server, kafka_server, redis_server  # noqa: F401 - fixtures
from tests.support.stock_server import find_programs, serve_stock

from bellringer import telemetry
from bellringer.errors import BellringerError, ConfigError
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenant_scope import open_tenants
from bellringer.testing.postgres import TestServer, serve

settings.register_profile("shared machine", deadline=None)  # another process may take the core at any moment
settings.load_profile("shared machine")

# Background jobs of a shell ignore SIGINT, and their children inherit that; tests interrupt processes by SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Rough seconds per test, by the first folder that matches. Tests in these folders mostly wait: for leases that
# expire, servers that start, pages that load.
WAITING = {
    "chaos": 45.0,
    "cluster": 12.0,
    "browser": 3.0,
    "contracts/backends": 2.0,
    "contracts/docs": 10.0,
    "integration/backends": 2.0,
    "integration/harness": 5.0,
}
COMPUTING = {"unit": 0.0, "integration/cli": 1.0, "integration/simulate": 1.0, "integration/testing": 0.5, "": 0.25}
PGBOUNCER_FOLDER = ".services/pgbouncer"  # its programs are got once for a clone
# Seconds of the files that take longest.
TESTS = Path(__file__).parent
LONGEST = {
    "contracts/docs/test_tutorials.py": 260,
    "cluster/test_upgrade.py": 110,
    "cluster/test_cluster_up.py": 90,
    "contracts/backends/test_broker.py": 90,
    "cluster/test_etcd_wipe.py": 85,
    "browser/test_pages.py": 80,
    "cluster/test_kafka_faults.py": 70,
    "cluster/test_dev.py": 70,
    "contracts/api/test_schemathesis.py": 70,
    "cluster/test_servers.py": 60,
    "cluster/test_worker_processes.py": 60,
    "integration/backends/test_redis_time_index.py": 60,
    "properties/test_random_histories.py": 60,
    "integration/worker/test_bad_handlers.py": 45,
    "integration/backends/test_kafka.py": 55,
    "unit/schedule/test_cron_against_minute_walk.py": 50,
    "integration/harness/test_drain_bench.py": 45,
    "cluster/test_workflow_faults.py": 45,
    "cluster/test_scheduler_faults.py": 40,
    "cluster/test_one_shot_faults.py": 40,
    "browser/test_workflows.py": 40,
    "integration/store/test_query_plans_workflows.py": 40,
    "chaos/test_chaos.py": 90,
    "cluster/test_leader.py": 35,
    "cluster/test_redis_faults.py": 30,
    "properties/test_random_workflows.py": 30,
    "cluster/test_worker_faults.py": 25,
    "integration/backends/test_embedded_postgres.py": 25,
    "contracts/backends/test_leases.py": 25,
    "contracts/docs/test_documented_blocks.py": 70,
    "cluster/test_metrics.py": 25,
    "contracts/deploy/test_image.py": 25,
    "cluster/test_systemd.py": 20,
    "cluster/test_regions.py": 20,
    "cluster/test_tiers.py": 20,
    "contracts/backends/test_cache.py": 10,
}


# Files whose tests also run on the distribution's PostgreSQL: another version, default settings, JIT, and a role that
# owns its databases and nothing else.
ON_BOTH_SERVERS = {
    "cluster/test_worker_faults.py",
    "integration/api/test_job_lists.py",
    "integration/api/test_overview.py",
    "integration/api/test_run_lists.py",
    "integration/cli/test_database.py",
    "integration/doctor/test_doctor.py",
    "integration/engine/test_audit_seal.py",
    "integration/engine/test_backfill.py",
    "integration/engine/test_claim.py",
    "integration/engine/test_control.py",
    "integration/engine/test_misfire.py",
    "integration/engine/test_quotas.py",
    "integration/engine/test_register.py",
    "integration/engine/test_send.py",
    "integration/engine/test_settle.py",
    "integration/engine/test_tick.py",
    "integration/engine/test_tick_concurrency.py",
    "integration/store/test_audit.py",
    "integration/store/test_lookups_by_key.py",
    "integration/store/test_migrate.py",
    "integration/store/test_query_plans.py",
    "integration/store/test_tenant_isolation.py",
    "integration/workflow/test_workflows.py",
}


# Tests of what only a session of its own has: kept plans, cancels by backend id, held connections, migrations.
NEEDS_SESSION = (
    "integration/store/test_dead_connections.py",
    "integration/store/test_lookups_by_key.py",
    "integration/store/test_migrate.py",
    "integration/store/test_migration_plan.py",
    "integration/store/test_previous_release.py",
    "integration/store/test_query_plans",
    "integration/store/test_sql_functions.py",
)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out NEEDS_SESSION if the tests run through a pooler."""
    if not os.environ.get(POOLER_VARIABLE) or not collection_path.is_file():
        return None
    return collection_path.relative_to(TESTS).as_posix().startswith(NEEDS_SESSION) or None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stock",
        action="store_true",
        help="run only on the distribution's PostgreSQL, with its default settings, as a role without privileges",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.definition.path.relative_to(TESTS).as_posix()
    if "bellringer_server" in metafunc.fixturenames and name in ON_BOTH_SERVERS:
        servers = ["stock"] if metafunc.config.getoption("--stock") else ["embedded", "stock"]
        metafunc.parametrize("bellringer_server", servers, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)  # after pytest's own order by session fixtures
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files as if one process ran all files that wait and another all files that compute, longest first.

    xdist hands files to its processes in this order. So the cores have work while tests wait, and no process is left
    with a long file at the end.
    """
    seconds = {path: _estimate_seconds(path, tests) for path, tests in Counter(item.path for item in items).items()}
    begins: dict[Path, float] = {}
    for waits in (True, False):
        files = [path for path in seconds if (_folder(path, WAITING) is not None) is waits]
        files.sort(key=lambda path: -seconds[path])
        begins |= zip(files, accumulate((seconds[path] for path in files), initial=0), strict=False)
    items.sort(key=lambda item: (begins[item.path], item.path))


def _estimate_seconds(path: Path, tests: int) -> float:
    name = path.relative_to(TESTS).as_posix()
    folder = _folder(path, WAITING)
    per_test = WAITING[folder] if folder is not None else COMPUTING[_folder(path, COMPUTING) or ""]
    return LONGEST.get(name, tests * per_test)


def _folder(path: Path, folders: Iterable[str]) -> str | None:
    name = path.relative_to(TESTS).as_posix()
    return next((folder for folder in folders if name.startswith(folder)), None)


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Commands that a test runs in this process choose a log level; later tests must not inherit it."""
    before, level = structlog.get_config(), telemetry._settings["level"]
    yield
    structlog.configure(**before)
    telemetry._settings["level"] = level


@pytest.fixture(scope="session")
def stock_server() -> Iterator[TestServer]:
    """The distribution's PostgreSQL. Without one, tests are skipped, or fail if CI=true."""
    try:
        programs = find_programs()
    except ConfigError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO STOCK POSTGRESQL FOR THIS TEST: {error}")
    with serve_stock(programs) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[TestServer]:
    """The embedded server, behind PgBouncer if BELLRINGER_TEST_POOLER is set."""
    with serve(in_memory=True) as server:
        if not os.environ.get(POOLER_VARIABLE):
            yield server
            return
        folder, downloads = tmp_path_factory.mktemp("pgbouncer"), pytestconfig.rootpath / PGBOUNCER_FOLDER
        with pooled(server, folder, downloads, TOLERATED) as through:
            yield through


@pytest.fixture(scope="session")
def pooled_server(
    embedded_server: TestServer, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[PooledTestServer]:
    """The embedded server behind a PgBouncer with the settings of docs/database.md. Without one, tests are skipped,
    or fail if CI=true.
    """
    if isinstance(embedded_server, PooledTestServer):
        yield embedded_server
        return
    folder, downloads = tmp_path_factory.mktemp("pgbouncer"), pytestconfig.rootpath / PGBOUNCER_FOLDER
    try:
        with pooled(embedded_server, folder, downloads, documented_settings()) as through:
            yield through
    except BellringerError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO PGBOUNCER FOR THIS TEST: {error}")


@pytest.fixture(scope="session")
def bellringer_server(request: pytest.FixtureRequest) -> TestServer:
    """The embedded server, or the distribution's for `--stock` and for the second run of ON_BOTH_SERVERS."""
    default = "stock" if request.config.getoption("--stock") else "embedded"
    server: TestServer = request.getfixturevalue(f"{getattr(request, 'param', default)}_server")
    return server


@pytest.fixture
async def dsn(bellringer_server: TestServer) -> AsyncIterator[str]:
    """The DSN of a new migrated database."""
    async with bellringer_server.database() as made:
        yield made


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    opened = await Store.open(dsn)
    yield opened
    await opened.close()


@pytest.fixture
async def tenants(dsn: str) -> AsyncIterator[Store]:
    """A store whose connections have the role of tenants, as the API uses it."""
    opened = await open_tenants(dsn)
    yield opened
    await opened.close()


@pytest.fixture
def catalog(store: Store) -> Catalog:
    return Catalog(store)
