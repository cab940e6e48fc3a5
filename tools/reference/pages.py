"""The table of reference pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tools.reference.command_line import render_commands
from tools.reference.cron_grammar import render_cron
from tools.reference.dashboards import render_dashboards
from tools.reference.database import render_database
from tools.reference.error_codes import render_errors
from tools.reference.events import render_events
from tools.reference.metrics import render_metrics
from tools.reference.rest import render_objects, render_rest
from tools.reference.sdk import render_sdk
from tools.reference.settings import render_settings

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": render_commands,
    "cron.md": render_cron,
    "dashboards.md": render_dashboards,
    "database.md": render_database,
    "errors.md": render_errors,
    "events.md": render_events,
    "metrics.md": render_metrics,
    "rest-objects.md": render_objects,
    "rest.md": render_rest,
    "sdk.md": render_sdk,
    "settings.md": render_settings,
}


def outdated() -> list[str]:
    """Returns the names of the pages whose text differs from what the code says now."""
    return [
        name
        for name, render in PAGES.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text() != render()
    ]
