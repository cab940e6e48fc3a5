"""Redis, etcd and Kafka servers, one of each per test process; their data is deleted at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeVar

import pytest
from tools.servers import Etcd, Kafka, Redis, Server

from bellringer.errors import BellringerError

S = TypeVar("S", bound=Server)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    yield from running(Redis(tmp_path_factory.mktemp("redis")))


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Etcd]:
    downloads = pytestconfig.rootpath / ".services" / "etcd"  # got once for a clone
    yield from running(Etcd(tmp_path_factory.mktemp("etcd"), downloads=downloads))


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Kafka]:
    downloads = pytestconfig.rootpath / ".services" / "kafka"  # got once for a clone
    yield from running(Kafka(tmp_path_factory.mktemp("kafka"), downloads=downloads))


def running(server: S) -> Iterator[S]:
    """Start a server and kill it at the end. If it cannot start, tests are skipped, or fail if CI=true."""
    try:
        server.start()
    except BellringerError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO REAL {server.name.upper()} FOR THIS TEST: {error}")
    try:
        yield server
    finally:
        server.kill()
