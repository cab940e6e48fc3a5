"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from bellringer.cli import cli
from bellringer.cli.command_groups import EXIT_CODES, INTERRUPTED, USAGE, Command, CommandGroup
from tools.reference.markdown import code, page, table

INTRODUCTION = (
    "All commands, arguments and options of `bellringer`. Every command accepts `--help`. Commands that read or change"
    " data call the REST API of the server that `--url` or `BELLRINGER_URL` names."
)


def render_commands() -> str:
    """Returns the page with one section per command."""
    context = click.Context(cli, info_name="bellringer")
    return page("Command line", INTRODUCTION, _exit_codes(), *(_section(*found) for found in walk(cli, context)))


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yields every visible command below this one, in the order of the help."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is None or found.hidden:
            continue
        inner = click.Context(found, info_name=name, parent=context)
        yield found, inner
        yield from walk(found, inner)


def _section(command: click.Command, context: click.Context) -> str:
    parts = [f"## {context.command_path}", inspect.cleandoc(command.help or "").replace("\b\n", "")]
    if not isinstance(command, click.Group):
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"```text\n{context.command_path} {usage}\n```")
    if options := [row for row in map(_option, command.params) if row]:
        parts.append(table(("option", "meaning"), options))
    if isinstance(command, Command | CommandGroup) and command.examples.strip():
        parts.append("```text\n" + inspect.cleandoc(command.examples).strip() + "\n```")
    return "\n\n".join(parts)


def _option(parameter: click.Parameter) -> tuple[str, str] | None:
    if not isinstance(parameter, click.Option) or parameter.hidden:
        return None
    names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    values = "" if parameter.is_flag or parameter.count else f" {code(parameter.make_metavar(_NO_CONTEXT))}"
    return names + values, parameter.help or ""


def _exit_codes() -> str:
    rows = [("0", "success"), ("1", "failure, or a check with findings")]
    by_code: dict[int, list[str]] = {USAGE: ["wrong usage"]}
    for kind, number in EXIT_CODES:
        by_code.setdefault(number, []).append(kind.__name__)
    rows += [(str(number), ", ".join(names)) for number, names in sorted(by_code.items())]
    return "## Exit codes\n\n" + table(("code", "meaning"), [*rows, (str(INTERRUPTED), "interrupted by Ctrl-C")])


_NO_CONTEXT = click.Context(click.Command("bellringer"))
