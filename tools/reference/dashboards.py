"""The reference of dashboard panels, from the code that generates the dashboards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tools.dashboards.__main__ import DASHBOARDS
from tools.dashboards.grafana import Dashboard, Panel
from tools.reference.markdown import page, table

INTRODUCTION: Final = """\
The panels of the dashboards in `deploy/grafana/`, row by row. [Dashboards](../dashboards.md) explains how to install
and read them. The last column says at which values a panel changes its color or draws a line; names of alerts lead to
the [runbook](../runbook.md)."""
COLUMNS: Final = ("panel", "shows", "when to worry")
ALERT: Final = re.compile(r"\bBellringer[A-Z][A-Za-z]+\b")
FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "percentunit": lambda value: f"{value * 100:g} %",
    "s": lambda value: f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms",
}


def render_dashboards() -> str:
    """Returns the page with one section per dashboard and one table per row of it."""
    return page("Dashboard panels", INTRODUCTION, *(part for board in DASHBOARDS for part in _render(board)))


def _render(dashboard: Dashboard) -> list[str]:
    name = dashboard.title.rpartition(" / ")[2]
    parts = [f"## {name}\n\n{dashboard.description}"]
    for section in dashboard.sections:
        rows = [(panel.title, _link_alerts(panel.description), worrying_values(panel)) for panel in section.panels]
        parts.append(f"### {name}: {section.title}\n\n{table(COLUMNS, rows)}")
    return parts


def worrying_values(panel: Panel) -> str:
    """Returns the thresholds of a panel, such as "orange from 70 %, red from 90 %"."""
    colors = ["orange", "red"][-len(panel.limits) :] if panel.limits else []
    if panel.higher_is_better:
        colors.reverse()
    written = map(FORMATS.get(panel.unit, "{:g}".format), panel.limits)
    side = "below" if panel.higher_is_better else "from"
    return ", ".join(f"{color} {side} {value}" for color, value in zip(colors, written, strict=True)) or "–"


def _link_alerts(description: str) -> str:
    return ALERT.sub(lambda alert: f"[{alert[0]}](../runbook.md#{alert[0].lower()})", description)
