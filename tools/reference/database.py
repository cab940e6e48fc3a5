"""The reference of tables and SQL functions, from the comments above them."""

from __future__ import annotations

import re
from pathlib import Path

from tools.reference.markdown import SOURCE, page, table

INTRODUCTION = (
    "Tables and functions of the schema `bellringer`. They are internal: read them to understand the system or to"
    " debug, and use the API, the CLI or the SDK to change data."
)
_COMMENTED = r"(?P<comment>(?:^--[^\n]*\n)*)"
TABLE = re.compile(_COMMENTED + r"create table (?:if not exists )?(?:bellringer\.)?(?P<name>\w+)", re.MULTILINE)
FUNCTION = re.compile(
    _COMMENTED + r"create or replace function (?:bellringer\.)?(?P<name>\w+)\s*\((?P<parameters>[^$]*?)\)\s*returns",
    re.MULTILINE | re.IGNORECASE,
)


def render_database() -> str:
    """Returns the page with all tables, and functions by folder."""
    folders = sorted({file.parent for file in (SOURCE / "store" / "functions").rglob("*.sql")})
    return page("Tables and SQL functions", INTRODUCTION, _tables(), *(_functions(folder) for folder in folders))


def _tables() -> str:
    rows = []
    for file in sorted((SOURCE / "store" / "schema").glob("*.sql")):
        text = file.read_text()
        rows += [(f"`{found['name']}`", _comment(found["comment"]), file.name) for found in TABLE.finditer(text)]
    return "## Tables\n\n" + table(("table", "content", "created by"), rows)


def _functions(folder: Path) -> str:
    rows = []
    for file in sorted(folder.glob("*.sql")):
        for found in FUNCTION.finditer(file.read_text()):
            names = re.findall(r"\b(p_\w+)", re.sub(r"default [^,]*", "", found["parameters"], flags=re.IGNORECASE))
            rows.append((f"`{found['name']}({', '.join(names)})`", _comment(found["comment"]), file.name))
    return f"## Functions: {folder.name.replace('_', ' ')}\n\n" + table(("function", "guarantee", "file"), rows)


def _comment(text: str) -> str:
    return " ".join(line.removeprefix("--").strip() for line in text.splitlines())
