"""The command line. A command is imported when it is called, which keeps `--help` fast."""

from __future__ import annotations

from bellringer.cli.root import cli

__all__ = ["cli", "main"]


def main() -> None:
    cli.main(prog_name="bellringer")
