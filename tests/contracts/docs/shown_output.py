"""Compares the output that a page shows with what its commands print."""

from __future__ import annotations

import re

AMOUNT = r"\d+(?:\.\d+)?\s?(?:µs|ms|s|m|h|d)"
DURATIONS = [(re.compile(rf"\b{AMOUNT}(?:\s?{AMOUNT})*(?!\w)(?: ago)?|\bnow\b"), "DURATION")]
VARYING = [
    (re.compile(r"\brun_\w+"), "RUN"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d(?::\d\d(?:\.\d+)?)?"), "TIME"),
    *DURATIONS,
    (re.compile(r"\d[\d,]*(?:\.\d+)?"), "NUMBER"),
]
Patterns = list[tuple[re.Pattern[str], str]]


def find_difference(shown: str, printed: str, varying: Patterns = VARYING) -> str | None:
    """Returns the first shown line that was not printed, after those before it; `…` stands for any text."""
    lines = iter([_normalize(line, varying) for line in printed.splitlines()])
    for line in filter(str.strip, shown.splitlines()):
        pattern = re.compile(".*".join(map(re.escape, _normalize(line, varying).split("…"))))
        if not any(pattern.fullmatch(actual) for actual in lines):
            return line
    return None


def _normalize(line: str, varying: Patterns) -> str:
    for pattern, name in varying:
        line = pattern.sub(name, line)
    return " ".join(line.split())
