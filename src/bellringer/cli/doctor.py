"""`bellringer doctor`: reports settings and conditions of the database that cost speed or safety."""

from __future__ import annotations

import asyncio
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.command_groups import Command, fail
from bellringer.cli.options import load_config

if TYPE_CHECKING:
    from bellringer.doctor import CheckResult

WIDTH: Final = 80
INDENT: Final = " " * 9
_COLORS: Final = {"problem": "red", "warn": "yellow", "ok": "green"}


@click.command(
    cls=Command,
    examples="""
    bellringer doctor
    bellringer doctor --check bloat --check transactions
    bellringer doctor --strict --json > doctor.json
    """,
)
@click.option("--check", "only", multiple=True, metavar="NAME", help="Run only this check. Repeatable.")
@click.option("--strict", is_flag=True, help="Exit with code 1 for warnings too.")
@click.option("--json", "as_json", is_flag=True, help="Print all results as a JSON document.")
@click.option("--dsn", metavar="URL", help="URL of the database.  [default: BELLRINGER_DSN]")
def doctor(only: tuple[str, ...], strict: bool, as_json: bool, dsn: str | None) -> None:
    """Check the database server and the installation. Only reads the database.

    Reports what costs speed or safety: settings, vacuum, long transactions, locks, connections, clocks, partitions,
    and processes that are missing. Each result has a reason and the commands that fix it. The exit code is 1 if there
    is a problem, or with --strict a warning; otherwise it is 0.
    """
    from bellringer.clock import SystemClock
    from bellringer.doctor import CHECKS, examine

    names = {check.name for check in CHECKS}
    if unknown := sorted(set(only) - names):
        fail(f"there is no check {unknown[0]!r}", f"the checks are {', '.join(sorted(names))}")
    checks = [check for check in CHECKS if not only or check.name in only]
    results = asyncio.run(examine(load_config(dsn=dsn).require_dsn(), SystemClock(), checks))
    counts = Counter(result.severity.value for result in results)
    if as_json:
        _print_json(results, counts)
    else:
        _print_text(results, counts)
    if counts["problem"] or (strict and counts["warn"]):
        click.get_current_context().exit(1)


def _print_json(results: Sequence[CheckResult], counts: Counter[str]) -> None:
    from bellringer.cli.output import to_json

    summary = {severity: counts[severity] for severity in _COLORS}
    click.echo(to_json({"results": [result.document() for result in results], "summary": summary}))


def _print_text(results: Sequence[CheckResult], counts: Counter[str]) -> None:
    from bellringer.cli.output import sanitize

    for result in results:
        severity = result.severity.value
        first, *rest = textwrap.wrap(
            sanitize(result.found), WIDTH - len(INDENT), break_long_words=False, break_on_hyphens=False
        )
        click.echo(f"{click.style(f'{severity:<{len(INDENT)}}', fg=_COLORS[severity])}{first}")
        for line in [*rest, *textwrap.wrap(result.why, WIDTH - len(INDENT))]:
            click.echo(f"{INDENT}{line}")
        for command in result.fix:  # not wrapped, so that it can be copied
            click.echo(f"{INDENT}  {click.style(sanitize(command), bold=True)}")
    problems, warnings = counts["problem"], counts["warn"]
    summary = f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}, {counts['ok']} ok"
    click.secho(summary, fg="red" if problems else "yellow" if warnings else "green")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
