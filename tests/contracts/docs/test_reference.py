"""The reference pages are generated from the code, complete and current."""

from __future__ import annotations

import click
import pytest
from tools.reference.command_line import walk
from tools.reference.error_codes import raised_errors
from tools.reference.events import event_meanings
from tools.reference.pages import FOLDER, outdated
from tools.reference.settings import setting_comments

from bellringer.cli import cli


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


def test_every_error_code_is_listed() -> None:
    page = (FOLDER / "errors.md").read_text()
    codes = {error.code for error in raised_errors()}
    assert len(codes) > 50
    assert {code for code in codes if f"| `{code}` |" not in page} == set()
