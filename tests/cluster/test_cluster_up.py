"""`bellringer cluster up` as a person meets it: a whole cluster from one command, and nothing of it left at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tools.servers import Etcd, Kafka, Redis, Server

from bellringer.dev.live_output import Painter
from bellringer.dev.local_cluster import lock_folder

BELLRINGER = Path(sys.executable).with_name("bellringer")
SHARDS = 64
PART = re.compile(r"✓ (\S+) +(\S+) +pid (\d+)")
APP = """
from bellringer import App

app = App()

@app.task(name="tick")
def tick() -> int:
    return 17
"""


class Up:
    """One folder, and the clusters that run in it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.said = folder / "said.log"

    def start(self, *arguments: str) -> None:
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [BELLRINGER, "cluster", "up", "--app", "app.py", "--port", "0", *arguments],
                cwd=self.folder,
                env=environment(),
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        process = self.process
        until(lambda: self.has_said("stop it") or process.poll() is not None, 90, "it is up")
        assert process.poll() is None, self.text()

    def text(self) -> str:
        return self.said.read_text()

    def has_said(self, words: str) -> bool:
        return words in self.text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def parts(self) -> dict[str, tuple[str, int]]:
        """Address and process of each, as it was said last."""
        return {name: (where, int(pid)) for name, where, pid in PART.findall(self.text())}

    def kept(self) -> dict[str, int]:
        """Processes as the folder remembers them, now."""
        kept = json.loads((self.folder / ".cluster" / "dev.json").read_text())
        return {part["name"]: part["pid"] for part in kept["parts"]}

    def ask(self, node: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.parts()[node][0]}/api/v1{path}", data, headers)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.loads(answer.read())

    def succeeded(self, node: str, job: str = "often") -> int:
        runs = self.ask(node, f"/jobs/{job}/runs?limit=200")["items"]
        return sum(run["state"] == "succeeded" for run in runs)

    def holders(self, node: str) -> dict[str, int]:
        """How many shards each node holds, and when it did, as one of them tells."""
        leases = self.ask(node, "/cluster")["leases"]
        names = [lease["node"] for lease in leases if lease["holder"]]
        return {name: names.count(name) for name in set(names)}

    def unread(self, node: str) -> int | None:
        pools = self.ask(node, "/cluster")["lag"]["pools"]
        return next((pool["unread"] for pool in pools if pool["pool"] == "short"), None)

    def metric(self, node: str, name: str) -> float:
        with urllib.request.urlopen(f"{self.parts()[node][0]}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BELLRINGER, *arguments],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def stop(self, number: signal.Signals) -> int:
        assert self.process is not None
        os.kill(self.pid, number)
        return self.process.wait(60)

    def left_behind(self) -> list[str]:
        """What still works in the folder, or was started for it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                here = Path(os.readlink(entry / "cwd")).is_relative_to(self.folder)
            except OSError:
                continue
            if here or str(self.folder) in command:
                found.append(command)
        return found


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("BELLRINGER_")}


def until(is_so: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for it. A server that comes or goes may refuse or cut off a request, but not answer with a failure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if answer := is_so():
                return answer
        except urllib.error.HTTPError:
            raise
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@pytest.fixture
def up() -> Iterator[Up]:
    folder = Path(tempfile.mkdtemp(prefix="bellringer cluster ")).resolve()  # with spaces, as people have them
    (folder / "app.py").write_text(APP)
    made = Up(folder)
    yield made
    if made.process is not None and made.process.poll() is None:
        os.kill(made.pid, signal.SIGKILL)
        made.process.wait()
    until(lambda: not made.left_behind(), 30, "everything of the folder has ended")
    shutil.rmtree(folder, ignore_errors=True)


OFTEN = {"name": "often", "task": "tick", "schedule": {"every": "1s"}}


@pytest.mark.cluster
def test_a_node_is_killed_and_the_other_goes_on_firing(up: Up) -> None:
    up.start("--nodes", "2", "--workers", "2", "--no-restart")
    parts = up.parts()
    assert set(parts) == {"node-1", "node-2", "worker-1", "worker-2"}
    assert up.ask("node-1", "/jobs", OFTEN)["name"] == "often"
    until(lambda: up.succeeded("node-1"), 30, "the job has run")
    until(lambda: sum(up.holders("node-2").values()) == SHARDS, 30, "both nodes hold all shards")

    second = up.cli("cluster", "up", "--port", "0")
    assert (second.returncode, f"runs in ./.cluster already (pid {up.pid})" in second.stderr) == (5, True), second
    assert set(PART.findall(second.stdout)) == {(n, where, str(pid)) for n, (where, pid) in parts.items()}

    os.kill(parts["node-1"][1], signal.SIGKILL)
    until(lambda: up.has_said("node-1 was ended by SIGKILL"), 10, "its end is told")
    until(lambda: up.holders("node-2") == {"node-2": SHARDS}, 40, "the other node has all shards")
    before = up.succeeded("node-2")
    until(lambda: up.succeeded("node-2") > before + 2, 40, "firing goes on")
    with pytest.raises(urllib.error.URLError, match="refused"):
        up.ask("node-1", "/jobs")

    def told() -> tuple[set[str], set[str]]:
        found = json.loads(up.cli("cluster", "status", "--url", parts["node-2"][0], "-o", "json").stdout)
        return {node["name"] for node in found["nodes"]}, {lease["node"] for lease in found["leases"]}

    # On a busy machine a lease may lapse for a moment, and is taken again.
    until(lambda: told() == ({"node-1", "node-2"}, {"node-2"}), 40, "the status tells of both, and of who holds all")
    proof = up.cli("verify")  # which finds the database by the folder
    assert proof.returncode == 0, proof

    assert up.stop(signal.SIGINT) == 0, up.text()
    assert up.left_behind() == []
    assert [pid for _, pid in parts.values() if Path(f"/proc/{pid}").exists()] == []
    assert not (up.folder / ".cluster").exists()


@pytest.mark.cluster
def test_what_dies_comes_back_and_the_data_is_found_again(up: Up) -> None:
    up.start("--nodes", "1", "--workers", "1", "--keep")
    up.ask("node-1", "/jobs", OFTEN)
    until(lambda: up.succeeded("node-1"), 30, "the job has run")
    old = up.kept()
    for name, pid in old.items():
        os.kill(pid, signal.SIGKILL)
        until(partial(up.has_said, f"{name} was ended by SIGKILL; it starts again"), 10, "it is missed")
    until(lambda: all(up.kept().get(n, pid) != pid for n, pid in old.items()), 30, "both are started again")
    before = until(lambda: up.succeeded("node-1"), 40, "the node is back")
    until(lambda: up.succeeded("node-1") > before, 60, "so is the worker")
    assert up.stop(signal.SIGTERM) == 0, up.text()
    assert up.left_behind() == []

    up.start("--nodes", "1", "--workers", "1")
    before = up.succeeded("node-1")
    assert before > 0, "the data was kept"
    until(lambda: up.succeeded("node-1") > before, 40, "and it goes on")
    assert up.process is not None
    up.process.kill()  # and nobody else: its children notice
    up.process.wait()
    until(lambda: not up.left_behind(), 30, "nothing outlives it")
    assert (up.folder / ".cluster" / "postgres").exists(), "what was there before is never removed"


@pytest.fixture
def servers(up: Up, kafka_server: Kafka, etcd_server: Etcd, redis_server: Redis) -> list[Server]:
    """Servers in the `.services` folder of the test, as `make services` would start them there."""
    servers: list[Server] = [kafka_server, etcd_server, redis_server]
    (up.folder / ".services").mkdir()
    for server in servers:
        (up.folder / ".services" / server.name).symlink_to(server.folder)
    return servers


@pytest.mark.cluster
def test_a_cluster_uses_the_servers_of_all_engines_and_goes_on_after_one_restarts(
    up: Up, servers: list[Server], etcd_server: Etcd
) -> None:
    up.start("--nodes", "2", "--workers", "1", "--engines", "redis,kafka,etcd")
    up.parts()
    for server in servers:
        assert re.search(rf"✓ {server.name} +{re.escape(server.address)}", up.text())
    up.ask("node-1", "/jobs", OFTEN)
    until(lambda: up.succeeded("node-2"), 60, "the job has run")
    until(lambda: sum(up.holders("node-1").values()) == SHARDS, 60, "all shards are held")
    assert keys_of(etcd_server.address) >= SHARDS
    assert up.metric("node-1", "bellringer_dispatch_sent_total") > 0
    ended = next(run for run in up.ask("node-1", "/jobs/often/runs")["items"] if run["state"] == "succeeded")
    for node in ("node-1", "node-2"):
        assert up.ask(node, f"/runs/{ended['run_id']}")["state"] == "succeeded"
    assert up.metric("node-1", 'bellringer_cache_reads_total{kind="run",source="redis"}') > 0, "what one node read"

    etcd_server.kill()
    etcd_server.start()
    until(lambda: up.unread("node-2") is not None, 30, "the broker tells what is unread")
    before = up.succeeded("node-2")
    until(lambda: up.succeeded("node-2") > before, 60, "firing goes on")
    assert up.cli("verify").returncode == 0
    assert up.stop(signal.SIGINT) == 0, up.text()
    assert up.left_behind() == []
    assert not (up.folder / ".cluster").exists()


def keys_of(address: str) -> int:
    """How many keys an etcd has."""
    every = json.dumps({"key": "AA==", "range_end": "AA==", "count_only": True}).encode()
    url = f"{address.replace('etcd:', 'http:')}/v3/kv/range"
    with urllib.request.urlopen(urllib.request.Request(url, every), timeout=10) as answer:
        return int(json.loads(answer.read()).get("count", 0))


@pytest.mark.cluster
def test_an_app_that_does_not_start_is_reported_with_its_log(up: Up) -> None:
    (up.folder / "app.py").write_text("import nonsense_that_is_not_there\n")
    failed = up.cli("cluster", "up", "--app", "app.py", "--port", "0", "--nodes", "1", "--workers", "2")
    assert failed.returncode == 1
    assert "worker-1   │ error: importing 'app.py' failed: ModuleNotFoundError" in failed.stdout
    assert "worker-1 did not start, see ./.cluster/logs/worker-1.log" in failed.stdout
    assert "importing 'app.py' failed" in (up.folder / ".cluster/logs/worker-1.log").read_text()
    assert up.left_behind() == []


def test_what_was_in_a_folder_before_is_known(tmp_path: Path) -> None:
    quiet = Painter(sys.stdout)
    with lock_folder(tmp_path / "new", quiet) as fresh:
        assert fresh
    with lock_folder(tmp_path / "new", quiet) as fresh:
        assert fresh, "a start that came to nothing has left nothing"
    for mine, words in (("thesis.tex", "what is time?"), (".gitignore", "*.aux")):
        folder = tmp_path / f"with {mine}"
        folder.mkdir()
        (folder / mine).write_text(words)
        with lock_folder(folder, quiet) as fresh:
            assert not fresh


def test_an_engine_without_a_server_is_refused_with_the_setting_that_names_one(up: Up) -> None:
    refused = up.cli("cluster", "up", "--engines", "etcd")
    assert refused.returncode != 0
    assert "no etcd server is configured or running" in refused.stderr
    assert "BELLRINGER_COORDINATION" in refused.stderr
    assert "make services" in refused.stderr
    assert not (up.folder / ".cluster").exists()


def test_engines_that_no_one_knows_are_refused(up: Up) -> None:
    refused = up.cli("cluster", "up", "--engines", "kafka,zookeeper")
    assert refused.returncode == 2
    assert "there is no engine 'zookeeper'" in refused.stderr
    assert not (up.folder / ".cluster").exists()
