"""The reference of the settings, from the class that holds them and its comments."""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from typing import Any

import msgspec

from bellringer.config import CONFIG_FILE, ENVIRONMENT_PREFIX, Config, is_secret_setting
from bellringer.durations import format_duration
from tools.reference.markdown import SOURCE, code, page, table

INTRODUCTION = f"""A process reads its settings once, when it starts. In increasing priority: the defaults,
`{CONFIG_FILE}` in the current folder, environment variables, flags of the command line. The variable of `pool_size` is
`{ENVIRONMENT_PREFIX}POOL_SIZE`. Durations are written like `90s`, `1h30m` or `30d`; lists in variables are separated by
commas. `bellringer settings` shows the values of a running server and where each comes from."""


def render_settings() -> str:
    """Returns the page with one row per setting."""
    comments = setting_comments()
    rows = [
        (code(field.name), code(_default(field.default)) or "–", _secret(field.name) + comments[field.name])
        for field in msgspec.structs.fields(Config)
    ]
    return page("Settings", INTRODUCTION, table(("setting", "default", "meaning"), rows))


def setting_comments() -> dict[str, str]:
    """Returns the comment at the end of each field's line, or on the lines above it; empty without a comment."""
    text = (SOURCE / "config.py").read_text()
    lines = text.splitlines()
    config = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == "Config")
    found = {}
    for field in config.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            at_end = re.search(r"\s# (?!type:|noqa)(.*)$", lines[(field.end_lineno or field.lineno) - 1])
            found[field.target.id] = at_end[1] if at_end else _above(lines, field.lineno - 2)
    return found


def _above(lines: list[str], index: int) -> str:
    comment: list[str] = []
    while lines[index].strip().startswith("# "):
        comment.insert(0, lines[index].strip().removeprefix("# "))
        index -= 1
    return " ".join(comment)


def _secret(name: str) -> str:
    return "Secret. " if is_secret_setting(name) else ""


def _default(value: Any) -> str:
    if value is None or value is msgspec.NODEFAULT or value == ():
        return ""
    if isinstance(value, timedelta):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
