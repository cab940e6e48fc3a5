"""Workflows from Python on the real engine: how they run, and what people do to their runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from bellringer import (
    RUN_AT,
    RUN_DATE,
    RUN_ID,
    App,
    Conflict,
    InvalidInput,
    NotFound,
    RunFailed,
    RunHandle,
    Workflow,
    every,
)
from bellringer.core.runs import State
from bellringer.testing import Engine, TestEngine

Testing = Callable[..., TestEngine]

app = App(name="shop")
done: list[str] = []
fails: set[str] = set()


@app.task
def extract(region: str) -> dict[str, Any]:
    return {"files": [f"{region}/{n}" for n in range(3)]}


@app.task
def transform(path: str, factor: int = 1) -> int:
    if path in fails:
        raise ValueError(path)
    return len(path) * factor


@app.task
def load(counts: list[int], day: str) -> dict[str, Any]:
    return {"sum": sum(counts), "day": day}


@app.schedule(every("1h", offset="5m"), overlap="queue")
@app.workflow(max_parallel=50)
def etl(wf: Workflow, day: str = RUN_DATE, region: str = "eu") -> Any:
    files = wf.add(extract, region=region)
    counts = wf.map(transform, files["files"], max_parallel=2, factor=10, retry=1)
    return wf.add(load, counts, day=day)


@app.task(retry=1)
def step(name: str, payload: Any = None) -> str:
    done.append(name if payload is None else f"{name} {payload}")
    if name in fails:
        raise RuntimeError(name)
    return name


@app.workflow(name="approval", timeout="3d")
def approval(wf: Workflow, amount: int, at: str = RUN_AT, ident: str = RUN_ID) -> Any:
    asked = wf.add(step, "asked", ident)
    pause = wf.wait("2h", after=asked)
    answer = wf.signal("approved", timeout="1d", default="nobody", after=pause)
    size = wf.add(step, "large", name="size", after=pause)
    wf.add(step, "paid", amount, name="pay", after=[size.is_("large"), answer])
    wf.add(step, "small", name="small", after=size.is_("small"))
    return wf.add(step, "end", answer, name="end", after=wf.add(step, "booked", at, name="book"))


@app.workflow(name="trip")
def trip(wf: Workflow) -> None:
    hotel = wf.add(step, "hotel", name="hotel")
    flight = wf.add(step, "flight", name="flight", after=hotel)
    wf.add(step, "pay", name="pay", after=flight)
    wf.undo(hotel, step, "no hotel", hotel, name="cancel-hotel")
    wf.undo(flight, step, "no flight", name="cancel-flight")


@app.workflow(name="regions")
def regions(wf: Workflow, names: list[str] = ["eu", "usa"]) -> Any:  # noqa: B006 - a default of JSON, read once
    return wf.map(etl, names, item="region", day="2026-02-02")


@pytest.fixture(autouse=True)
def _forget() -> None:
    done.clear()
    fails.clear()


def states(run: RunHandle) -> dict[str, str]:
    return {node.name: f"{node.state}{f' {node.reason}' if node.reason else ''}" for node in run.nodes()}


def test_it_runs_on_its_schedule_and_manually(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-01-05T12:00:00Z")
    t.advance("2h", drain=True)

    assert [(run.state, run.result) for run in t.runs("etl")] == [
        (State.SUCCEEDED, {"sum": 120, "day": "2026-01-05"})
    ] * 2
    assert [fire.outcome for fire in t.fires(etl)] == ["fired"] * 2
    by_hand = etl.trigger(region="usa")
    assert by_hand.state() is State.QUEUED
    t.drain()
    assert by_hand.result() == {"sum": 150, "day": "2026-01-05"}
    assert app.jobs["etl"].trigger(day="2030-01-01").id != by_hand.id
    t.drain()
    assert t.runs(etl)[-1].result == {"sum": 120, "day": "2030-01-01"}
    assert t.verify().expected == 2


def test_a_workflow_is_declared_once_for_what_it_is(bellringer_test: Testing) -> None:
    bellringer_test(app)

    assert sorted(job.name.rpartition(".")[2] for job in app.jobs.list()) == ["approval", "etl", "regions", "trip"]
    assert app.declare() == 0
    job = etl.job.get()
    assert (job.task, job.owner, job.revision) == ("workflow", "code", 1)
    assert job.spec.graph is not None


def test_params_are_checked_before_anything_runs(bellringer_test: Testing) -> None:
    t = bellringer_test(app)

    with pytest.raises(InvalidInput, match="approval is missing the argument 'amount'"):
        approval.trigger()
    with pytest.raises(InvalidInput, match=r"approval has no argument 'amout'; did you mean 'amount'\?"):
        approval.trigger(amout=3)
    with pytest.raises(InvalidInput, match="approval got an invalid argument 'amount'"):
        approval.trigger(amount="much")
    assert t.enqueued() == []


def test_waits_signals_and_branches(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = approval.trigger(amount=70)
    t.drain()
    assert sorted(done) == [f"asked {run.id}", f"booked {t.clock.now():%Y-%m-%dT%H:%M:%S}.000000Z"]
    t.advance("1h", drain=True)
    assert len(done) == 2
    t.advance("1h", drain=True)
    assert done[2:] == ["large"]
    assert run.signal("approved", {"by": "Ada"}) is True
    t.drain()
    assert run.result() == "end"
    assert sorted(done[3:]) == ["end {'by': 'Ada'}", "paid 70"]
    with pytest.raises(NotFound, match="no signal 'aproved'; it waits for approved"):
        run.signal("aproved")
    with pytest.raises(Conflict, match="no node waits for that signal any more"):
        run.signal("approved")


def test_a_signal_that_no_one_sends_has_a_default(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = approval.trigger(amount=70)
    t.advance("27h", drain=True)

    assert run.result() == "end"
    assert "end nobody" in done


def test_a_workflow_run_has_its_time(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = approval.trigger(amount=1)
    t.drain()
    app.jobs["approval"].pause()
    t.advance("4d", drain=True)

    assert run.state() is State.DEAD
    with pytest.raises(RunFailed, match="it has had its time"):
        run.result()


def test_what_was_done_is_taken_back(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    fails.add("pay")
    run = trip.trigger()
    t.drain()

    assert run.state() is State.DEAD
    assert done == ["hotel", "flight", "pay", "no flight", "no hotel hotel"]
    assert [letter.key for letter in t.dead()] == [run.key]


def test_a_cancelled_run_stops_with_its_nodes(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = approval.trigger(amount=1)
    t.drain()
    assert run.cancel() is State.RUNNING
    t.advance("1s", drain=True)

    assert run.state() is State.CANCELLED
    t.advance("2d", drain=True)
    assert len(done) == 2


def test_workflows_in_workflows(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = regions.trigger()
    t.drain()

    assert run.result() == [{"sum": 120, "day": "2026-02-02"}, {"sum": 150, "day": "2026-02-02"}]


def test_failed_nodes_are_tried_again_and_marked(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    fails.update({"eu/0", "eu/2"})
    run = etl.trigger()
    t.drain()
    assert run.state() is State.DEAD
    assert states(run) == {"extract": "succeeded", "transform": "dead", "load": "skipped upstream"}
    elements = run.nodes("transform")
    assert [(n.name, n.state) for n in elements] == [
        ("transform[0]", "dead"), ("transform[1]", "succeeded"), ("transform[2]", "dead"),
    ]  # fmt: skip
    assert elements[1].run_id is not None
    assert app.runs[elements[1].run_id].result() == 40

    fails.discard("eu/0")
    run.retry_nodes("transform[0]")
    t.drain()
    assert [n.state for n in run.nodes("transform")] == ["succeeded", "succeeded", "dead"]
    run.mark("transform[2]", "succeeded", result=1, reason="counted by hand")
    t.drain()
    assert run.result() == {"sum": 81, "day": "2026-01-05"}
    with pytest.raises(NotFound, match="no such node"):
        run.mark("transform[7]", "dead")
    with pytest.raises(InvalidInput, match="state cannot be 'fine'"):
        run.mark("load", "fine")
    with pytest.raises(NotFound, match="the workflow run has no node 'lod'; it has extract, transform, load"):
        run.nodes("lod")


def test_all_that_failed_is_tried_again(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    fails.add("eu/1")
    run = etl.trigger()
    t.drain()
    fails.clear()
    run.retry_nodes()
    t.drain()
    assert run.state() is State.SUCCEEDED
    with pytest.raises(NotFound, match="workflow runs have nodes once they have started"):
        etl.trigger().nodes()


def test_a_worker_that_dies_with_nodes_loses_none(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = etl.trigger()
    t.crash_worker().drain(with_retries=True)
    t.crash_worker("after").drain(with_retries=True)

    assert run.result() == {"sum": 120, "day": "2026-01-05"}
    assert t.verify().clean


async def test_everything_exists_in_async_too(bellringer_dsn: str) -> None:
    async with Engine(app, bellringer_dsn) as t:
        run = await approval.atrigger(amount=7)
        await t.advance(timedelta(hours=2), drain=True)
        assert await run.asignal("approved", "yes") is True
        await t.drain()
        assert await run.aresult() == "end"
        assert {node.name: node.state for node in await run.anodes()}["small"] == "skipped"
        await run.aretry_nodes("end")
        await t.drain()
        await run.amark("end", "succeeded", result="by hand")
        assert await run.aresult() == "by hand"
        assert (await run.aget()).attempt == 3
