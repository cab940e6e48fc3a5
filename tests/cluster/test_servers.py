"""Real servers in folders: started, found again, frozen, killed and wiped, each asked by a real client."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
import redis
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tools.servers import (
    Etcd,
    Kafka,
    Postgres,
    Redis,
    Server,
    choose,
    down,
    kafka_jars,
    ports_and_pids,
)

from bellringer.dev.local_servers import find_server
from bellringer.errors import ConfigError, InvalidInput, Unavailable

Run = Callable[..., Any]
ALL = (Postgres, Redis, Etcd, Kafka)
LIGHT = (Postgres, Redis, Etcd)

PATHS = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

# Starts a server that is tied to it, says the server's pid, and waits to be killed.
CHILD = """
import signal, sys
from pathlib import Path
from tools.servers import Redis
redis = Redis(Path(sys.argv[1]))
redis.start()
print(redis.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def run(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Run]:
    """Makes servers in this test's folder that are killed at the end, whatever the test does."""
    with ExitStack() as stack:

        def make(kind: type[Server]) -> Server:
            folder, downloads = tmp_path / kind.name, pytestconfig.rootpath / ".services" / kind.name
            server = kind(folder, downloads=downloads) if issubclass(kind, Kafka | Etcd) else kind(folder)
            stack.callback(server.kill)
            return server

        yield make


def keep(server: Server, value: str) -> None:
    """Write a value by a real client of the server."""
    if isinstance(server, Postgres):
        asyncio.run(_execute(server.address, f"create table kept as select '{value}' as value"))
    elif isinstance(server, Redis):
        with redis.Redis.from_url(server.address) as client:
            client.set("kept", value)
    elif isinstance(server, Etcd):
        _etcd(server, "put", key=_base64("kept"), value=_base64(value))
    elif isinstance(server, Kafka):
        admin = AdminClient(_kafka(server))  # by name: it gives up what it was asked when nobody holds it
        admin.create_topics([NewTopic("kept", 1)])["kept"].result(30)
        producer = Producer(_kafka(server) | {"acks": "all"})
        producer.produce("kept", value.encode())
        assert producer.flush(30) == 0


def kept(server: Server) -> str | None:
    """The value that the server has, or none."""
    if isinstance(server, Postgres):
        with suppress(asyncpg.UndefinedTableError):
            return str(asyncio.run(_execute(server.address, "select value from kept")))
    elif isinstance(server, Redis):
        with redis.Redis.from_url(server.address, decode_responses=True) as client:
            value = client.get("kept")
            return None if value is None else str(value)
    elif isinstance(server, Etcd):
        for found in _etcd(server, "range", key=_base64("kept")).get("kvs", []):
            return base64.b64decode(found["value"]).decode()
    elif isinstance(server, Kafka):
        return _last_message(server)
    return None


async def _execute(dsn: str, sql: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def _etcd(server: Etcd, call: str, **body: str) -> Any:
    return httpx2.post(f"http://127.0.0.1:{server.port}/v3/kv/{call}", json=body, timeout=10).raise_for_status().json()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _kafka(server: Kafka) -> dict[str, Any]:
    return {"bootstrap.servers": f"127.0.0.1:{server.port}"}


def _last_message(server: Kafka) -> str:
    consumer = Consumer(_kafka(server) | {"group.id": "reader", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition("kept", 0, 0)])
        message = None
        while message is None or message.error():
            message = consumer.poll(30)
        return (message.value() or b"").decode()
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_a_server_that_was_stopped_or_killed_comes_back_at_its_address_with_its_data(
    run: Run, kind: type[Server]
) -> None:
    server = run(kind)
    address = server.start()
    keep(server, "a value")
    pid = server.pid
    assert server.start() == address
    assert server.pid == pid  # what runs is kept
    server.stop()
    assert not server.lives
    assert server.start() == address
    assert kept(server) == "a value"
    server.kill()
    assert not server.lives
    assert server.start() == address
    assert kept(server) == "a value"


@pytest.mark.parametrize("kind", LIGHT, ids=lambda kind: kind.name)
def test_a_server_that_was_wiped_has_nothing_and_the_same_address(run: Run, kind: type[Server]) -> None:
    server = run(kind)
    address = server.start()
    keep(server, "a value")
    server.wipe()
    assert server.start() == address
    assert kept(server) is None


def test_a_paused_redis_says_nothing_until_it_is_resumed(redis_server: Redis) -> None:
    with redis.Redis.from_url(redis_server.address, socket_timeout=0.3, retry=None) as client:
        assert client.ping()
        redis_server.pause()
        try:
            with pytest.raises(redis.TimeoutError):
                client.ping()
            assert redis_server.lives
        finally:
            redis_server.resume()
    assert redis_server.start() == redis_server.address


def test_a_paused_etcd_says_nothing_until_it_is_resumed(etcd_server: Etcd) -> None:
    etcd_server.pause()
    try:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.get(f"http://127.0.0.1:{etcd_server.port}/health", timeout=0.3)
    finally:
        etcd_server.resume()
    health = httpx2.get(f"http://127.0.0.1:{etcd_server.port}/health", timeout=10).json()
    assert health["health"] == "true"


def test_a_paused_kafka_says_nothing_until_it_is_resumed(kafka_server: Kafka) -> None:
    admin = AdminClient(_kafka(kafka_server))
    assert len(admin.list_topics(timeout=30).brokers) == 1
    kafka_server.pause()
    try:
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=0.5)
    finally:
        kafka_server.resume()
    assert len(admin.list_topics(timeout=30).brokers) == 1


async def test_a_paused_postgres_stops_its_sessions_too(run: Run) -> None:
    server = run(Postgres)
    server.start()
    connection = await asyncpg.connect(server.address)
    try:
        server.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                asyncio.shield(waiting := asyncio.ensure_future(connection.fetchval("select 1"))), 0.3
            )
        server.resume()
        assert await asyncio.wait_for(waiting, 30) == 1
    finally:
        server.resume()
        await connection.close()


def test_a_server_that_is_paused_can_be_stopped(run: Run) -> None:
    server = run(Etcd)
    server.start()
    server.pause()
    server.stop()
    assert not server.lives


@pytest.mark.parametrize("kind", [Redis, Etcd], ids=lambda kind: kind.name)
def test_a_server_whose_port_was_taken_meanwhile_gets_another_one(run: Run, kind: type[Server]) -> None:
    server = run(kind)
    server.start()
    keep(server, "a value")
    server.stop()
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", server.port))
        taker.listen()
        server.start()
        assert server.port != taker.getsockname()[1]
        assert kept(server) == "a value"


def test_a_server_that_cannot_start_says_why(run: Run, tmp_path: Path) -> None:
    server = run(Etcd)
    member = tmp_path / "etcd" / "data" / "member"
    member.parent.mkdir(parents=True)
    member.write_text("not a folder")
    with pytest.raises(Unavailable, match=r"(?s)etcd did not start.*member") as refused:
        server.start()
    assert "etcd.log" in refused.value.hint
    assert not server.lives


def test_a_tied_server_dies_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path], stdout=subprocess.PIPE, text=True, env=PATHS
    ) as child:
        try:
            assert child.stdout
            pid = int(child.stdout.readline())
            born = ports_and_pids.born(pid)
            assert born
        finally:
            child.kill()
    until(lambda: ports_and_pids.born(pid) != born)
    assert not Redis(tmp_path).lives


def test_a_tied_server_cannot_be_started_by_a_thread_that_ends_before_it(run: Run) -> None:
    server, refused = run(Redis), []

    def start() -> None:
        try:
            server.start()
        except RuntimeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert refused == ["a tied redis must be started from the main thread"]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of our business, though a state file has its number."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("born", ["", "1@another-boot"], ids=["unknown", "other"])
def test_a_process_that_only_has_the_number_is_never_signalled(
    tmp_path: Path, stranger: subprocess.Popen[bytes], born: str
) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    left = ports_and_pids.ServerState(
        version="9", address="redis://127.0.0.1:1/0", ports=(1,), pid=stranger.pid, born=born
    )
    for act in ("stop", "kill", "pause", "wipe"):
        ports_and_pids.write(folder, left)
        server = Redis(folder)
        assert not server.lives
        getattr(server, act)()
    ports_and_pids.write(folder, left)
    assert down("redis", tmp_path) is False
    assert stranger.poll() is None
    assert Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("pid", [0, -1])
def test_no_number_means_everyone(pid: int) -> None:
    ports_and_pids.send(pid, "1@boot", signal.SIGKILL)  # would end this test, too
    assert not ports_and_pids.ServerState(version="1", address="", pid=pid).lives


def cli(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tools.servers", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder, env=PATHS, timeout=120)


def test_servers_that_are_brought_up_stay_until_they_are_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only, place, deeper = ("--only", "redis,etcd"), tmp_path / ".services", tmp_path / "deeper" / "down"
    deeper.mkdir(parents=True)
    try:
        brought = cli("up", *only, folder=tmp_path)
        assert brought.returncode == 0, brought.stderr
        monkeypatch.chdir(deeper)
        first, found = ports_and_pids.read(place / "redis"), [find_server(name, None) for name in ("redis", "etcd")]
        assert f"export BELLRINGER_CACHE={find_server('redis', None)}\n" in brought.stdout
        assert f"export BELLRINGER_COORDINATION={find_server('etcd', 'leader')}\n" in brought.stdout
        with pytest.raises(ConfigError, match="no kafka server is configured or running"):
            find_server("kafka", None)
        assert find_server("kafka", "kafka://broker:9092") == "kafka://broker:9092"
        assert cli("up", *only, folder=tmp_path).returncode == 0
        assert first
        assert ports_and_pids.read(place / "redis") == first  # kept
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: not first.lives)
        assert cli("status", *only, folder=tmp_path).returncode == 1
        assert cli("up", *only, folder=tmp_path).returncode == 0
        assert [find_server(name, None) for name in ("redis", "etcd")] == found  # on the same ports
        assert cli("status", *only, folder=tmp_path).returncode == 0
    finally:
        taken = cli("down", folder=tmp_path)
    assert taken.returncode == 0, taken.stderr
    for name in ("redis", "etcd"):
        with pytest.raises(ConfigError):
            find_server(name, None)
    assert [name for name in ("redis", "etcd") if (state := ports_and_pids.read(place / name)) and state.pid] == []


def until(holds: Callable[[], bool]) -> None:
    """Wait for it; the test's own limit ends a wait in vain."""
    pause = threading.Event()
    while not holds():
        pause.wait(0.02)


def test_an_unknown_server_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no server 'memcached'; there are postgres, redis, etcd, kafka"):
        choose(["memcached", "redis"])
    assert choose(["kafka", "redis"]) == ["redis", "kafka"]


def test_without_java_and_maven_kafka_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(ConfigError, match=r"Kafka needs Java 17 or newer and Maven.*apt-get install"):
        Kafka(tmp_path / "kafka").start()


def test_a_build_machine_gets_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer = tmp_path / "apt-get"  # in place of the system's: notes what it is asked, and brings a java
    installer.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n/bin/ln -sf /bin/true {tmp_path}/java\n')
    installer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", "true")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert kafka_jars.java() == str(tmp_path / "java")
    assert "maven" in (tmp_path / "asked").read_text()


def test_a_download_that_fails_says_why_and_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no route to the registry\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"(?s)Kafka 4.* could not be downloaded:.no route to the registry"):
        kafka_jars.get(tmp_path / "kafka")
    assert not (tmp_path / "kafka" / kafka_jars.VERSION).exists()
