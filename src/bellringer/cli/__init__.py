"""The command line. Commands are imported only when they are called, so that `--help` comes at once."""

from __future__ import annotations

from bellringer.cli.root import cli

__all__ = ["cli", "main"]


def main() -> None:
    cli.main(prog_name="bellringer")
