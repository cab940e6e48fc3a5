"""Declaring workflows in Python: what the document is, and which mistakes are told when the module is imported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bellringer import RUN_AT, RUN_DATE, RUN_ID, App, Conflict, Context, InvalidInput, Retry, Workflow, every
from bellringer.core.jobs import WORKFLOW_TASK

app = App()


@app.task(name="shop.extract", timeout="5m", retry=Retry(2))
def extract(region: str, limit: int = 10) -> list[str]:
    return [region] * limit


@app.task(name="shop.transform", pool="cpu", priority=7)
def transform(ctx: Context, path: str, factor: int = 1) -> int:
    return len(path) * factor


@app.task(name="shop.load", delivery="at_most_once")
def load(counts: list[int], day: str) -> str:
    return f"{sum(counts)} on {day}"


@app.task(name="shop.pick")
def pick() -> str:
    return "weekday"


@app.task(name="shop.greet")
def greet(name: str = "you", timeout: int = 3) -> str:
    return f"{name} {timeout}"


def nodes(function: Any) -> dict[str, dict[str, Any]]:
    """The nodes that a function declares, without how their tasks are treated."""
    terms = ("pool", "priority", "timeout", "heartbeat", "retry", "delivery")
    document = App.workflow(_like(app), function).document
    return {
        node["name"]: {field: value for field, value in node.items() if field not in ("name", *terms)}
        for node in document["nodes"]
    }


def make(own: App, name: str, function: Any) -> None:
    own.workflow(name=name)(function)


def _like(other: App) -> App:
    """An app with the same tasks and no workflows: names are free again."""
    made = App()
    made.registry = other.registry
    return made


def test_the_document_is_what_the_function_says() -> None:
    @_like(app).workflow(max_parallel=50, name="etl")
    def etl(wf: Workflow, day: str = RUN_DATE, region: str = "eu", n: int = 5) -> Any:
        files = wf.add(extract, region, limit=n)
        counts = wf.map(transform, files, max_parallel=20, max_items=100)
        return wf.add(load, counts, day=day, after=[files])

    assert etl.document == {
        "params": {
            "day": {"default": {"run": "date"}},
            "region": {"default": {"value": "eu"}},
            "n": {"default": {"value": 5}},
        },
        "max_parallel": 50,
        "output": "load",
        "nodes": [
            {
                "name": "extract",
                "task": "shop.extract",
                "takes": {"region": {"param": "region"}, "limit": {"param": "n"}},
                "pool": "short",
                "priority": 5,
                "timeout": "5m",
                "retry": Retry(2).to_document(),
                "delivery": "at_least_once",
            },
            {
                "name": "transform",
                "task": "shop.transform",
                "takes": {"path": {"item": True}},
                "over": {"node": "extract"},
                "max_items": 100,
                "max_parallel": 20,
                "pool": "cpu",
                "priority": 7,
                "retry": Retry().to_document(),
                "delivery": "at_least_once",
            },
            {
                "name": "load",
                "task": "shop.load",
                "takes": {"counts": {"node": "transform"}, "day": {"param": "day"}},
                "after": ["extract"],
                "pool": "short",
                "priority": 5,
                "retry": Retry().to_document(),
                "delivery": "at_most_once",
            },
        ],
    }


def test_a_node_may_choose_how_its_runs_are_treated() -> None:
    @_like(app).workflow
    def etl(wf: Workflow) -> None:
        wf.add(pick, pool="io", priority=1, timeout="1h", retry=3, delivery="at_most_once")

    (node,) = etl.document["nodes"]
    assert (node["pool"], node["priority"], node["timeout"], node["delivery"]) == ("io", 1, "1h", "at_most_once")
    assert node["retry"] == Retry(3).to_document()


def test_nodes_are_named_after_their_functions_and_count() -> None:
    def etl(wf: Workflow) -> None:
        for _ in range(3):
            wf.add(pick)
        wf.add(pick, name="choose")
        wf.wait("1s")
        wf.wait("2s")

    assert list(nodes(etl)) == ["pick", "pick-2", "pick-3", "choose", "wait", "wait-2"]


def test_parts_of_results_are_taken_by_paths() -> None:
    def etl(wf: Workflow, conf: dict[str, Any]) -> None:
        files = wf.add(extract, conf["region"], 3)
        wf.map(transform, files["paths"], factor=files["factors"][-1])

    assert nodes(etl) == {
        "extract": {
            "task": "shop.extract",
            "kwargs": {"limit": 3},
            "takes": {"region": {"param": "conf", "path": ["region"]}},
        },
        "transform": {
            "task": "shop.transform",
            "over": {"node": "extract", "path": ["paths"]},
            "takes": {"path": {"item": True}, "factor": {"node": "extract", "path": ["factors", -1]}},
        },
    }


def test_a_map_gives_the_element_where_it_is_wanted() -> None:
    def etl(wf: Workflow, files: list[str]) -> None:
        wf.map(extract, [1, 2], item="limit", region="eu")
        wf.map(transform, files, path=wf.item["name"], factor=wf.index)

    made = nodes(etl)
    assert made["extract"]["over"] == {"value": [1, 2]}
    assert (made["extract"]["takes"], made["extract"]["kwargs"]) == ({"limit": {"item": True}}, {"region": "eu"})
    assert made["transform"]["over"] == {"param": "files"}
    assert made["transform"]["takes"] == {"path": {"item": True, "path": ["name"]}, "factor": {"index": True}}


def test_branches_waits_signals_and_facts() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)

    def etl(wf: Workflow, at: str = RUN_AT, ident: str = RUN_ID) -> None:
        choice = wf.add(pick)
        left = wf.add(greet, ident, after=choice.is_("weekday"))
        right = wf.add(greet, RUN_DATE, after=[choice.is_(None)])
        wf.add(pick, name="join", after=[left, right], when="none_failed")
        wf.wait("2h", after=choice)
        wf.wait(until=at, name="till")
        wf.wait(until=noon, name="noon")
        wf.signal("approved", timeout="1d", default={"by": "nobody"})
        wf.signal("approved", name="again")

    made = nodes(etl)
    assert made["greet"]["after"] == [{"node": "pick", "is": "weekday"}]
    assert made["greet"]["takes"] == {"name": {"param": "ident"}}
    assert made["greet-2"]["after"] == [{"node": "pick", "is": None}]
    assert made["greet-2"]["takes"] == {"name": {"run": "date"}}
    assert (made["join"]["after"], made["join"]["when"]) == (["greet", "greet-2"], "none_failed")
    assert made["wait"] == {"wait": {"for": "2h"}, "after": ["pick"]}
    assert made["till"] == {"wait": {"until": {"param": "at"}}}
    assert made["noon"] == {"wait": {"until": "2030-01-01T12:00:00Z"}}
    assert made["approved"] == {"signal": {"timeout": "1d", "default": {"value": {"by": "nobody"}}}}
    assert made["again"] == {"signal": {"name": "approved"}}


def test_what_undoes_a_node_takes_its_result_and_comes_after_nothing() -> None:
    def trip(wf: Workflow) -> None:
        hotel = wf.add(pick, name="hotel")
        wf.undo(hotel, greet, hotel, name="cancel-hotel", kwargs={"timeout": 9})

    assert nodes(trip)["cancel-hotel"] == {
        "task": "shop.greet",
        "undoes": "hotel",
        "kwargs": {"timeout": 9},
        "takes": {"name": {"node": "hotel"}},
    }


def test_a_workflow_in_another_travels_inside_of_it() -> None:
    own = _like(app)

    @own.workflow(timeout="10m")
    def each(wf: Workflow, path: str, factor: int = 1) -> Any:
        return wf.add(transform, path, factor)

    @own.workflow
    def all_of_them(wf: Workflow) -> None:
        files = wf.add(extract, "eu")
        wf.map(each, files, max_parallel=2, factor=3)
        wf.add(each, "one", name="alone", timeout="1m", retry=2)

    first, second = all_of_them.document["nodes"][1:]
    assert first == {
        "name": "each",
        "workflow": each.document,
        "kwargs": {"factor": 3},
        "takes": {"path": {"item": True}},
        "over": {"node": "extract"},
        "max_parallel": 2,
        "timeout": "10m",
    }
    assert (second["name"], second["kwargs"], second["timeout"]) == ("alone", {"path": "one"}, "1m")
    assert second["retry"] == Retry(2).to_document()


def test_it_is_a_job_with_the_schedule_above_it_or_without_any() -> None:
    own = _like(app)

    @own.schedule(every("1h", offset="5m"), overlap="queue", kwargs={"region": "us"}, tags=["night"])
    @own.workflow(name="etl", timeout="2h", priority=3, tags=["data"])
    def etl(wf: Workflow, region: str) -> None:
        """Load the files of a region."""
        wf.add(extract, region)

    @own.workflow(pool="io")
    def by_hand(wf: Workflow) -> None:
        wf.add(pick)

    scheduled, alone = own.definitions()
    assert (scheduled.name, scheduled.task, scheduled.workflow) == ("etl", WORKFLOW_TASK, etl.document)
    assert (dict(scheduled.kwargs), scheduled.overlap, scheduled.owner) == ({"region": "us"}, "queue", "code")
    assert (scheduled.timeout, scheduled.priority, scheduled.tags) == (timedelta(hours=2), 3, ("data", "night"))
    assert (alone.name, alone.schedules, alone.pool) == (by_hand.name, (), "io")
    assert by_hand.name.endswith(".by_hand")
    assert (etl.job.name, by_hand.job.name) == ("etl", by_hand.name)
    assert etl.__doc__ == "Load the files of a region."
    assert repr(etl) == "<workflow etl>"


def test_one_workflow_may_be_several_jobs() -> None:
    own = _like(app)

    @own.schedule(every("1h"), kwargs={"region": "eu"}, name="eu")
    @own.schedule(every("2h"), kwargs={"region": "us"}, name="us")
    @own.workflow(name="etl")
    def etl(wf: Workflow, region: str) -> None:
        wf.add(extract, region)

    assert sorted(job.name for job in own.definitions()) == ["eu", "us"]
    with pytest.raises(Conflict, match=r"etl is the workflow of the jobs us, eu; choose one: app.jobs\['us'\]"):
        etl.trigger()


def test_two_jobs_of_one_name_are_refused() -> None:
    own = _like(app)

    @own.workflow(name="etl")
    def etl(wf: Workflow) -> None:
        wf.add(pick)

    with pytest.raises(Conflict, match="declare the job 'ETL'"):
        own.schedule(every("1h"), name="ETL")(pick)
    with pytest.raises(Conflict, match="declare the job 'Etl'"):
        make(own, "Etl", lambda wf: wf.add(pick))
    own.schedule(every("1h"))(etl)  # its own name is free to it
    assert [job.name for job in own.definitions()] == ["etl"]


other_app = App()


@other_app.task(name="elsewhere")
def elsewhere() -> None: ...


def _loops(wf: Any) -> None:  # Any, or mypy would tell it already
    for _ in wf.add(extract, "eu"):
        wf.add(pick)


def _asks(wf: Any) -> None:
    if wf.add(pick):
        wf.add(greet)


def _compares(wf: Workflow, region: str = "eu") -> None:
    if region == "eu":
        wf.add(pick)


def _writes(wf: Workflow, region: str = "eu") -> None:
    wf.add(extract, f"{region}-north")


def _adds(wf: Workflow, n: int = 1) -> None:
    wf.add(extract, "eu", int(n) + 1)


@pytest.mark.parametrize("function", [_loops, _asks, _compares, _writes, _adds])
def test_to_look_at_what_is_yet_to_come_is_reported(function: Any) -> None:
    with pytest.raises(InvalidInput, match=r"has no value yet; use .is_\(\) for a branch and wf.map for a loop"):
        _like(app).workflow(function)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda wf: wf.add(extract, "eu", limt=3), r"shop.extract has no argument 'limt'; did you mean 'limit'\?"),
        (lambda wf: wf.add(extract), "shop.extract is missing the argument 'region'"),
        (lambda wf: wf.add(extract, 1, 2, 3), "takes at most 2 positional arguments"),
        (lambda wf: wf.add(extract, "eu", region="us"), "got the argument 'region' twice"),
        (lambda wf: wf.add(extract, "eu", limit="many"), "got an invalid argument 'limit'"),
        (lambda wf: wf.add(extract, wf.add(pick), limt=wf.add(pick)), "has no argument 'limt'"),
        (lambda wf: wf.add(load, [wf.add(pick)], day="x"), r"<node pick> is nested in the argument 'counts'"),
        (lambda wf: wf.add(greet, name="them"), r"name= is an option of the node, and shop.greet has an argument"),
        (lambda wf: wf.add(elsewhere), "elsewhere is a task of another app; declare the task with"),
        (lambda wf: wf.add(print), "a node runs a task or a workflow, not <built-in function print>"),
        (lambda wf: wf.add(pick, after="pick"), "'p' is not a node; pass the return value of wf.add"),
        (lambda wf: wf.add(pick, when="all_well"), "when cannot be 'all_well'"),
        (lambda wf: wf.add(pick, priority=12), "priority must be a whole number from 0 to 9"),
        (lambda wf: wf.add(pick, heartbeat="5s"), "heartbeat requires a handler"),
        (lambda wf: wf.map(pick, [1]), "no argument of shop.pick is left for the element; name the argument"),
        (lambda wf: wf.map(transform, [1], path="x"), "no argument of shop.transform is left for the element"),
        (lambda wf: wf.map(transform, "abc"), "over must be a list"),
        (lambda wf: wf.map(transform, [1], max_items=0), "max_items must be a whole number"),
        (lambda wf: wf.wait(), "give either a duration or until"),
        (lambda wf: wf.signal("go", default=1), "default requires timeout"),
        (lambda wf: wf.add(pick)["x"].is_(3), r"only the whole result of a node .* not <node pick\['x'\]>"),
        (lambda wf: wf.add(pick)[1:2], r"has no part slice\(1, 2, None\); to run a task for each element, use wf.map"),
        (lambda wf: wf.undo(wf.wait("1s"), greet), "'wait' is a wait and cannot be undone"),
        (lambda wf: (wf.add(pick, name="a"), wf.add(pick, name="a"))[0], "two nodes have the name 'a'"),
        (lambda wf: None, "a workflow must have 1 to 2000 nodes, not 0; add a node"),
        (lambda wf: str(wf.name) + str(wf.add(pick).name), "returns '.*'; return the node whose result"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_at_once(declare: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make(_like(app), "etl", declare)


def test_a_node_of_another_workflow_is_refused() -> None:
    kept: list[Any] = []
    own = _like(app)
    make(own, "one", lambda wf: kept.append(wf.add(pick)))

    with pytest.raises(
        InvalidInput, match="<node pick> belongs to the workflow one, not to two; add that workflow as a node"
    ):
        make(own, "two", lambda wf: wf.add(greet, kept[0]))


def test_an_invalid_workflow_is_reported() -> None:
    own = _like(app)
    with pytest.raises(InvalidInput, match=r"is a workflow, not a task; use @app.workflow directly above"):

        @own.schedule(every("1h"))
        def etl(wf: Workflow) -> None: ...

    with pytest.raises(InvalidInput, match=r"<task shop.pick> is already declared"):
        own.workflow(pick)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="has no parameter for the workflow"):
        make(own, "x", lambda: None)
    with pytest.raises(InvalidInput, match=r"cannot take '\*\*more'; params of a workflow must be named"):
        make(own, "x", lambda wf, **more: None)
    with pytest.raises(InvalidInput, match=r"@app.workflow has no option 'retries'"):
        own.workflow(retries=3)  # type: ignore[call-overload]

    async def later(wf: Workflow) -> None: ...

    with pytest.raises(InvalidInput, match="is async; use a plain def function"):
        own.workflow(later)


def test_a_schedule_gives_its_params() -> None:
    own = _like(app)

    @own.workflow(name="etl")
    def etl(wf: Workflow, n: int) -> None:
        wf.add(extract, "eu", n)

    with pytest.raises(InvalidInput, match=r"etl is missing the argument 'n'; pass it with args= or kwargs="):
        own.schedule(every("1h"))(etl)
    with pytest.raises(InvalidInput, match="etl got an invalid argument 'n'"):
        own.schedule(every("1h"), kwargs={"n": "many"})(etl)
    own.schedule(every("1h"), args=[7])(etl)
    assert [dict(job.kwargs) for job in own.definitions()] == [{"n": 7}]


@pytest.mark.parametrize("name", ["http", "workflow", "wait", "signal"])
def test_the_names_of_built_in_tasks_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} is a built-in task; give it another name="):
        App().task(name=name)(lambda: None)
