"""What a type checker sees; mypy checks this file, and complains about an `ignore` that is not needed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from bellringer import RUN_DATE, App, Context, RunHandle, TaskHandle, Workflow, WorkflowHandle, cron, every
from bellringer.sdk.workflow_values import WorkflowNode

app = App()


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(pool="io", retry=5)
async def charge(ctx: Context, invoice: int) -> str:
    return f"{ctx.attempt} {invoice}"


@app.schedule(cron("0 3 * * *"))
@app.task
def above(days: int = 3) -> int:
    return days


@app.task(priority=7)
@app.schedule(every("1h"))
def below(ctx: Context, days: int = 3) -> int:
    return days + ctx.attempt


@app.schedule(every("1h"))
def alone(days: int = 3) -> int:
    return days


@app.schedule(every("1h"))
@app.workflow
def flow(wf: Workflow, day: str = RUN_DATE, times: int = 1) -> WorkflowNode:
    added = wf.add(add, times, b=2)
    return wf.map(above, added["days"], after=[added, added.is_(3)])


@app.workflow(name="another", max_parallel=3)
def another(wf: Workflow) -> None:
    wf.add(flow, day="2026-01-01")


def test_handles_keep_the_signature_without_the_context() -> None:
    assert_type(add(1), int)
    assert_type(add, TaskHandle[[int, int], int])  # type: ignore[assert-type]  # names and defaults are kept too
    assert_type(charge(7), Coroutine[Any, Any, str]).close()
    assert_type(above(), int)
    assert_type(below(days=1), int)
    assert_type(alone(), int)


def test_workflows_have_handles_of_their_own() -> None:
    assert_type(flow, WorkflowHandle)
    assert_type(another, WorkflowHandle)
    assert flow.name.endswith(".flow")


def only_for_the_type_checker() -> None:
    assert_type(flow.trigger(day="2026-01-01"), RunHandle)
    app.workflow(add)  # type: ignore[arg-type]
    app.workflow(retry=3)  # type: ignore[call-overload]
    assert_type(add.send(1, b=2), RunHandle)
    assert_type(charge.options(delay="5m").send(7), RunHandle)
    add.send("1")  # type: ignore[arg-type]
    add.send(1, c=2)  # type: ignore[call-arg]
    charge.send()  # type: ignore[call-arg]
    charge.options(priority=1).send("7")  # type: ignore[arg-type]
    add.options(prio=1)  # type: ignore[call-arg]
    app.task(prio=1)  # type: ignore[call-overload]
    app.schedule("0 3 * * *")  # type: ignore[arg-type]
