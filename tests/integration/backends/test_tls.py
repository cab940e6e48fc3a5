"""TLS and users of PostgreSQL, Kafka, etcd and Redis, with real servers and certificates of a test authority."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from tests.support.real_servers import running
from tests.support.stock_server import SETTINGS as STOCK_SETTINGS
from tests.support.stock_server import find_programs
from tools.servers import Etcd, Kafka, ports_and_pids
from tools.servers.certificates import Authority, CertificateFiles
from tools.servers.redis import RedisTls

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.backends.etcd import EtcdLeases
from bellringer.backends.etcd_address import EtcdAddress
from bellringer.backends.kafka.backend import KafkaBackend
from bellringer.backends.redis.cache import RedisCache
from bellringer.clock import SystemClock
from bellringer.core.broker import BrokerUnavailable
from bellringer.errors import BellringerError, ConfigError, Unavailable
from bellringer.store.connection_pool import Store, connect
from bellringer.store.leases import PostgresLeases
from bellringer.testing.postgres import find_memory_folder

PASSWORD = "p4ss-word"
HBA = """\
local all all trust
hostssl all certified 127.0.0.1/32 cert
hostssl all all 127.0.0.1/32 scram-sha-256
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> CertificateFiles:
    return authority.issue("server")


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority(tmp_path_factory.mktemp("other"), "another-authority").path


# PostgreSQL


@pytest.fixture(scope="module")
def postgres(server_files: CertificateFiles) -> Iterator[tuple[EmbeddedPostgres, str]]:
    """The distribution's server, which has OpenSSL; its address over TCP without a user."""
    try:
        programs = find_programs()
    except ConfigError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO STOCK POSTGRESQL FOR THIS TEST: {error}")
    folder = Path(tempfile.mkdtemp(prefix="bellringer-tls-", dir=find_memory_folder()))
    (port,) = ports_and_pids.free_ports(1)
    settings = {**STOCK_SETTINGS, "listen_addresses": "127.0.0.1", "port": str(port)}
    server = EmbeddedPostgres(folder, settings=settings, binaries=programs, defaults={})
    try:
        started = server.start()
        (started.data / "pg_hba.conf").write_text(HBA)
        asyncio.run(turn_on_tls(started.dsn, started.data, server_files))
        yield server, f"127.0.0.1:{port}/bellringer"
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def turn_on_tls(dsn: str, data: Path, files: CertificateFiles) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for name, value in (("ssl_ca_file", "ca.crt"), ("ssl", "on")):
            await connection.execute(f"alter system set {name} = '{value}'")
        await connection.execute(f"create role app login password '{PASSWORD}'; create role certified login")
    finally:
        await connection.close()
    await use_certificate(dsn, data, files)


def install_certificate(data: Path, files: CertificateFiles) -> None:
    for source, name in ((files.cert, "server.crt"), (files.key, "server.key"), (files.ca, "ca.crt")):
        (data / name).write_bytes(source.read_bytes())
        (data / name).chmod(0o600)
        os.chown(data / name, data.stat().st_uid, data.stat().st_gid)


async def use_certificate(dsn: str, data: Path, files: CertificateFiles) -> None:
    install_certificate(data, files)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select pg_reload_conf()")
    finally:
        await connection.close()


async def test_postgresql_with_a_verified_certificate(
    postgres: tuple[EmbeddedPostgres, str], authority: Authority
) -> None:
    address = f"postgresql://app:{PASSWORD}@{postgres[1]}?sslmode=verify-full&sslrootcert={authority.path}"
    async with asyncio.timeout(10):  # the server reads its configuration again in a moment
        while True:
            try:
                store = await Store.open(address, size=2)
                break
            except BellringerError:
                await asyncio.sleep(0.1)
    try:
        assert await store.pool.fetchval("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
    finally:
        await store.close()


async def test_postgresql_with_a_client_certificate(
    postgres: tuple[EmbeddedPostgres, str], authority: Authority
) -> None:
    files = authority.issue("certified")
    connection = await connect(
        f"postgresql://certified@{postgres[1]}?sslmode=verify-full&sslrootcert={authority.path}"
        f"&sslcert={files.cert}&sslkey={files.key}"
    )
    assert await connection.fetchval("select current_user::text") == "certified"
    await connection.close()


async def test_an_expired_certificate_is_named(
    postgres: tuple[EmbeddedPostgres, str], authority: Authority, server_files: CertificateFiles
) -> None:
    server, place = postgres
    running = server.start()
    address = f"postgresql://app:{PASSWORD}@{place}?sslmode=verify-full&sslrootcert={authority.path}"
    expired = authority.issue("expired", ends_in=timedelta(hours=-1))
    try:
        await use_certificate(running.dsn, running.data, expired)
        async with asyncio.timeout(10):  # the server reads its configuration again in a moment
            while True:
                try:
                    await (await connect(address)).close()
                except ConfigError as error:
                    assert "certificate has expired" in str(error)  # noqa: PT017
                    break
                await asyncio.sleep(0.1)
    finally:
        await use_certificate(running.dsn, running.data, server_files)


async def test_postgresql_refusals_name_server_and_setting(
    postgres: tuple[EmbeddedPostgres, str], authority: Authority, other_ca: Path
) -> None:
    where = postgres[1].partition("/")[0]
    cases = {
        f"app:{PASSWORD}@{{}}?sslmode=verify-full&sslrootcert={other_ca}": "certificate was not accepted.*sslrootcert",
        f"app:wrong@{{}}?sslmode=verify-full&sslrootcert={authority.path}": "password authentication failed.*password",
        f"app:{PASSWORD}@{{}}?sslmode=disable": "require TLS: add sslmode=verify-full",
        "certified@{}?sslmode=require": "refuses the connection",
    }
    for form, said in cases.items():
        with pytest.raises(ConfigError, match=said) as raised:
            await connect(f"postgresql://{form.format(postgres[1])}")
        assert where in str(raised.value)
        assert PASSWORD not in str(raised.value)


# etcd


@pytest.fixture(scope="module")
def etcd(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, server_files: CertificateFiles
) -> Iterator[Etcd]:
    """A server with TLS, the user `app`, and tokens that last two seconds."""
    made = Etcd(
        tmp_path_factory.mktemp("etcd-tls"),
        downloads=pytestconfig.rootpath / ".services" / "etcd",
        tls=server_files,
        extra=("--auth-token-ttl=2",),
    )
    for server in running(made):
        endpoint = f"--endpoints=https://127.0.0.1:{server.port}"
        for words in (
            ("user", "add", f"root:{PASSWORD}"),
            ("user", "grant-role", "root", "root"),
            ("role", "add", "bellringer"),
            ("role", "grant-permission", "bellringer", "--prefix=true", "readwrite", "bellringer/"),
            ("user", "add", f"app:{PASSWORD}"),
            ("user", "grant-role", "app", "bellringer"),
            ("auth", "enable"),
        ):
            subprocess.run(
                [server.program.with_name("etcdctl"), endpoint, f"--cacert={server_files.ca}", *words],
                env={**os.environ, "ETCDCTL_API": "3"},
                check=True,
                capture_output=True,
            )
        yield server


def etcd_url(etcd: Etcd, ca: Path, *, user: str = f"app:{PASSWORD}@") -> str:
    return f"etcds://{user}127.0.0.1:{etcd.port}?ca={ca}"


async def test_etcd_with_tls_and_a_user_whose_token_expires(etcd: Etcd, authority: Authority, store: Store) -> None:
    keeper = EtcdLeases(PostgresLeases(store), EtcdAddress.read(etcd_url(etcd, authority.path), "i7"))
    try:
        holder = uuid4()
        tokens = await keeper.acquire(holder, 3)
        assert len(tokens) == 3
        keeper._token = "expired.1"  # what etcd forgets after some minutes
        assert await keeper.renew(holder, tokens) == frozenset(tokens)
        await keeper.release(holder, tokens)
    finally:
        await keeper.close()


async def test_etcd_refusals_name_server_and_setting(
    etcd: Etcd, authority: Authority, other_ca: Path, store: Store
) -> None:
    cases = {
        etcd_url(etcd, other_ca): "TLS certificate that was not accepted.*BELLRINGER_COORDINATION",
        etcd_url(etcd, authority.path, user="app:wrong@"): "did not accept the user 'app'.*BELLRINGER_COORDINATION",
        etcd_url(etcd, authority.path, user=""): "user name is empty.*BELLRINGER_COORDINATION",
    }
    for url, said in cases.items():
        keeper = EtcdLeases(PostgresLeases(store), EtcdAddress.read(url, "i7"))
        with pytest.raises(Unavailable, match=said) as raised:
            await keeper.acquire(uuid4(), 1)
        assert f"127.0.0.1:{etcd.port}" in str(raised.value)
        await keeper.close()


# Redis


@pytest.fixture(scope="module")
def redis(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, server_files: CertificateFiles
) -> Iterator[RedisTls]:
    downloads = pytestconfig.rootpath / ".services" / "redis"
    made = RedisTls(tmp_path_factory.mktemp("redis-tls"), server_files, password=PASSWORD, downloads=downloads)
    yield from running(made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url, _: url, ""),
        (lambda url, _: url.replace(PASSWORD, "wrong"), "invalid username-password pair"),
        (lambda url, other: f"{url.partition('=')[0]}={other}", "certificate verify failed"),
    ],
    ids=["right", "wrong password", "wrong authority"],
)
async def test_redis_with_tls_and_a_user(
    redis: RedisTls, other_ca: Path, capsys: pytest.CaptureFixture[str], change: object, said: str
) -> None:
    assert callable(change)
    cache = RedisCache(change(redis.address, other_ca), b"k" * 32, SystemClock())
    await cache.open()
    try:
        assert (cache._pipeline._connection is not None) == (not said)
    finally:
        await cache.close()
        await asyncio.sleep(0.2)  # a TLS connection says goodbye in the background
    printed = capsys.readouterr()
    shown = printed.out + printed.err
    assert said.lower() in shown.lower()
    assert PASSWORD not in shown
    if said:
        assert f"127.0.0.1:{redis.port}" in shown
        assert "BELLRINGER_CACHE" in shown


# Kafka


@pytest.fixture(scope="module")
def kafka(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, server_files: CertificateFiles
) -> Iterator[Kafka]:
    downloads = pytestconfig.rootpath / ".services" / "kafka"
    yield from running(
        Kafka(tmp_path_factory.mktemp("kafka-tls"), downloads=downloads, tls=server_files, password=PASSWORD)
    )


def kafka_url(kafka: Kafka, ca: Path, password: str = PASSWORD) -> str:
    return (
        f"kafka://127.0.0.1:{kafka.secure_port}/test?partitions=1&security.protocol=sasl_ssl&ssl.ca.location={ca}"
        f"&sasl.mechanism=PLAIN&sasl.username=app&sasl.password={password}"
    )


async def test_kafka_with_tls_and_a_user(kafka: Kafka, authority: Authority, other_ca: Path) -> None:
    backend = KafkaBackend(kafka_url(kafka, authority.path), uuid4().hex)
    broker, topic = backend.broker(), backend.topic("short")
    try:
        await broker.prepare([topic])
        assert await broker.send(topic, [(b"key", b"value")]) == []
    finally:
        await broker.close()
    for url, said in (
        (kafka_url(kafka, other_ca), "(?i)ssl|certificate"),
        (kafka_url(kafka, authority.path, "wrong"), "(?i)authentication failed"),
    ):
        refused = KafkaBackend(url, uuid4().hex).broker()
        with pytest.raises(BrokerUnavailable, match=said) as raised:
            await refused.prepare([topic])
        assert f"127.0.0.1:{kafka.secure_port}" in str(raised.value)
        assert PASSWORD not in str(raised.value)
        await refused.close()
