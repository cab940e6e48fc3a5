"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bellringer.schedule import Cron, Every, Rrule

README = (Path(__file__).parents[1] / "README.md").read_text()
POLICIES = (Path(__file__).parents[1] / "docs" / "policies.md").read_text()
WORKFLOWS = (Path(__file__).parents[1] / "docs" / "workflows.md").read_text()


def _code(first_line: str, document: str = README) -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    block = next(code for code in blocks if code.startswith(first_line))
    shown: dict[str, Any] = {"__name__": first_line.removeprefix("# ").removesuffix(".py")}
    exec(compile(block, first_line, "exec"), shown)
    return shown


def test_the_first_app_declares_its_two_jobs() -> None:
    app = _code("# hello.py")["app"]
    jobs = {definition.name: definition for definition in app.definitions()}
    assert {name: type(job.schedules[0]) for name, job in jobs.items()} == {"hello.hello": Every, "hello.cleanup": Cron}
    assert jobs["hello.cleanup"].kwargs == {"days": 30}
    assert jobs["hello.cleanup"].retry.attempts == 5


def test_the_shown_policies_are_those_of_the_jobs() -> None:
    nightly, month_end = _code("# reports.py", POLICIES)["app"].definitions()
    assert (nightly.misfire, nightly.overlap, nightly.catchup.most) == ("fire_all", "queue", 7)
    assert (month_end.misfire, month_end.overlap, type(month_end.schedules[0])) == ("skip", "replace", Rrule)


def test_the_shown_workflow_runs(bellringer_test: Any) -> None:
    app = _code("# etl.py")["app"]
    t = bellringer_test(app, at="2026-03-28T12:00:00Z")
    t.advance("1h", drain=True)
    assert [(run.state, run.result) for run in t.runs("etl")] == [("succeeded", "32 rows on 2026-03-28")]
    t.verify()


def test_the_first_workflow_of_the_guide_runs(bellringer_test: Any) -> None:
    t = bellringer_test(_code("# etl.py", WORKFLOWS)["app"], at="2026-03-28T12:00:00Z")
    t.advance("1h", drain=True)
    assert [run.result for run in t.runs("etl")] == ["320 on 2026-03-28"]


def test_the_second_workflow_of_the_guide_runs(bellringer_test: Any) -> None:
    shown = _code("# order.py", WORKFLOWS)
    t = bellringer_test(shown["app"], at="2026-03-28T12:00:00Z")
    run = shown["order"].trigger(parcels=["a", "b"], deliver_at="2026-03-30T12:00:00Z")
    t.drain()
    assert run.signal("approved", "ana") is True
    t.advance("3d", drain=True)
    states = {node.name: node.state for node in run.nodes()}
    assert {name for name, state in states.items() if state == "skipped"} == {"reorder", "pay-back"}
    assert {name for name, state in states.items() if state == "succeeded"} == {
        "stock", "pay", "approved", "until-then", "ship",
    }  # fmt: skip
    assert [node.state for node in run.nodes("ship")] == ["succeeded"] * 2


def test_the_shown_test_passes(bellringer_test: Any) -> None:
    shown = _code("# test_nightly.py")
    shown["test_nightly"](bellringer_test)
    assert [job.name for job in shown["app"].definitions()] == ["test_nightly.cleanup"]


def test_every_document_that_is_linked_exists() -> None:
    root = Path(__file__).parents[1]
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (root / link).exists()] == []


def test_every_figure_is_one_that_was_measured() -> None:
    assert not re.findall(r"FIG_\w+|TBD|XX+", README)
