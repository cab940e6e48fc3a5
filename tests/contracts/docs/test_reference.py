"""The reference pages are generated from the code, complete and current."""

from __future__ import annotations

import importlib
import pkgutil
import re

import click
import pytest
from prometheus_client import REGISTRY
from tools.dashboards.__main__ import DASHBOARDS
from tools.reference.command_line import walk
from tools.reference.error_codes import complete_examples, raised_errors
from tools.reference.events import event_meanings
from tools.reference.pages import FOLDER, PAGES, outdated
from tools.reference.rest import specification
from tools.reference.settings import setting_comments

import bellringer
from bellringer.cli import cli
from bellringer.store.connection_pool import Store
from bellringer.wire.field_meanings import FIELD_MEANINGS

TABLES = """
select c.relname as name from pg_class c
where c.relnamespace = 'bellringer'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
  and c.relname not in ('migrations', 'applied_functions')
"""
FUNCTIONS = """
select distinct p.proname as name from pg_proc p
where p.pronamespace = 'bellringer'::regnamespace
  and not exists (
    select 1 from pg_depend d where d.objid = p.oid and d.classid = 'pg_proc'::regclass and d.deptype = 'e')
"""


def test_all_pages_are_current() -> None:
    assert outdated() == [], "run `python -m tools.reference`"


@pytest.mark.parametrize("meanings", [setting_comments(), event_meanings()], ids=["settings", "events"])
def test_every_setting_and_event_has_a_meaning(meanings: dict[str, str]) -> None:
    assert len(meanings) > 15
    assert [name for name, meaning in meanings.items() if not meaning] == []


def test_every_command_has_a_section_and_every_option_a_meaning() -> None:
    page = (FOLDER / "cli.md").read_text()
    commands = list(walk(cli, click.Context(cli, info_name="bellringer")))
    assert len(commands) > 100
    assert [context.command_path for _, context in commands if f"\n## {context.command_path}\n" not in page] == []
    assert [
        f"{context.command_path} {parameter.opts[0]}"
        for command, context in commands
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.help
    ] == []


def test_every_error_code_is_listed_with_a_message_and_a_remedy() -> None:
    page = (FOLDER / "errors.md").read_text()
    codes = {error.code for error in raised_errors()}
    assert len(codes) > 100
    assert {code for code in codes if f"| `{code}` |" not in page} == set()
    silent = [e for e in complete_examples().values() if not (e.message.strip("… ") and e.hint.strip("… "))]
    assert silent == [], "give the error a hint where it is raised"


def test_every_metric_of_the_registry_is_listed_and_no_other() -> None:
    for module in pkgutil.walk_packages(bellringer.__path__, "bellringer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    registered = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in REGISTRY.collect()
        if family.name.startswith("bellringer_")
    }
    rows = re.findall(
        r"^\| `(bellringer_\w+)` \|.*\| ([^|]+) \| [^|]+ \|$", (FOLDER / "metrics.md").read_text(), re.MULTILINE
    )
    assert len(registered) > 50
    assert {name for name, role in rows if role != "worker --procs"} == registered


def test_every_panel_of_the_dashboards_is_explained() -> None:
    page = (FOLDER / "dashboards.md").read_text()
    panels = [(board, panel) for board in DASHBOARDS for section in board.sections for panel in section.panels]
    assert len(panels) > 60
    assert [(board.uid, panel.title) for board, panel in panels if f"\n| {panel.title} | " not in page] == []
    rows = set(page.splitlines())
    assert {
        (
            "| Free disk | Free share of the disk, if the data directory is on the machine of a server; otherwise use"
            " node_exporter. | red below 15 % |"
        ),
        (
            "| Saturation of pools | Busy slots divided by all slots. Above 0.9 for long: add workers, or move tasks to"
            " another pool. | orange from 70 %, red from 90 % |"
        ),
        (
            "| Duration of a claim | More than 50 ms: look for dead rows and long transactions with"
            " `bellringer doctor`. | orange from 50 ms, red from 200 ms |"
        ),
    } <= rows


@pytest.mark.parametrize("query", [TABLES, FUNCTIONS], ids=["tables", "functions"])
async def test_every_table_and_function_of_a_database_is_listed(store: Store, query: str) -> None:
    page = (FOLDER / "database.md").read_text()
    names = [row["name"] for row in await store.pool.fetch(query)]
    assert len(names) > 50
    assert [name for name in names if not re.search(rf"^\| `{name}[(`]", page, re.MULTILINE)] == []


def test_every_field_of_a_request_and_a_response_has_a_meaning() -> None:
    schemas = specification()["components"]["schemas"]
    given = {f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", {})}
    silent = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, made in schema.get("properties", {}).items()
        if not made.get("description")
    ]
    assert silent == [], "describe the field in bellringer/wire/field_meanings.py"
    names = given | {one.partition(".")[2] for one in given}
    assert [name for name in FIELD_MEANINGS if name not in names] == [], "these fields do not exist any more"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_no_cell_is_empty(name: str) -> None:
    lines = (FOLDER / name).read_text().splitlines()
    assert [line for line in lines if line.startswith("|") and re.search(r"(?<!\\)\|\s*(?<!\\)\|", line)] == []
