"""References to secrets: resolved in all lanes and from all sources, and never stored or shown in the clear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.integration.worker.secret_app import app

from bellringer.clock import SystemClock
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import FINAL_STATES, RunKey, State
from bellringer.egress.secret_box import SecretBox, generate_secret_key, parse_secret_keys
from bellringer.egress.settings import Egress
from bellringer.engine.named_secrets import SecretSpec, delete_secret, put_secret, rotate_keys
from bellringer.engine.send import SendSpec, send
from bellringer.store import named_secrets, runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.runs import RunRow
from bellringer.worker.output.echo import CaptureSettings
from bellringer.worker.service import Worker, WorkerSettings

SECRET = "sk_live_Zw9-pQ7/ä"  # has characters that JSON, repr and URLs write in other ways
TARGET = str(Path(__file__).with_name("secret_app.py"))
KEYS = (generate_secret_key("k1"),)
TABLES = [
    *("jobs", "job_revisions", "runs", "queue", "timers", "attempts", "dead_letters", "logs", "events", "audit"),
    *("idempotency_keys", "named_secrets", "job_outcomes"),
]


async def dump(store: Store) -> str:
    """Returns all rows that runs and jobs leave in the database, as text."""
    found = []
    for table in TABLES:
        if await store.pool.fetchval("select to_regclass('bellringer.' || $1)", table) is not None:
            found += [row[0] for row in await store.pool.fetch(f"select t::text from bellringer.{table} t")]
    return "\n".join(found)


class SecretHarness:
    """Sends runs of `secret_app` and waits for their ends."""

    def __init__(self, store: Store, catalog: Catalog, tenant_id: int) -> None:
        self.store = store
        self.catalog = catalog
        self.tenant_id = tenant_id
        self.egress = Egress((), parse_secret_keys(KEYS))

    async def put(self, name: str, value: str, **more: Any) -> None:
        spec = SecretSpec(name=name, value=value, **more)
        await put_secret(self.store, self.egress, spec, tenant_id=self.tenant_id, who="test")

    async def send(self, task: str, *args: Any, tenant_id: int | None = None, **kwargs: Any) -> RunKey:
        order = SendSpec(task=task, args=args, kwargs=kwargs, retry=Retry(1))
        return (await send(self.store, self.catalog, order, tenant_id=tenant_id or self.tenant_id)).key

    async def end(self, key: RunKey, tenant_id: int | None = None) -> RunRow:
        async with asyncio.timeout(30):
            while True:
                run = await runs.get(self.store, key, tenant_id or self.tenant_id)
                if run is not None and run.state in FINAL_STATES:
                    return run
                await asyncio.sleep(0.02)

    async def run(self, task: str, *args: Any, **kwargs: Any) -> RunRow:
        return await self.end(await self.send(task, *args, **kwargs))

    @asynccontextmanager
    async def worker(self, **settings: Any) -> AsyncIterator[Worker]:
        chosen: dict[str, Any] = {"secret_box": parse_secret_keys(KEYS), **settings}
        clock, stop = SystemClock(), asyncio.Event()
        capture = CaptureSettings(level="info")
        worker = Worker(
            self.store,
            app.registry,
            clock,
            WorkerSettings(pools={"short": 8}, grace=timedelta(seconds=1), target=TARGET, capture=capture, **chosen),
        )
        working = asyncio.create_task(worker.run(stop))
        await worker.started.wait()
        try:
            yield worker
        finally:
            stop.set()
            await working


@pytest.fixture
async def secrets(store: Store, catalog: Catalog) -> SecretHarness:
    return SecretHarness(store, catalog, await catalog.tenant_id("default"))


@pytest.mark.parametrize("lane", ["loop", "thread", "process"])
async def test_a_handler_gets_the_value_and_cannot_leak_it(secrets: SecretHarness, store: Store, lane: str) -> None:
    await secrets.put("stripe", SECRET)
    async with secrets.worker():
        returned = await secrets.run(lane, {"$secret": "stripe"})
        raised = await secrets.run(lane, key={"$secret": {"name": "stripe", "prefix": "Bearer "}}, mode="raise")
    assert returned.state is State.SUCCEEDED, returned.error
    assert returned.result == {"echo": "***", "list": ["x***y"], "***": "as a name", "length": len(SECRET)}
    assert returned.spec is not None
    assert returned.spec.args == [{"$secret": "stripe"}]  # the stored arguments keep the reference
    assert raised.error["message"] == "refused Bearer ***"
    assert "***" in raised.error["traceback"]
    lines = [row["message"] for row in await store.pool.fetch("select message from logs order by line")]
    assert {"printed ***", "half a line ***", "logged ***", "told ***"} <= set(lines), lines
    assert ("echoed ***" in lines) is (lane == "process")
    stored = await dump(store)
    assert SECRET not in stored
    assert "Zw9-pQ7" not in stored  # nor in an escaped form


async def test_an_isolated_handler_does_not_inherit_secrets(
    secrets: SecretHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BELLRINGER_SECRET_STRIPE", SECRET)
    monkeypatch.setenv("BELLRINGER_SECRET_KEYS", KEYS[0])
    async with secrets.worker(secret_sources=("env:BELLRINGER_SECRET_",)):
        run = await secrets.run("process", {"$secret": "stripe"}, mode="environment")
        keys = await secrets.run("length", {"$secret": "keys"})
    assert run.result == []
    assert keys.error["type"] == "secret_missing"  # the settings of the worker are no secrets of runs


async def test_sources_have_an_order_and_serve_their_tenant(
    secrets: SecretHarness, catalog: Catalog, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_SECRET_STRIPE_KEY", "from the environment")
    (tmp_path / "stripe-key").write_text("from a file, first\n")
    (tmp_path / "only.file").write_text("four\r\n")
    (tmp_path.parent / "outside").write_text("outside of the folder")
    await secrets.put("sealed", "from the sealed store")
    other = await store.pool.fetchval(
        "insert into tenants (name, created_at) values ('acme', now()) returning tenant_id"
    )
    sources = (f"file:{tmp_path}", "env:APP_SECRET_", "store")
    async with secrets.worker(secret_sources=sources):
        for name, size in {"stripe-key": 18, "stripe.key": 20, "only.file": 4, "sealed": 21}.items():
            run = await secrets.run("length", {"$secret": name})
            assert run.result == size, (name, run.error)
        for name in ("../outside", "..", "missing"):
            run = await secrets.run("same", {"$secret": {"name": name}})
            assert "outside" not in str(run.error)
            assert run.result == {"$secret": {"name": name}} if "." in name else run.error["type"] == "secret_missing"
        for name in ("stripe-key", "sealed"):  # the process and the store have it for another tenant
            key = await secrets.send("length", {"$secret": name}, tenant_id=other)
            run = await secrets.end(key, other)
            assert (run.state, run.error["type"]) == (State.DEAD, "secret_missing")
            assert name in run.error["message"]


async def test_a_missing_secret_ends_the_run_and_a_redrive_finds_the_new_value(
    secrets: SecretHarness, store: Store
) -> None:
    async with secrets.worker():
        run = await secrets.run("length", value={"$secret": "late"})
        assert (run.state, run.attempt) == (State.DEAD, 1)
        assert run.error["message"].startswith("the secret 'late' does not exist")
        assert run.reason.startswith("secret_missing")
        await secrets.put("late", "12345")
        assert (await secrets.run("length", value={"$secret": "late"})).result == 5
        await secrets.put("late", "123456")  # no cache: the next attempt has the new value
        assert (await secrets.run("length", value={"$secret": "late"})).result == 6
        await delete_secret(store, "late", tenant_id=secrets.tenant_id)
        assert (await secrets.run("length", value={"$secret": "late"})).error["type"] == "secret_missing"


async def test_restrictions_and_keys_are_enforced_at_the_worker(secrets: SecretHarness) -> None:
    await secrets.put("narrow", "value", tasks=["pay"])
    await secrets.put("open", "value")
    async with secrets.worker():
        forbidden = await secrets.run("length", {"$secret": "narrow"})
    async with secrets.worker(secret_box=None):
        unsealable = await secrets.run("length", {"$secret": "open"})
    assert forbidden.error["type"] == "secret_forbidden"
    assert unsealable.error["type"] == "secret_unsealable"


async def test_a_literal_is_not_a_reference(secrets: SecretHarness) -> None:
    await secrets.put("open", "value")
    async with secrets.worker():
        literal = await secrets.run("same", {"a": {"$literal": {"$secret": "open"}}, "b": [{"$secret": "open"}]})
        other = await secrets.run("same", {"$secret": 5, "x": {"$secret": ["no", "reference"]}})
    assert literal.result == {"a": {"$secret": "open"}, "b": ["***"]}
    assert other.result == {"$secret": 5, "x": {"$secret": ["no", "reference"]}}


async def test_a_row_that_is_moved_to_another_tenant_or_name_cannot_be_opened(
    secrets: SecretHarness, store: Store
) -> None:
    other = await store.pool.fetchval(
        "insert into tenants (name, created_at) values ('acme', now()) returning tenant_id"
    )
    await secrets.put("mine", "value")
    await store.pool.execute(
        """insert into named_secrets (tenant_id, name, key_id, sealed, created_at, created_by, changed_at, changed_by)
           select $1, name, key_id, sealed, created_at, created_by, changed_at, changed_by from named_secrets""",
        other,
    )
    await store.pool.execute("update named_secrets set name = 'renamed' where tenant_id = $1", secrets.tenant_id)
    async with secrets.worker():
        renamed = await secrets.run("length", {"$secret": "renamed"})
        moved = await secrets.end(await secrets.send("length", {"$secret": "mine"}, tenant_id=other), other)
    assert renamed.error["type"] == moved.error["type"] == "secret_unsealable"


@pytest.mark.parametrize(
    "change",
    ["tasks = '{}'", "tasks = tasks || '{length}'::text[]", "origins = '{https://attacker.example}'"],
)
async def test_restrictions_that_are_changed_in_the_database_make_a_secret_useless(
    secrets: SecretHarness, store: Store, change: str
) -> None:
    """Who can write to the database, but has no key, cannot let other tasks or origins have a value."""
    await secrets.put("mine", "value", tasks=["same"])
    async with secrets.worker():
        assert (await secrets.run("same", {"$secret": "mine"})).state is State.SUCCEEDED
        await store.pool.execute(f"update named_secrets set {change}")
        for task in ("length", "same"):
            run = await secrets.run(task, {"$secret": "mine"})
            assert run.error["type"] in {"secret_unsealable", "secret_forbidden"}
    box = parse_secret_keys((generate_secret_key("k2"), *KEYS))
    assert box is not None
    done = await rotate_keys(store, box)  # rotating does not accept the change either
    assert (done.secrets, len(done.failed)) == (0, 1)
    assert "secret mine of tenant" in done.failed[0]
    assert "attacker" not in done.failed[0]


async def test_rotating_keys_encrypts_everything_again_and_can_be_repeated(
    secrets: SecretHarness, store: Store
) -> None:
    for number in range(5):
        await secrets.put(f"s{number}", f"value {number}", tasks=["length", "same"] if number == 3 else [])
    old = parse_secret_keys(KEYS)
    assert old is not None
    sealed = old.seal("whsec_x", tenant_id=secrets.tenant_id, secret_id="sec_1")
    await store.pool.execute(
        """insert into secrets (tenant_id, secret_id, key_id, sealed, previous_key_id, previous, created_at, changed_at)
           values ($1, 'sec_1', $2, $3, $2, $3, now(), now())""",
        secrets.tenant_id, sealed.key_id, sealed.data,
    )  # fmt: skip
    both = parse_secret_keys((generate_secret_key("k2"), *KEYS))
    assert both is not None
    done = await rotate_keys(store, both)
    assert (done.key_id, done.secrets, done.signing_secrets, done.failed) == ("k2", 5, 1, [])
    assert {(use.place, use.key_id, use.uses) for use in done.uses} == {
        ("secret", "k2", 5),
        ("signing secret", "k2", 2),
    }
    again = await rotate_keys(store, both)
    assert (again.secrets, again.signing_secrets) == (0, 0)
    newest = SecretBox({"k2": both.keys["k2"]})  # the old key is not needed any more
    async with secrets.worker(secret_box=newest):
        assert (await secrets.run("length", {"$secret": "s3"})).result == 7
    lost = parse_secret_keys((generate_secret_key("k3"),))
    assert lost is not None
    failed = await rotate_keys(store, lost)
    assert len(failed.failed) == 6
    assert await named_secrets.known_names(store, secrets.tenant_id, ["s1", "no"]) == {"s1"}
