"""The reference of tables and SQL functions, from the comments above them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tools.reference.markdown import SOURCE, page, table

INTRODUCTION: Final = (
    "Tables and functions of the schema `bellringer`. They are internal: read them to understand the system or to"
    " debug, and use the API, the CLI or the SDK to change data."
)
FUNCTIONS: Final = SOURCE / "store" / "functions"
_COMMENTED: Final = r"^(?P<comment>(?:--[^\n]*\n)*)"
_PARAMETERS: Final = r"(?P<parameters>(?:[^()]|\([^()]*\))*)"  # with types such as numeric(10, 2)
_NAMED: Final = rf"create or replace function (?:bellringer\.)?(?P<name>\w+)\s*\({_PARAMETERS}\)"
TABLE: Final = re.compile(_COMMENTED + r"create table (?:if not exists )?(?:bellringer\.)?(?P<name>\w+) ", re.MULTILINE)
FUNCTION: Final = re.compile(
    _COMMENTED + r"(?:do \$\$\nbegin\n  execute format\('(?=[^;]*%L))?" + _NAMED, re.MULTILINE | re.IGNORECASE
)
DESCRIBED: Final = re.compile(r"^\s+\('(?P<name>\w+)', '(?P<comment>[^']*)'\)", re.MULTILINE)


class SqlObject(NamedTuple):
    """A table or a function, with the comment above it."""

    name: str
    comment: str
    file: Path


def render_database() -> str:
    """Returns the page with all tables, and functions by folder."""
    folders = sorted({file.parent for file in FUNCTIONS.rglob("*.sql")})
    return page("Tables and SQL functions", INTRODUCTION, _tables(), *(_functions(folder) for folder in folders))


def tables() -> Iterator[SqlObject]:
    """Yields all tables; a description that `table_comments.sql` writes comes before the comment of the migration."""
    file = FUNCTIONS / "applied_last" / "table_comments.sql"
    described = {found["name"]: found["comment"] for found in DESCRIBED.finditer(file.read_text())}
    for file in sorted((SOURCE / "store" / "schema").glob("*.sql")):
        for found in TABLE.finditer(file.read_text()):
            text = f"{described.get(found['name'], '')} {_comment(found['comment'])}".strip()
            yield SqlObject(found["name"], text, file)


def functions() -> Iterator[SqlObject]:
    """Yields all functions with the names of their parameters."""
    for file in sorted(FUNCTIONS.rglob("*.sql")):
        for found in FUNCTION.finditer(file.read_text()):
            names = ", ".join(_parameters(found["parameters"]))
            yield SqlObject(f"{found['name']}({names})", _comment(found["comment"]), file)


def _tables() -> str:
    rows = [(f"`{found.name}`", found.comment, found.file.name) for found in tables()]
    return "## Tables\n\n" + table(("table", "content", "created by"), rows)


def _functions(folder: Path) -> str:
    rows = [(f"`{found.name}`", found.comment, found.file.name) for found in functions() if found.file.parent == folder]
    if not rows:
        return ""
    return f"## Functions: {folder.name.replace('_', ' ')}\n\n" + table(("function", "guarantee", "file"), rows)


def _parameters(text: str) -> list[str]:
    """Returns the names of the parameters: the first word of each part, before its type."""
    parts = re.sub(r"\([^()]*\)|default [^,]*", "", text, flags=re.IGNORECASE).split(",")
    words = [part.removeprefix("variadic ").split() for part in (text.strip() for text in parts)]
    return [named[0] for named in words if len(named) > 1 and named[0] not in {"out", "inout"}]


def _comment(text: str) -> str:
    return " ".join(line.removeprefix("--").strip() for line in text.splitlines())
