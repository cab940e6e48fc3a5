"""The part of Grafana's dashboard model that our dashboards use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

SCHEMA_VERSION: Final = 39  # Grafana 10.4 and newer read it
GRID_WIDTH: Final = 24
ROW_HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
# Other programs export metrics of their processes too. Each process of Bellringer has background loops.
OF_BELLRINGER: Final = "and on (job, instance) bellringer_loop_age_seconds"
# Colors of thresholds: a value below the first limit is green.
COLORS: Final = ("green", "orange", "red")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""
    instant: bool = False
    heatmap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `limits` are the values at which it turns orange and red."""

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    limits: Sequence[float] = ()
    floor: float | None = 0
    ceiling: float | None = None
    stacked: bool = False
    higher_is_better: bool = False

    @property
    def height(self) -> int:
        return STAT_HEIGHT if self.kind == "stat" else ROW_HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A row of the dashboard with its panels."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable whose values Prometheus knows, such as the names of pools."""

    name: str
    label: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard; `uid` is also the name of its file."""

    uid: str
    title: str
    description: str
    sections: Sequence[Section]
    variables: Sequence[Variable] = field(default_factory=tuple)

    def render(self) -> dict[str, Any]:
        """Returns the document that Grafana imports."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["bellringer"],
            "timezone": "browser",
            "editable": True,
            "graphTooltip": 1,  # all panels show the same instant
            "refresh": "30s",
            "schemaVersion": SCHEMA_VERSION,
            "time": {"from": "now-3h", "to": "now"},
            "links": [_link_to_others()],
            "annotations": {"list": [_deployments()]},
            "templating": {"list": [_datasource_variable(), *map(_render_variable, self.variables)]},
            "panels": _render_sections(self.sections),
        }


def _render_sections(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Places panels from left to right; a panel that does not fit begins a new line."""
    rendered: list[dict[str, Any]] = []
    top = 0
    for section in sections:
        rendered.append(_render_row(section.title, len(rendered) + 1, top))
        top, left, line_height = top + 1, 0, 0
        for panel in section.panels:
            if left + panel.width > GRID_WIDTH:
                top, left, line_height = top + line_height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            rendered.append(_render_panel(panel, len(rendered) + 1, place))
            left, line_height = left + panel.width, max(line_height, panel.height)
        top += line_height
    return rendered


def _render_row(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _render_panel(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": dict(place),
        "targets": [_render_query(query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _render_defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _render_query(query: Query, letter: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": query.instant,
        "range": not query.instant,
        "format": "heatmap" if query.heatmap else "table" if query.instant else "time_series",
    }


def _render_defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": _render_thresholds(panel)}
    if panel.floor is not None:
        defaults["min"] = panel.floor
    if panel.ceiling is not None:
        defaults["max"] = panel.ceiling
    if panel.kind in {"stat", "gauge", "bargauge"}:
        defaults["color"] = {"mode": "thresholds"}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.limits else "off"},
        }
    return defaults


def _render_thresholds(panel: Panel) -> dict[str, Any]:
    # With one limit there is nothing between good and bad.
    colors: tuple[str, ...] = COLORS if len(panel.limits) != 1 else (COLORS[0], COLORS[2])
    if panel.higher_is_better:
        colors = tuple(reversed(colors))
    steps: list[dict[str, Any]] = [{"color": colors[0] if panel.limits else "green", "value": None}]
    steps += [{"color": color, "value": limit} for color, limit in zip(colors[1:], panel.limits, strict=False)]
    return {"mode": "absolute", "steps": steps}


_REDUCE: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": _REDUCE, "colorMode": "background", "graphMode": "area", "textMode": "auto"},
    "gauge": {"reduceOptions": _REDUCE, "showThresholdMarkers": True},
    "bargauge": {"reduceOptions": _REDUCE, "orientation": "horizontal", "displayMode": "gradient"},
    "table": {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]},
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"unit": "s"},
        "tooltip": {"mode": "single", "yHistogram": True},
    },
}


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _render_variable(variable: Variable) -> dict[str, Any]:
    expression = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": expression, "refId": "A"},
        "definition": expression,
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    }


def _link_to_others() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Bellringer",
        "tags": ["bellringer"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _deployments() -> dict[str, Any]:
    """Marks the starts of processes, because a change of a graph often begins with a deployment."""
    return {
        "name": "Process starts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": f'changes(process_start_time_seconds{{instance=~"$instance"}}[1m]) > 0 {OF_BELLRINGER}',
        "titleFormat": "{{instance}} started",
    }
