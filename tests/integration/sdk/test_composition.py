"""Chains and groups, workflows that are sent without a job, and jobs that start after another, from Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from bellringer import App, Context, InvalidInput, RunFailed, Workflow, after, chain, every, group
from bellringer.core.runs import State
from bellringer.engine.prune import Retention, prune
from bellringer.sdk.composition import Composition
from bellringer.testing import Engine, TestEngine

Testing = Callable[..., TestEngine]

app = App(name="compose")
seen: list[Any] = []


@app.task(retry=1)
def add(number: int, more: int = 1) -> int:
    if number < 0:
        raise ValueError("negative")
    return number + more


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task(expires_in="1m")
def urgent(number: int) -> int:
    return number


@app.task
def total(numbers: list[int | None], note: str = "") -> str:
    return f"{sum(n or 0 for n in numbers)} of {len(numbers)}{note}"


@app.task
def report(text: str = "nothing") -> str:
    seen.append(text)
    return text


@app.workflow
def sums(wf: Workflow, numbers: list[int], note: str = "") -> Any:
    return wf.add(total, wf.map(add, numbers), note)


@app.schedule(every("1h"), kwargs={"number": 20})
@app.task(name="up.extract", retry=1)
def extract(number: int) -> int:
    return number + 1


@app.schedule(after("extract"), name="load")
@app.task
def load(ctx: Context) -> dict[str, Any]:
    upstream = ctx.upstream
    assert upstream is not None
    return {"run": upstream.run_id, "job": upstream.job, "state": upstream.state, "result": upstream.result}


@app.schedule(after(extract, on="failure"), name="alarm")
@app.task
def alarm() -> None: ...


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def graphs(t: TestEngine) -> int:
    async def count() -> int:
        number: int = await t._engine._store.pool.fetchval("select count(*) from graphs where keep_until is not null")
        return number

    return t._do(count)


@pytest.mark.parametrize(
    ("composed", "result"),
    [
        (lambda: chain(add.step(1), double, add.step(more=10)), 14),
        (lambda: chain(add.message(1), double.message(5)), 10),
        (lambda: chain(add.step(1), double.step(7).without_input(), double), 28),
        (lambda: group(add.step(n) for n in range(5)), [1, 2, 3, 4, 5]),
        (lambda: group(add.step(1), double.step(4)), [2, 8]),
        (lambda: group([]).then(total), "0 of 0"),
        (lambda: group(add.message(n, more=n) for n in range(3)).then(total.step(note="!")), "6 of 3!"),
        (lambda: chain(add.step(1), group(add.step(more=n) for n in range(3)), total), "9 of 3"),
        (lambda: chain(add.step(1), group(double, add), total), "7 of 2"),
        (lambda: group(chain(add.step(n), double) for n in range(3)).then(total), "12 of 3"),
        (lambda: group(add.step(-1), add.step(2)).then(total, on="any"), "3 of 2"),
        (lambda: group(add.step(-1), double.step(2)).then(total, on="any"), "4 of 2"),
    ],
)
def test_what_a_composition_returns(
    bellringer_test: Testing, composed: Callable[[], Composition], result: object
) -> None:
    t = bellringer_test(app)
    run = composed().send()
    assert run.state() is State.QUEUED
    t.drain()
    if run.state() is State.DEAD:  # a member failed, and the callback ran all the same
        final = next(node for node in run.nodes() if node.name == "total")
        assert app.runs[final.run_id or ""].result() == result
    else:
        assert run.result() == result


def test_a_failed_step_skips_the_following_ones_and_a_failure_callback_handles_it(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = chain(add.step(-1), double).send()
    handled = chain(add.step(-1), double).then(report.step("failed"), on="failure").send()
    fine = chain(add.step(1), double).then(report.step("not this"), on="failure").send()
    t.drain()
    with pytest.raises(RunFailed, match="node add failed: "):
        run.result()
    assert {node.name: node.state for node in run.nodes()} == {"add": "dead", "double": "skipped"}
    assert (handled.state(), seen, fine.result()) == (State.SUCCEEDED, ["failed"], 4)


def test_equal_shapes_share_a_graph_and_unused_graphs_are_pruned(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    for n in range(5):
        chain(add.step(n), double).send()
        group(add.step(m) for m in range(n + 1)).send()
    assert graphs(t) == 2
    chain(add.step(1), double, double).options(delay="100d").send()
    assert graphs(t) == 3
    t.drain()

    def pruned() -> int:
        async def act() -> int:
            store = t._engine._store
            await prune(store, await store.now(), Retention(runs=timedelta(days=1)))
            return 0

        return t._do(act)

    pruned()
    assert graphs(t) == 3
    t.clock.advance("90d")
    pruned()
    assert graphs(t) == 1  # that of the run in ten days
    again = chain(add.step(1), double).send()  # this process still knows the id of the deleted graph
    t.drain()
    assert again.result() == 4


def test_time_key_priority_and_limits_of_a_composition(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    composed = chain(add.step(1), double).options(delay="1h", key="once", priority=7, timeout="1d", max_parallel=1)
    run, same = composed.send(), composed.send()
    assert (run.id == same.id, run.created, same.created) == (True, True, False)
    assert run.get().priority == 7
    t.drain()
    assert run.state() is State.QUEUED
    t.advance("1h", drain=True)
    assert run.result() == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (chain, "a chain needs a step"),
        (lambda: group([]).send(), "there is no step to send"),
        (lambda: chain(add.step(1), 7), "7 cannot be a step"),
        (lambda: chain(add.step("one")).document(), "invalid argument 'number'"),
        (lambda: chain(add.step(1, wrong=2)).document(), "no argument 'wrong'"),
        (lambda: chain(add.step(1), double.step(1)).document(), "at most 1 positional"),
        (lambda: chain(double).document(), "missing the argument 'number'"),
        (lambda: chain(add.options(delay="1h").step(1)), "delay is not an option of a step"),
        (lambda: chain(add.options(expires_in="1m").step(1)), "add has expires_in, which steps"),
        (lambda: chain(add.options(expires_in="1m").message(1)).document(), "add has expires_in, which steps"),
        (lambda: chain(add.step(1), urgent), "urgent has expires_in, which steps"),
        (lambda: group(urgent.step(n) for n in range(2)).document(), "urgent has expires_in, which steps"),
        (lambda: chain(add.step(1), chain(double).options(key="k")), "has options of a send"),
        (lambda: group(chain(add.step(1)) for _ in range(2001)).document(), "more than 2000"),
        (lambda: chain(add.step(1)).options(at="2030-01-01T00:00:00Z", delay="1h"), "both given"),
    ],
)
def test_mistakes_are_found_before_anything_is_stored(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_task_with_a_deadline_is_refused_in_a_workflow() -> None:
    own = App(name="deadlines")
    hasty = own.task(name="hasty", expires_in="1m")(lambda: None)
    with pytest.raises(InvalidInput, match="hasty has expires_in, which steps and workflow nodes do not support"):

        @own.workflow(name="flow")
        def flow(wf: Workflow) -> object:
            return wf.add(hasty)


def test_a_declared_workflow_is_sent_without_a_job(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = sums.send(numbers=[1, 2])
    later = sums.options(delay="1h", key="k").send(numbers=[5], note="!")
    assert sums.options(key="k").send(numbers=[]).id == later.id
    with pytest.raises(InvalidInput, match="missing the argument 'numbers'"):
        sums.send()
    t.drain()
    assert (run.result(), later.state()) == ("5 of 2", State.QUEUED)
    t.advance("1h", drain=True)
    assert later.result() == "6 of 1!"
    assert app.jobs["sums"].runs() == []
    assert {node.name for node in run.nodes()} == {"add", "total"}


def test_a_job_starts_after_another(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-01-05T12:00:00Z")
    t.advance("2h", drain=True)
    upstream, loads = t.runs("up.extract"), t.runs("load")
    assert [run.result for run in loads] == [
        {"run": run.key.id, "job": "up.extract", "state": "succeeded", "result": 21} for run in upstream
    ]
    assert (len(loads), t.runs("alarm"), t.verify().clean) == (2, [], True)
    t.fail_next(extract, ValueError("no"))
    t.advance("1h", drain=True)
    assert (len(t.runs("load")), len(t.runs("alarm"))) == (2, 1)
    assert app.jobs["load"].get().after == after("up.extract")


def test_random_compositions_return_what_python_would(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    rng = random.Random(7)

    def make(depth: int, value: int | None) -> tuple[Any, Any]:
        """A composition, and its result; `value` is the result before it."""
        kind = rng.choice(["step", "chain", "group"] if depth else ["step"])
        if kind == "step":
            number, more = rng.randrange(9), rng.randrange(9)
            if value is None:
                return add.step(number, more), number + more
            return add.step(more), value + more
        parts, results = [], []
        for _ in range(rng.randint(1, 3)):
            part, result = make(depth - 1, value)
            if kind == "chain" and not isinstance(result, int):
                part, result = (
                    chain(
                        part,
                        total,
                    ),
                    None,
                )  # a list or a text is no number: end the chain there
                parts.append(part)
                return chain(*parts), None
            parts.append(part)
            results.append(result)
            if kind == "chain":
                value = result
        return (chain(*parts), value) if kind == "chain" else (group(*parts), results)

    composed = [make(2, None) for _ in range(25)]
    runs = [part.send() if isinstance(part, Composition) else chain(part).send() for part, _ in composed]
    t.drain()
    for (_, expected), run in zip(composed, runs, strict=True):
        if expected is not None and None not in (expected if isinstance(expected, list) else []):
            assert run.result() == expected


def test_waits_for_several_runs(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    good, bad, late = double.send(4), add.send(-1), double.options(delay="1h").send(1)
    with pytest.raises(TimeoutError, match="3 of 3 runs have not ended"):
        app.runs.wait_all([good, bad, late], timeout=0.05)
    with pytest.raises(TimeoutError):
        app.runs.wait_any([good], timeout=0.05)
    t.drain()
    assert app.runs.wait_any([late, good, bad], timeout=5).id == good.id
    with pytest.raises(TimeoutError, match="1 of 3 runs have not ended"):
        app.runs.wait_all([good, bad, late], timeout=0.05)
    with pytest.raises(RunFailed, match="negative"):
        app.runs.wait_all([good, bad], timeout=5)
    first, error, again = app.runs.wait_all([good, bad, good], timeout=5, return_exceptions=True)
    assert (first, str(error), again) == (8, f"{add.name} ended as dead: ValueError: negative", 8)
    ended = app.runs.as_completed([late, bad, good], timeout=0.3)
    assert {next(ended).id, next(ended).id} == {good.id, bad.id}
    with pytest.raises(TimeoutError):
        next(ended)
    t.advance("1h", drain=True)
    assert [run.id for run in app.runs.as_completed([late])] == [late.id]
    assert app.runs.wait_all([]) == []
    with pytest.raises(InvalidInput, match="no run to wait for"):
        app.runs.wait_any([])


async def test_waits_in_async_code(bellringer_dsn: str) -> None:
    async with Engine(app, bellringer_dsn) as t:
        runs = [await double.asend(n) for n in range(3)]
        await t.drain()
        assert await app.runs.await_all(runs, timeout=5) == [0, 2, 4]
        assert (await app.runs.await_any(runs, timeout=5)).id == runs[0].id
        assert [run.id async for run in app.runs.aas_completed(runs, timeout=5)] == [run.id for run in runs]
        composed = await chain(add.step(1), double).asend()
        await t.drain()
        assert await composed.aresult(timeout=5) == 4
