"""The code, links and figures of the README and the guides are right."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bellringer.config import Config
from bellringer.schedule import Cron, Every, Rrule
from bellringer.worker.lanes.processes import IsolationSettings

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
POLICIES = (ROOT / "docs" / "policies.md").read_text()
WORKFLOWS = (ROOT / "docs" / "workflows.md").read_text()
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()


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
    poll, nightly, month_end = _code("# reports.py", POLICIES)["app"].definitions()
    assert (poll.pause_after_failures, poll.expires_in, poll.retry.only_on) == (
        5,
        timedelta(minutes=4),
        ("ConnectionError",),
    )
    assert (nightly.misfire, nightly.overlap, nightly.catchup.most) == ("fire_all", "queue", 7)
    assert (month_end.misfire, month_end.overlap, type(month_end.schedules[0])) == ("skip", "replace", Rrule)


def test_the_first_workflow_of_the_guide_runs(bellringer_test: Any) -> None:
    t = bellringer_test(_code("# etl.py", WORKFLOWS)["app"], at="2026-03-28T12:00:00Z")
    t.advance("1h", drain=True)
    assert [run.result for run in t.runs("etl")] == ["320 on 2026-03-28"]
    t.verify()


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


def test_the_guide_of_handlers_lists_the_variables_of_child_processes() -> None:
    table = (
        (ROOT / "docs" / "handlers.md").read_text().partition("| variables of a child process")[2].partition("\n\n")[0]
    )
    listed = set(re.findall(r"`(\w+)`", table.partition("\n")[2])) - {"isolated_dsn"}
    everything = {f"BELLRINGER_{name.upper()}" for name in msgspec.structs.asdict(Config())} | {*listed, "PGPORT"}
    everything |= {"BELLRINGER_APP_VERSION", "BELLRINGER_DEBUG", "PGPASSWORD", "PGSERVICE"}
    inherited = IsolationSettings().environment(dict.fromkeys(everything, "x"))
    assert listed == {*inherited} - {"PGPORT"}
    without = IsolationSettings(with_dsn=False).environment(dict.fromkeys(everything, "x"))
    last_row = set(re.findall(r"`((?:BELLRINGER|PG)\w+)`", table.splitlines()[-1]))
    assert last_row == {*inherited} - {*without}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(document: Path) -> None:
    broken = []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        path = document.parent / target if target else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    package = ROOT / "src" / "bellringer"
    folders = [ROOT, ROOT / "tests", package, package / "store" / "functions"]
    named = re.findall(r"`((?:[\w*]+/)+[\w*]+\.(?:py|sql|toml))`", document.read_text())
    assert [name for name in named if not any([*folder.glob(name.replace("NNN", "*"))] for folder in folders)] == []


def test_the_readme_links_to_every_guide() -> None:
    folder = ROOT / "docs"
    guides = {*folder.glob("*.md"), *folder.glob("tutorials/*.md")} - {folder / "index.md"}
    assert {str(path.relative_to(ROOT)) for path in guides} - set(re.findall(r"\]\(([^)#]+)\)", README)) == set()


def _anchors(path: Path) -> set[str]:
    """The anchors that a Markdown viewer gives to the headings of a file."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_figure_was_measured_and_is_alone_in_its_cell() -> None:
    assert not re.findall(r"FIG_\w+|TBD|XX+", README + BENCHMARKS)
    rows = [line for line in BENCHMARKS.splitlines() if line.startswith("|")]
    figures = [cell for row in rows for cell in row.strip("|").split("|")[1:] if "`" not in cell]
    assert len(figures) > 40
    assert [cell for cell in figures if len(re.findall(r"\d[\d.,]*", cell)) > 1] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 120
