"""Child processes are kept apart: from each other's results, from other tenants, and from the server's secrets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from bellringer import config
from bellringer.core.runs import Ending, Outcome
from bellringer.worker.lanes import processes
from bellringer.worker.lanes.processes import IsolationSettings

if TYPE_CHECKING:
    from tests.integration.worker.conftest import ExecutorHarness


@pytest.fixture
def executor_harness(isolated: Callable[..., ExecutorHarness]) -> ExecutorHarness:
    return isolated()


async def of_tenant(executor_harness: ExecutorHarness, tenant_id: int, task: str, *args: Any) -> Ending:
    return await executor_harness.executor.execute(
        msgspec.structs.replace(executor_harness.work(task, *args), tenant_id=tenant_id)
    )


def processes_of(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("task", ["fork", "fork_async", "fork_in_c"])
async def test_a_handler_that_forks_gets_its_own_result_and_so_does_the_next(
    executor_harness: ExecutorHarness, task: str
) -> None:
    for _ in range(3):
        ending = await executor_harness.run(task)
        assert ending.outcome is Outcome.OK
        assert ending.result > 0  # of the process that the worker has started, and not of its copy
        ending = await executor_harness.run("pid")
        assert ending.outcome is Outcome.OK
    assert isinstance(ending.result, int)
    await executor_harness.until(lambda: processes_of(ending.result) == [ending.result])


async def test_a_message_of_another_attempt_fails_the_attempt_and_ends_the_child(
    executor_harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "KILL_AFTER_SECONDS", 0.2)
    before = (await executor_harness.run("pid")).result
    error = executor_harness.error(await executor_harness.run("forge", "not the token", 7))
    assert error["type"] == "ProcessCrashed"
    assert error["message"] == "the process sent a message that does not belong to this attempt"
    after = await executor_harness.run("pid")
    assert (after.outcome, after.result != before) == (Outcome.OK, True)


async def test_what_a_thread_of_an_earlier_run_says_harms_no_later_one(executor_harness: ExecutorHarness) -> None:
    assert (await executor_harness.run("leave_a_thread")).result == "left"
    endings = [await executor_harness.run("pid") for _ in range(20)]
    assert len({ending.result for ending in endings}) == 1
    assert all(line.message == "still here" for line in executor_harness.lines)


async def test_children_serve_one_tenant_only(isolated: Callable[..., ExecutorHarness]) -> None:
    executor_harness = isolated(processes=2)
    first = [(await of_tenant(executor_harness, 1, "pid")).result for _ in range(2)]
    second = [(await of_tenant(executor_harness, 2, "pid")).result for _ in range(2)]
    third = (await of_tenant(executor_harness, 3, "pid")).result  # there is room for two, so the first has to go
    assert len(set(first)) == len(set(second)) == 1
    assert len({first[0], second[0], third}) == 3
    assert (await of_tenant(executor_harness, 2, "pid")).result == second[0]
    await executor_harness.until(lambda: processes_of(first[0]) == [])


async def test_children_may_be_shared_where_a_setting_allows_it(isolated: Callable[..., ExecutorHarness]) -> None:
    executor_harness = isolated(isolation=IsolationSettings(shared=True))
    assert (await of_tenant(executor_harness, 1, "pid")).result == (await of_tenant(executor_harness, 2, "pid")).result


NAMES = [
    "BELLRINGER_ROOT_KEY",
    "BELLRINGER_SECRET_KEYS",
    "BELLRINGER_JWT_SECRET",
    "BELLRINGER_KEY",
    "BELLRINGER_CACHE",
    "BELLRINGER_SMTP_URL",
    "BELLRINGER_SMTP_URL_FILE",
    "BELLRINGER_HEARTBEAT_URL",
    "BELLRINGER_ARCHIVE",
    "BELLRINGER_DSN",
    "PGPASSWORD",
    "HOME",
]


@pytest.mark.parametrize("with_dsn", [True, False])
async def test_no_secret_of_a_server_reaches_a_handler(
    isolated: Callable[..., ExecutorHarness], monkeypatch: pytest.MonkeyPatch, with_dsn: bool
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "x")
    executor_harness = isolated(isolation=IsolationSettings(with_dsn=with_dsn))
    database = ["x" if with_dsn else None] * 2
    assert (await executor_harness.run("variables", NAMES)).result == [None] * 9 + [*database, "x"]
    assert (await executor_harness.run("sockets")).result == []


def test_files_of_secrets_are_not_named_to_children() -> None:
    given = {"BELLRINGER_ROOT_KEY_FILE": "x", "BELLRINGER_DSN_FILE": "x", "BELLRINGER_LOG_FILE": "x", "HOME": "x"}
    assert set(IsolationSettings(with_dsn=False).environment(given)) == {"BELLRINGER_LOG_FILE", "HOME"}
    assert "BELLRINGER_DSN_FILE" in IsolationSettings(with_dsn=True).environment(given)


# Settings that isolated handlers do not get. Before you add a setting here or to CHILD_SETTINGS: may a handler of any
# tenant read it? Passwords can be part of an address.
WITHHELD_SETTINGS = {
    *("archive", "auth", "block_limit", "cache", "connections_per_address", "coordination", "direct_dsn", "dispatch"),
    *("docs_site", "egress_allow", "grace", "host", "http_slots", "idempotency_keys", "isolated_dsn"),
    *("isolated_memory", "isolated_sharing", "jwt_audience", "jwt_issuer", "jwt_jwks", "jwt_role_claim", "jwt_secret"),
    *("jwt_tenant_claim", "key", "lead", "lease", "metrics_host", "metrics_port", "misfire_grace", "pool_size", "port"),
    *("read_dsn", "root_key", "secret_keys", "secret_sources", "smtp_from", "smtp_url", "heartbeat_url"),
    *("heartbeat_interval", "retention", "dead_retention", "audit_retention", "job_retention", "time_index"),
    *("trusted_proxies", "unknown_tasks"),
}


def test_every_setting_is_either_for_children_or_withheld() -> None:
    passed = processes.CHILD_SETTINGS | processes.SENDING_SETTINGS
    assert passed & WITHHELD_SETTINGS == set()
    assert set(config._FIELDS) == passed | WITHHELD_SETTINGS
    assert config._SECRETS - {"payload_keys"} <= WITHHELD_SETTINGS  # a child that sends runs encrypts their arguments
    assert set(config._BACKENDS) <= WITHHELD_SETTINGS


def test_children_get_only_variables_of_settings_that_are_for_them() -> None:
    given = {f"BELLRINGER_{name.upper()}{end}": "x" for name in config._FIELDS for end in ("", "_FILE")}
    given |= {"BELLRINGER_OF_A_NEWER_RELEASE": "x", "BELLRINGER_TEST_DSN": "x", "BELLRINGER_APP_VERSION": "x"}
    kept = {f"BELLRINGER_{name.upper()}{end}" for name in processes.CHILD_SETTINGS for end in ("", "_FILE")}
    kept.add("BELLRINGER_APP_VERSION")
    assert IsolationSettings(with_dsn=False).environment(given).keys() == kept
    sending = {f"BELLRINGER_{name.upper()}{end}" for name in processes.SENDING_SETTINGS for end in ("", "_FILE")}
    assert IsolationSettings(with_dsn=True).environment(given).keys() == kept | sending


def test_secrets_of_runs_are_kept_from_children() -> None:
    given = {
        "BELLRINGER_PAYLOAD_KEYS": "k",
        "BELLRINGER_PAYLOAD_KEYS_FILE": "f",
        "BELLRINGER_SECRET_X": "x",
        "MY_Y": "y",
    }
    assert IsolationSettings(with_dsn=False, secret_prefixes=("MY_",)).environment(given) == {}
    assert IsolationSettings(with_dsn=True).environment(given).keys() == given.keys() - {"BELLRINGER_SECRET_X"}


async def test_a_handler_that_takes_too_much_memory_fails_alone(isolated: Callable[..., ExecutorHarness]) -> None:
    executor_harness = isolated(isolation=IsolationSettings(memory=512 << 20))
    before = (await executor_harness.run("pid")).result
    assert (await executor_harness.run("eat", 50)).result == 50 << 20
    error = executor_harness.error(await executor_harness.run("eat", 1000))
    assert error["type"] == "MemoryError"
    after = await executor_harness.run("pid")
    assert (after.outcome, after.result != before) == (Outcome.OK, True)
    assert os.getpid() not in (before, after.result)
