"""Reads docs/runbook.md: its sections, the commands of their console blocks, and the sample output of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUNBOOK = Path(__file__).parents[3] / "docs" / "runbook.md"
_SECTION = re.compile(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
CONTINUED = "> "
OMITTED = "…"


@dataclass(frozen=True)
class Step:
    """One command, and the output that the runbook shows for it."""

    command: str
    sample: tuple[str, ...]


@dataclass(frozen=True)
class RunbookSection:
    title: str
    text: str

    @property
    def steps(self) -> list[Step]:
        return [step for block in _BLOCK.findall(self.text) for step in _parse(block)]


def read_sections(text: str | None = None) -> dict[str, RunbookSection]:
    """Returns the sections by their title."""
    whole = RUNBOOK.read_text() if text is None else text
    return {title: RunbookSection(title, body) for title, body in _SECTION.findall(whole)}


def _parse(block: str) -> list[Step]:
    steps: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith(PROMPT):
            steps.append((line.removeprefix(PROMPT), []))
        elif line.startswith(CONTINUED) and not steps[-1][1]:
            steps[-1] = (f"{steps[-1][0]}\n{line.removeprefix(CONTINUED)}", [])
        else:
            steps[-1][1].append(line)
    return [Step(command, tuple(sample)) for command, sample in steps]


def first_difference(sample: tuple[str, ...], output: str) -> str | None:
    """Returns the first line of the sample that the output does not have, in this order; None if it has all of them.

    Numbers, times and ids are not compared, except for their sign: every word with a digit counts as the same. `…`
    stands for any text.
    """
    lines = [_shape(line) for line in output.splitlines()]
    position = 0
    for expected in sample:
        if expected.strip() in {"", OMITTED}:
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in _shape(expected).split(OMITTED)))
        while position < len(lines) and pattern.fullmatch(lines[position]) is None:
            position += 1
        if position == len(lines):
            return expected
        position += 1
    return None


def _shape(line: str) -> str:
    """The line with one sign for each group of numbers, times and ids, and single spaces."""
    line = re.sub(r"-{2,}[-+]*", "--", line)
    line = re.sub(r"(?<=\s)-(?=\d)", "negative ", line)
    line = re.sub(r"\bnow\b|\brun_\S*|\S*\d\S*(?:\s+(?:ms|s|min|kB|MB|GB)\b)?(?:\s+ago\b)?", "#", line)
    line = re.sub(r"s\b", "", line)  # the plural depends on a number
    return re.sub(r"#( #)+", "#", " ".join(line.split()))


def fill_samples(text: str, outputs: Mapping[str, list[str]]) -> str:
    """Returns the text with the outputs below commands that have no sample yet, section by section."""

    def in_section(match: re.Match[str]) -> str:
        pending = list(outputs.get(match[1], []))

        def in_block(block: re.Match[str]) -> str:
            lines = []
            for step in _parse(block[1]):
                first, *rest = step.command.splitlines()
                lines += [PROMPT + first, *(CONTINUED + line for line in rest)]
                shown = pending.pop(0) if pending else ""
                lines += step.sample or [line.rstrip() for line in shown.rstrip().splitlines()]
            return "```console\n" + "\n".join(lines) + "\n```"

        return match[0].replace(match[2], _BLOCK.sub(in_block, match[2])) if pending else match[0]

    return _SECTION.sub(in_section, text)
