"""The screen of `bellringer top`: turns a sample of the cluster into lines of text. Pure, apart from styles."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from bellringer.cli.output import format_seconds, sanitize

if TYPE_CHECKING:
    from bellringer.wire.cluster import Cluster, SchedulerNode
    from bellringer.wire.overview import Overview, TaskTime, Timing
    from bellringer.wire.workers import Pool, TaskItem, WorkerInfo

VIEWS: Final = ("pools", "tasks", "workers", "nodes")
MIN_WIDTH: Final = 40
KEYS: Final = "q quit  p pause  tab view  s sort  r reverse"
FULL_SATURATION: Final = 0.9
SILENT_SECONDS: Final = 10.0
OLD_WAIT_SECONDS: Final = 60.0
MAX_SHOWN_PROBLEMS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSample:
    """One response of the server, at the monotonic time `at`; `fired` counts runs that schedulers have created."""

    at: float
    taken: datetime
    cluster: Cluster
    pools: Sequence[Pool]
    tasks: Sequence[TaskItem]
    workers: Sequence[WorkerInfo]
    overview: Overview

    @property
    def fired(self) -> int:
        return sum(node.fired for node in self.cluster.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    """The view that the user has chosen; `sort` is the index of a column."""

    view: str = "pools"
    sort: int = 0
    reverse: bool = False
    paused: bool = False
    error: str = ""

    def press(self, key: str) -> TopState:
        """Returns the state after a key. Unknown keys change nothing."""
        if key == "p":
            return replace(self, paused=not self.paused)
        if key == "r":
            return replace(self, reverse=not self.reverse)
        if key == "s":
            return replace(self, sort=(self.sort + 1) % len(_TABLES[self.view].columns), reverse=False)
        step = {"\t": 1, "\x1b[Z": -1, "\x1b[C": 1, "\x1b[D": -1}.get(key)
        if step is not None:
            return self._show(VIEWS[(VIEWS.index(self.view) + step) % len(VIEWS)])
        if key.isdecimal() and 1 <= int(key) <= len(VIEWS):
            return self._show(VIEWS[int(key) - 1])
        return self

    def _show(self, view: str) -> TopState:
        return replace(self, view=view, sort=0, reverse=False)


@dataclass(frozen=True, slots=True)
class _Column:
    """`value` sorts, `text` is shown. `width` is a fixed number of cells; 0: what the other columns leave."""

    name: str
    width: int
    value: Callable[[Any], Any]
    text: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class _Table:
    columns: Sequence[_Column]
    rows: Callable[[TopSample], Sequence[Any]]
    tone: Callable[[Any], str]  # the name of a style, or ""


def render(
    sample: TopSample | None, before: TopSample | None, state: TopState, width: int, height: int, *, color: bool
) -> list[str]:
    """Returns the lines of the screen: at most `height`, each at most `width` cells wide."""
    width = max(width, MIN_WIDTH)
    if sample is None:
        waiting = state.error or "waiting for the server …"
        return [_fit(sanitize(line), width) for line in ("bellringer top", waiting, "", KEYS)][:height]
    head = _header(sample, before, state)
    table = _TABLES[state.view]
    rows = _sorted(table, sample, state)
    room = max(height - len(head) - 3, 1)  # without the tabs, the names of the columns and the keys
    lines = [_styled(_fit(line, width), style, color=color) for line, style in head]
    lines.append(_tabs(state, width, color=color))
    lines.append(
        _styled(_row(table, [_title(table, state, n) for n in range(len(table.columns))], width), "head", color=color)
    )
    for row in rows[:room]:
        cells = [column.text(row) for column in table.columns]
        lines.append(_styled(_row(table, cells, width), table.tone(row), color=color))
    more = f"  {len(rows) - room} more" if len(rows) > room else ""
    lines += [""] * (height - len(lines) - 1)
    lines.append(_styled(_fit(KEYS + more, width), "dim", color=color))
    return lines[:height]


def render_plain(sample: TopSample) -> list[str]:
    """Returns all views one below the other, without styles and unbounded, for a pipe or `--once`."""
    lines = [line for line, _ in _header(sample, None, TopState())]
    for view, table in _TABLES.items():
        lines += ["", view.upper()]
        rows = [[column.name for column in table.columns]]
        rows += [[sanitize(column.text(row)) for column in table.columns] for row in table.rows(sample)]
        widths = [max(cell_width(row[n]) for row in rows) for n in range(len(table.columns))]
        lines += ["  ".join(_fit(cell, widths[n]) for n, cell in enumerate(row)).rstrip() for row in rows]
    return lines


# The header


def _header(sample: TopSample, before: TopSample | None, state: TopState) -> list[tuple[str, str]]:
    cluster, overview = sample.cluster, sample.overview
    marks = "  PAUSED" if state.paused else ""
    first = f"bellringer top  {sample.taken:%H:%M:%S} UTC  {sanitize(overview.verdict.text)}{marks}"
    lag = "on time" if not cluster.lag.shards else f"{format_seconds(cluster.lag.firing)} behind"
    silent = f"  {cluster.silent_claims:,} silent claims" if cluster.silent_claims else ""
    slots = sum(pool.slots for pool in sample.pools)
    busy = sum(pool.busy for pool in sample.pools)
    second = (
        f"firing {lag}  shards {cluster.shards.held}/{cluster.shards.total}  nodes {overview.scheduler.nodes}"
        f"  workers {overview.workers.live}  slots {busy}/{slots}{silent}"
    )
    lines = [(first, "bold"), (second, "bad" if cluster.lag.shards or silent else ""), (_rates(sample, before), "")]
    if overview.timing.missed_rate is not None or overview.timing.lateness_p99_ms is not None:
        lines.append((_last_hour(overview.timing), ""))
    for problem in overview.verdict.problems[:MAX_SHOWN_PROBLEMS] if len(overview.verdict.problems) > 1 else ():
        fix = f"  fix: {problem.fix}" if problem.fix else ""
        lines.append((f"! {sanitize(problem.text + fix)}", "bad" if problem.tone == "bad" else "warn"))
    if state.error:
        lines.append((f"! {sanitize(state.error)}", "bad"))
    return lines


def _last_hour(timing: Timing) -> str:
    missed = "" if timing.missed_rate is None else f"missed {timing.missed_rate:.4%}"
    p99 = "" if timing.lateness_p99_ms is None else f"p99 {format_seconds(timing.lateness_p99_ms / 1000)} late"
    return f"1 h: {', '.join(part for part in (missed, p99) if part)}"


def _rates(sample: TopSample, before: TopSample | None) -> str:
    points = sample.overview.series.points
    last = points[-2] if len(points) > 1 else None  # the last whole minute
    fired = ""
    if before is not None and sample.at > before.at:
        fired = f"fired {max(sample.fired - before.fired, 0) / (sample.at - before.at):,.1f}/s  "
    minute = "" if last is None else f"1 min: {last.started:,} started, {last.late:,} late, {last.failed:,} dead"
    return f"{fired}{minute}".strip() or "no runs in the last hour"


def _tabs(state: TopState, width: int, *, color: bool) -> str:
    names = [f"[{n} {view}]" if view == state.view else f" {n} {view} " for n, view in enumerate(VIEWS, start=1)]
    return _styled(_fit("".join(names), width), "bold", color=color)


# Tables


def _seconds(value: float | None) -> str:
    return "–" if value is None else format_seconds(value)


def _saturation(pool: Pool) -> float:
    return pool.busy / pool.slots if pool.slots else 0.0


def _pool_tone(pool: Pool) -> str:
    if pool.paused is not None:
        return "warn"
    if pool.ready and not pool.slots:
        return "bad"
    return "warn" if _saturation(pool) >= FULL_SATURATION or (pool.oldest or 0) > OLD_WAIT_SECONDS else ""


@dataclass(frozen=True, slots=True)
class _TaskRow:
    item: TaskItem
    times: TaskTime | None

    @property
    def failures(self) -> float:
        return self.times.failures / self.times.attempts if self.times and self.times.attempts else 0.0


def _task_rows(sample: TopSample) -> Sequence[_TaskRow]:
    times = {time.task: time for time in sample.overview.tasks.items}
    return [_TaskRow(item, times.get(item.name)) for item in sample.tasks]


def _task_state(row: _TaskRow) -> str:
    pause = row.item.paused
    if pause is None:
        return "–" if row.item.workers else "no worker"
    return "releasing" if pause.resumed_at else "paused"


def _node_state(node: SchedulerNode) -> str:
    if node.age > SILENT_SECONDS:
        return "silent"
    return f"waits: {node.waits_for}" if node.waits_for else "live"


_TABLES: Final[dict[str, _Table]] = {
    "pools": _Table(
        (
            _Column("POOL", 0, lambda p: p.name, lambda p: p.name),
            _Column("READY", 8, lambda p: -p.ready, lambda p: f"{p.ready:,}"),
            _Column("OLDEST", 8, lambda p: -(p.oldest or 0), lambda p: _seconds(p.oldest)),
            _Column("BUSY", 10, lambda p: -p.busy, lambda p: f"{p.busy}/{p.slots}"),
            _Column("FULL", 6, lambda p: -_saturation(p), lambda p: f"{_saturation(p):.0%}" if p.slots else "–"),
            _Column("WORKERS", 8, lambda p: -p.workers, lambda p: str(p.workers)),
            _Column("STATE", 8, lambda p: p.paused is None, lambda p: "paused" if p.paused else "–"),
        ),
        lambda sample: sample.pools,
        _pool_tone,
    ),
    "tasks": _Table(
        (
            _Column("TASK", 0, lambda r: r.item.name, lambda r: r.item.name),
            _Column("READY", 8, lambda r: -r.item.ready, lambda r: f"{r.item.ready:,}"),
            _Column("RETRYING", 8, lambda r: -r.item.retrying, lambda r: f"{r.item.retrying:,}"),
            _Column("RUNNING", 8, lambda r: -r.item.running, lambda r: f"{r.item.running:,}"),
            _Column("FAILED", 7, lambda r: -r.failures, lambda r: f"{r.failures:.1%}" if r.times else "–"),
            _Column("DEAD 1H", 7, lambda r: -r.item.dead, lambda r: f"{r.item.dead:,}"),
            _Column("HELD", 7, lambda r: -r.item.held, lambda r: f"{r.item.held:,}"),
            _Column("STATE", 9, _task_state, _task_state),
        ),
        _task_rows,
        lambda r: "warn" if r.item.paused else "bad" if r.item.dead or (r.item.ready and not r.item.workers) else "",
    ),
    "workers": _Table(
        (
            _Column("WORKER", 0, lambda w: w.name, lambda w: w.name),
            _Column("STATE", 9, lambda w: w.state, lambda w: w.state),
            _Column("BUSY", 9, lambda w: -w.busy, lambda w: f"{w.busy}/{sum(w.pools.values())}"),
            _Column("POOLS", 20, lambda w: sorted(w.pools), lambda w: " ".join(sorted(w.pools))),
            _Column("SEEN", 9, lambda w: -w.age, lambda w: _seconds(w.age)),
            _Column("VERSION", 9, lambda w: w.version, lambda w: w.version),
        ),
        lambda sample: [worker for worker in sample.workers if worker.state in {"live", "draining", "lost"}],
        lambda w: "bad" if w.state == "lost" or (w.state == "live" and w.age > SILENT_SECONDS) else "",
    ),
    "nodes": _Table(
        (
            _Column("NODE", 0, lambda n: n.name, lambda n: n.name),
            _Column("SHARDS", 7, lambda n: -n.shards, lambda n: str(n.shards)),
            _Column("FIRED", 12, lambda n: -n.fired, lambda n: f"{n.fired:,}"),
            _Column("REFUSED", 8, lambda n: -n.refused, lambda n: f"{n.refused:,}"),
            _Column("SEEN", 9, lambda n: -n.age, lambda n: _seconds(n.age)),
            _Column("REGION", 9, lambda n: n.region or "", lambda n: n.region or "–"),
            _Column("STATE", 16, _node_state, _node_state),
        ),
        lambda sample: sample.cluster.nodes,
        lambda n: "" if _node_state(n) == "live" else "bad",
    ),
}


def _sorted(table: _Table, sample: TopSample, state: TopState) -> list[Any]:
    first = table.columns[0].value  # the name decides among equals, so that rows do not jump
    rows = sorted(table.rows(sample), key=first)
    return sorted(rows, key=table.columns[state.sort].value, reverse=state.reverse)


def _title(table: _Table, state: TopState, number: int) -> str:
    name = table.columns[number].name
    return f"{name}{'▲' if state.reverse else '▼'}" if number == state.sort else name


def _row(table: _Table, cells: Sequence[str], width: int) -> str:
    fixed = sum(column.width + 1 for column in table.columns if column.width)
    shown = []
    for column, cell in zip(table.columns, cells, strict=True):
        text = sanitize(cell).replace("\n", " ")
        if column.width:
            shown.append(_fit(text, column.width))
        else:
            shown.append(_fit(text, max(width - fixed, 12)))
    return _fit(" ".join(shown), width)


# Text


def cell_width(text: str) -> int:
    """Returns how many cells of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _fit(text: str, width: int) -> str:
    """Pads or cuts a text to a number of cells."""
    missing = width - cell_width(text)
    if missing >= 0:
        return text + " " * missing
    kept, used = [], 0
    for char in text:
        used += cell_width(char)
        if used > width - 1:
            break
        kept.append(char)
    cut = "".join(kept) + "…"
    return cut + " " * (width - cell_width(cut))


_STYLES: Final = {"bold": "1", "dim": "2", "head": "7", "warn": "33", "bad": "31"}


def _styled(text: str, style: str, *, color: bool) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if color and style else text
