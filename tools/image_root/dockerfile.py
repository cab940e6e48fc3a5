"""Parses the subset of Dockerfile syntax that `deploy/docker/Dockerfile` uses. Other instructions are errors."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Final

KNOWN: Final = frozenset(
    {"CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "WORKDIR"}
)


class UnknownInstruction(Exception):
    """The Dockerfile uses syntax that this tool does not execute."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `flags` are its options, such as {"from": "build"}; `text` is the rest of the line."""

    name: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments: a JSON list, or words as a shell splits them."""
        if self.text.startswith("["):
            words: list[str] = json.loads(self.text)
            return words
        return shlex.split(self.text)


@dataclass(frozen=True, slots=True)
class BuildStage:
    """The instructions from one FROM to the next."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


def parse(text: str) -> list[BuildStage]:
    """Returns the stages. Global ARGs with their defaults are replaced in FROM."""
    arguments: dict[str, str] = {}
    stages: list[BuildStage] = []
    for line in _join_lines(text):
        name, _, rest = line.partition(" ")
        if name == "ARG" and not stages:
            key, _, default = rest.partition("=")
            arguments[key.strip()] = default.strip()
        elif name == "FROM":
            base, *alias = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], rest).split()
            stages.append(BuildStage(alias[1] if alias else str(len(stages)), base))
        elif name in KNOWN and stages:
            stages[-1].instructions.append(_instruction(name, rest.strip()))
        else:
            raise UnknownInstruction(line)
    return stages


def _instruction(name: str, rest: str) -> Instruction:
    flags: dict[str, str] = {}
    while found := re.match(r"--([\w-]+)=(\S+)\s+", rest):
        flags[found[1]] = found[2]
        rest = rest[found.end() :]
    return Instruction(name, flags, rest)


def _join_lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [line.strip() for line in joined.splitlines() if line.strip()]
