"""Draws the results as PNG files. Runs in the environment of the peers: `python -m bench.peers.plots JSON FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from bench.peers.summary import OURS, best_rounds

OWN_COLOR, PEER_COLOR, SECOND_COLOR = "#c2410c", "#64748b", "#cbd5e1"


def bars(axes: Any, document: dict[str, Any], scenario: str, title: str, unit: str) -> None:
    """One horizontal bar per system, best first."""
    best = best_rounds(document["results"], scenario)
    names = [document["systems"][name]["title"] for name in best]
    values = [found.result["per_second"] for found in best.values()]
    colors = [OWN_COLOR if name == OURS else PEER_COLOR for name in best]
    axes.barh(names, values, color=colors)
    axes.bar_label(axes.containers[0], labels=[f" {value:,.0f}" for value in values], fontsize=8)
    axes.set(title=title, xlabel=unit)
    axes.margins(x=0.18)
    finish(axes)


def lateness(axes: Any, document: dict[str, Any]) -> None:
    best = best_rounds(document["results"], "S4")
    names = [document["systems"][name]["title"] for name in best]
    for field, color, label in (("p99_ms", SECOND_COLOR, "p99"), ("p50_ms", None, "p50")):
        values = [found.result[field] for found in best.values()]
        colors = color or [OWN_COLOR if name == OURS else PEER_COLOR for name in best]
        axes.barh(names, values, color=colors, label=label)
    axes.set_xscale("log")
    for row, found in enumerate(best.values()):
        text = f" {found.result['p50_ms']:.1f} / {found.result['p99_ms']:.1f}"
        axes.text(found.result["p99_ms"], row, text, va="center", fontsize=8)
    axes.set(title="S4: lateness, p50 (dark) and p99 (light)", xlabel="ms, logarithmic")
    axes.margins(x=0.25)
    finish(axes)


def finish(axes: Any) -> None:
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def draw(document: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plots = {
        "peers-executions.png": [
            ("S1", "S1: 10,000 one-shots at one instant", "executions/s"),
            ("S2", "S2: 10,000 jobs on * * * * *", "executions/s"),
            ("S5-1", "S5: 20,000 ready jobs, one worker process", "executions/s"),
            ("S5-2", "S5: 20,000 ready jobs, two worker processes", "executions/s"),
        ],
        "peers-sends.png": [
            ("S3-single", "S3: one awaited call at a time", "sends/s"),
            ("S3-bulk", "S3: calls of 1,000", "sends/s"),
        ],
    }
    for name, panels in plots.items():
        rows = (len(panels) + 1) // 2
        figure, grid = plt.subplots(rows, 2, figsize=(11, 3.4 * rows), squeeze=False, layout="constrained")
        for axes, panel in zip(grid.flat, panels, strict=True):
            bars(axes, document, *panel)
        figure.savefig(folder / name, dpi=110)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    lateness(axes, document)
    figure.savefig(folder / "peers-lateness.png", dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
