"""The command line without a server: help, wrong calls, and cron."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bellringer.cli import cli


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server and no database is configured, nearby or in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("BELLRINGER_DSN", "BELLRINGER_URL", "BELLRINGER_DEBUG"):
        monkeypatch.setenv(name, "")  # as if it were not there; and what a command sets is undone


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="bellringer")


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and name != "bench":
                yield from commands(inner, (*path, name))


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_every_help_ends_with_an_example_of_the_command(path: tuple[str, ...]) -> None:
    result = call(*path, "--help")
    assert result.exit_code == 0
    _, _, examples = result.output.partition("Examples:")
    assert " ".join(("bellringer", *path)) in examples
    assert [line for line in result.output.splitlines() if len(line) > 80] == []


def test_help_lists_the_commands_without_importing_them() -> None:
    heavy = ["asyncpg", "starlette", "uvicorn", "httpx2", "structlog", "rich", "msgspec"]
    code = (
        "import sys; from bellringer.cli import cli\n"
        "try: cli.main(['--help'], prog_name='bellringer')\n"
        "except SystemExit: pass\n"
        f"sys.exit(' '.join(m for m in {heavy!r} if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run everything on this machine" in done.stdout


@pytest.mark.parametrize("path", [[], ["jobs"]], ids=["alone", "jobs"])
def test_a_group_without_a_command_shows_its_help(path: list[str]) -> None:
    result = call(*path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: bellringer")


def test_the_version_is_reported() -> None:
    assert call("--version").output.startswith("bellringer 0.")


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        (["jbos"], 2, "there is no command 'jbos'", "did you mean 'jobs'?"),
        (
            ["jobs", "list", "--limit", "x"],
            2,
            "'x' is not a valid integer",
            "see `bellringer jobs list --help`",
        ),
        (["jobs", "get"], 2, "missing argument 'JOB'", ""),
        (
            ["jobs", "create", "a", "t", "--every", "1m", "--cron", "* * * * *"],
            2,
            "are both given",
            "one schedule",
        ),
        (["jobs", "create", "a", "t", "--every", "1m", "--tz", "UTC"], 2, "--tz needs --cron", ""),
        (["jobs", "trigger", "a", "--arg", "novalue"], 2, "--arg 'novalue'", "--arg customer=7"),
        (["jobs", "trigger", "a", "--args-json", "{"], 2, "--args-json is not JSON", ""),
        (["jobs", "delete", "a"], 2, "confirmation is required", "--yes"),
        (["dead", "redrive"], 2, "select dead letters in exactly one way", "--all"),
        (["jobs", "list", "--url", "http://127.0.0.1:9"], 6, "cannot connect to a Bellringer server", "bellringer dev"),
        (["jobs", "list", "--url", "nonsense"], 1, "is not the URL of a server", "http://"),
        (["server"], 1, "no database is configured", "BELLRINGER_DSN"),
        (["worker", "app", "--pool", "io"], 2, "--pool 'io'", "--pool io=10"),
        (
            ["worker", "nowhere.py", "--dsn", "postgresql://x"],
            1,
            "there is no file 'nowhere.py'",
            "looked in",
        ),
        (["dev", "app.py", "--demo"], 2, "both given", "give one"),
        (["migrate"], 1, "no database is configured", "BELLRINGER_DSN"),
        (["migrate", "--dsn", "postgresql://127.0.0.1:9/x"], 6, "does not answer", "BELLRINGER_DSN"),
        (["cron", "explain", "* * * * *", "--from", "soon"], 2, "--from 'soon' is not a time", "2026-03-28"),
        (["cron", "explain", "* * * * *", "--tz", "Mars/Base"], 2, "Mars/Base", ""),
    ],
)
def test_a_wrong_call_says_what_and_how(arguments: list[str], code: int, error: str, hint: str) -> None:
    result = call(*arguments)
    assert result.exit_code == code, result.output
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert hint in "".join(rest)
    assert not rest or rest[-1].startswith("hint: ")
    assert result.stdout == ""


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = call("dev", "--port", port)
    assert result.exit_code == 1
    assert f"port {port} on 127.0.0.1" in result.stderr
    assert "--port" in result.stderr.splitlines()[1]


def test_cron_explain_shows_local_time_utc_and_what_the_clock_change_does() -> None:
    result = call("cron", "explain", "30 2 * * *", "--tz", "Europe/Paris", "-n", "3", "--from", "2026-03-28")
    assert result.output == (
        "At 02:30 every day (Europe/Paris)\n"
        "  Sat 2026-03-28 02:30+01:00   2026-03-28 01:30Z\n"
        "  Sun 2026-03-29 03:00+02:00   2026-03-29 01:00Z"
        "   DST: this local time does not exist; fires at the first moment after the gap\n"
        "  Mon 2026-03-30 02:30+02:00   2026-03-30 00:30Z\n"
        "  fires per day: 1 on average over the next 30 days, at most 1\n"
        "  ! on 2026-03-29 the clock skips the scheduled time: the job runs right after the change\n"
    )


def test_cron_explain_speaks_json() -> None:
    start = "2026-01-01T00:00:00Z"
    result = call("cron", "explain", "*/10 * * * * *", "--seconds", "-n", "1", "--from", start, "-o", "json")
    document = json.loads(result.output)
    assert document["fires"][0]["at"] == "2026-01-01T00:00:10Z"
    assert document["schedule"] == {"cron": "*/10 * * * * *", "seconds": True}


@pytest.mark.parametrize(
    "arguments",
    [["cron", "explain", "0 25 * * *"], ["jobs", "create", "a", "t", "--cron", "0 25 * * *"]],
    ids=["explain", "create"],
)
def test_a_mistake_in_an_expression_is_pointed_at(arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr == "error: hour 25 is out of range 0 to 23\n  0 25 * * *\n    ^\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_BELLRINGER_COMPLETE" in result.output


def test_show_is_an_alias_of_get() -> None:
    shown = CliRunner().invoke(cli, ["jobs", "show", "--help"])
    assert shown.exit_code == 0
    assert "Usage: " in shown.output
    assert CliRunner().invoke(cli, ["freezes", "show"]).exit_code == 2
