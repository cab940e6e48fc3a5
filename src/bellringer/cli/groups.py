"""Commands as we want them: examples at the end of every help, imports when called, errors in two lines."""

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
# The first that fits decides.
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
    """A command whose help ends with examples, as they are typed."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_examples(self.examples, formatter)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_examples(self.examples, formatter)


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    lines = [line.strip() for line in examples.strip().splitlines()]
    if lines:
        with formatter.section("Examples"):
            formatter.write("".join(f"{'':>{formatter.current_indent}}{line}\n" for line in lines))


@dataclass(frozen=True, slots=True)
class Late:
    """A command that is imported when it is called; `says` is its line in the list of commands."""

    where: str
    says: str


class Root(Group):
    """The program: sections of late commands, and the one place where errors become words and exit codes."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Late]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._late = {name: late for section in sections.values() for name, late in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._late)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        late = self._late.get(cmd_name)
        if late is None:
            return None
        module, _, name = late.where.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._late and not name.startswith("-"):
            near = get_close_matches(name, self._late, n=1)
            raise BadUsage(f"there is no command {name!r}", f"did you mean {near[0]!r}?" if near else "")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, late.says) for name, late in section.items()])

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):
                stream.reconfigure(errors="replace")  # type: ignore[union-attr] # a sign that cannot be shown
        if not standalone_mode or os.environ.get("_BELLRINGER_COMPLETE"):
            return click.Group.main(self, *args, standalone_mode=standalone_mode, **kwargs)  # type: ignore[call-overload]
        sys.exit(self._guarded(*args, **kwargs))

    def _guarded(self, *args: Any, **kwargs: Any) -> int:
        try:
            answer = click.Group.main(self, *args, standalone_mode=False, **kwargs)  # type: ignore[call-overload]
            sys.stdout.flush()
            return answer if isinstance(answer, int) else 0
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return USAGE
        except (click.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except BrokenPipeError:
            with suppress(OSError):  # whoever read us has enough; nothing is left to be flushed at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            if os.environ.get("BELLRINGER_DEBUG"):
                raise
            return tell(error)


class BadUsage(click.UsageError):
    """A wrong call, with a hint of its own."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def tell(error: BaseException) -> int:
    """Say what happened and what to do, on stderr; answers the exit code."""
    message, hint, code = _words(error)
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code


def _words(error: BaseException) -> tuple[str, str, int]:
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
    return shown, "this is not expected; BELLRINGER_DEBUG=1 shows where it happened", code


def fail(message: str, hint: str = "") -> NoReturn:
    raise BadUsage(message, hint)
