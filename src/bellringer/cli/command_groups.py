"""Base classes of all commands: examples in every help, lazy imports, and errors with hints and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from bellringer.errors import (
    BellringerError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    RunFailed,
    Unauthenticated,
    Unavailable,
)

USAGE: Final = 2
INTERRUPTED: Final = 130
# The first matching class decides.
EXIT_CODES: Final[Sequence[tuple[type[BaseException], int]]] = (
    (InvalidInput, USAGE),
    (RunFailed, 3),
    (NotFound, 4),
    (Conflict, 5),
    (Unavailable, 6),
    (Unauthenticated, 7),
    (Forbidden, 7),
    (QuotaExceeded, 8),
    (TimeoutError, 6),
)


class Command(click.Command):
    """A command whose help ends with examples."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_examples(self.examples, formatter)


class CommandGroup(click.Group):
    """A group of commands whose help ends with examples."""

    command_class = Command

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a subcommand; `show` is an alias of `get`."""
        found = super().get_command(ctx, cmd_name)
        return super().get_command(ctx, "get") if found is None and cmd_name == "show" else found

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_examples(self.examples, formatter)


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    lines = [line.strip() for line in examples.strip().splitlines()]
    if lines:
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            for line in lines:
                formatter.write("".join(f"{indent}{part}\n" for part in _wrap_example(line, formatter.width)))


def _wrap_example(line: str, width: int) -> list[str]:
    """Break a long command before its options, with the shell's backslash."""
    parts = [""]
    for word in line.replace(" --", "\0--").split("\0"):
        if parts[-1] and len(parts[-1]) + len(word) + 6 > width:
            parts[-1] += " \\"
            parts.append(f"    {word}")
        else:
            parts[-1] += f" {word}" if parts[-1] else word
    return parts


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is imported when it is called: `path` is `module:name`, `summary` its line in the list."""

    path: str
    summary: str


class RootGroup(CommandGroup):
    """The root command: lists lazy commands by section, and turns errors into messages and exit codes."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, LazyCommand]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._commands = {name: lazy for section in sections.values() for name, lazy in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        lazy = self._commands.get(cmd_name)
        if lazy is None:
            return None
        module, _, name = lazy.path.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._commands and not name.startswith("-"):
            near = get_close_matches(name, self._commands, n=1)
            raise BadUsage(f"there is no command {name!r}", f"did you mean {near[0]!r}?" if near else "")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, lazy.summary) for name, lazy in section.items()])

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):
                stream.reconfigure(errors="replace")  # type: ignore[union-attr] # for characters outside the terminal's encoding
        if not standalone_mode or os.environ.get("_BELLRINGER_COMPLETE"):
            return click.Group.main(self, *args, standalone_mode=standalone_mode, **kwargs)  # type: ignore[call-overload]
        sys.exit(self._run(*args, **kwargs))

    def _run(self, *args: Any, **kwargs: Any) -> int:
        try:
            returned = click.Group.main(self, *args, standalone_mode=False, **kwargs)  # type: ignore[call-overload]
            sys.stdout.flush()
            return returned if isinstance(returned, int) else 0
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return USAGE
        except (click.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except BrokenPipeError:
            with suppress(OSError):  # the reader closed the pipe; avoid a second error when Python flushes at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            if os.environ.get("BELLRINGER_DEBUG"):
                raise
            return print_error(error)


class BadUsage(click.UsageError):
    """A usage error with a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def print_error(error: BaseException) -> int:
    """Print the error and its hint to stderr, and return the exit code."""
    message, hint, code = _describe(error)
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code


def _describe(error: BaseException) -> tuple[str, str, int]:
    if isinstance(error, click.UsageError):
        hint = getattr(error, "hint", "") or f"see `{error.ctx.command_path if error.ctx else 'bellringer'} --help`"
        message = error.format_message()
        return message[:1].lower() + message[1:].rstrip("."), hint, USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), "", error.exit_code
    code = next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
    if isinstance(error, BellringerError):
        return error.message, error.hint, code
    shown = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return shown, "this is a bug; set BELLRINGER_DEBUG=1 to see the traceback", code


def fail(message: str, hint: str = "") -> NoReturn:
    raise BadUsage(message, hint)
