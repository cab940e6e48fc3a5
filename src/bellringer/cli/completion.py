"""`bellringer completion`: prints a script that completes commands and options in a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from bellringer.cli.command_groups import Command

VARIABLE: Final = "_BELLRINGER_COMPLETE"


@click.command(
    cls=Command,
    examples="""
    eval "$(bellringer completion bash)"
    bellringer completion zsh > ~/.zfunc/_bellringer
    bellringer completion fish > ~/.config/fish/completions/bellringer.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands and options with the Tab key."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "bellringer", VARIABLE).source())
