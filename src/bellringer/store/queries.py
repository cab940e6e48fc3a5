"""Loads named statements from a `.sql` file next to the modules: `-- name: claim` begins the statement `claim`."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from types import SimpleNamespace

from bellringer.store.sql_names import expand

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def load(noun: str, package: str = "bellringer.store") -> SimpleNamespace:
    """Returns the statements of `<noun>.sql` as attributes."""
    text = resources.files(package).joinpath(f"{noun}.sql").read_text()
    parts = _NAME.split(expand(text))[1:]
    return SimpleNamespace(**{name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)})
