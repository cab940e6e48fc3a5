"""The reference of event kinds, from the enumeration and its comments."""

from __future__ import annotations

import ast
import re

from bellringer.store.events import EVENTS_WITHOUT_RUN, EventKind
from tools.reference.markdown import SOURCE, code, page, table

INTRODUCTION = (
    "Events are recorded once each. They appear in `bellringer events list`, `GET /api/v1/events`, the console,"
    " webhooks and notifications. See [events and webhooks](../events.md)."
)


def render_events() -> str:
    """Returns the page with one row per kind of event."""
    meanings = event_meanings()
    rows = [
        (code(kind.value), "job or task" if kind in EVENTS_WITHOUT_RUN else "run", meanings[kind.value])
        for kind in EventKind
    ]
    return page("Events", INTRODUCTION, table(("kind", "about", "meaning"), rows))


def event_meanings() -> dict[str, str]:
    """Returns the comment of each member of the enumeration."""
    text = (SOURCE / "store" / "events.py").read_text()
    lines = text.splitlines()
    kinds = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == "EventKind")
    found = {}
    for member in kinds.body:
        if isinstance(member, ast.Assign) and isinstance(member.value, ast.Constant):
            comment = re.search(r"# (.*)$", lines[member.lineno - 1])
            found[str(member.value.value)] = comment[1] if comment else ""
    return found
