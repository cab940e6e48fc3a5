"""The life of one run: what schedulers, the database and workers do, in the order of time."""

from __future__ import annotations

from typing import Final

from tools.diagrams.svg import Drawing

LANES: Final = (("scheduler", 92), ("PostgreSQL", 212), ("worker", 332))
LANE_HEIGHT: Final = 92


def draw_run_life() -> Drawing:
    drawing = Drawing(
        1000,
        470,
        "Life of a run",
        "A scheduler finds a due cohort and inserts one run per member. At its time a worker claims the run, executes"
        " the handler, and settles: the run has succeeded, is retried later, or is dead.",
    )
    for name, y in LANES:
        drawing.panel(20, y - LANE_HEIGHT / 2, 960, LANE_HEIGHT, "", kind="panel")
        drawing.text(34, y, name, kind="title", anchor="start")
    scheduler, database, worker = (y for _, y in LANES)
    _step(drawing, 1, 130, scheduler, 142, "find due cohorts", "up to 2 s ahead")
    _step(drawing, 2, 290, scheduler, 132, "tick", "fence, insert, move")
    drawing.arrow((272, scheduler), (288, scheduler))
    _step(drawing, 3, 290, database, 132, "runs + queue", "one row each", kind="box")
    drawing.arrow((356, scheduler + 30), (356, database - 32), kind="strong")
    drawing.line((466, 34), (466, 400), dashed=True)
    drawing.text(466, 24, "scheduled time", kind="small")
    _step(drawing, 4, 486, worker, 112, "claim", "in batches")
    drawing.arrow((424, database), (542, database), (542, worker - 32), kind="strong")
    _step(drawing, 5, 618, worker, 128, "handler", "renews its lease")
    drawing.arrow((598, worker), (616, worker))
    _step(drawing, 6, 766, worker, 112, "settle", "in batches")
    drawing.arrow((746, worker), (764, worker))
    drawing.arrow((822, worker - 30), (822, database + 32), kind="strong")
    _step(drawing, 7, 748, database, 148, "attempt recorded", "queue row removed", kind="box")
    drawing.arrow(
        (748, database - 12),
        (690, database - 12),
        (690, database + 60),
        (560, database + 60),
        (560, worker - 32),
        dashed=True,
    )
    drawing.text(684, database - 24, "failed: retry later", kind="small", anchor="end")
    for x, name, kind in ((606, "succeeded", "good"), (736, "retrying", "accent"), (866, "dead letter", "bad")):
        drawing.box(x, 408, 112, 36, name, kind=kind)
    drawing.line((822, worker + 30), (822, 392))
    for x in (662, 792, 922):
        drawing.arrow((822, 392), (x, 392), (x, 406))
    drawing.lines(
        34,
        408,
        "If the worker is lost, a scheduler settles its attempts as lost and the runs",
        "continue elsewhere, with the same id and a higher attempt number.",
        kind="small",
    )
    return drawing


def _step(drawing: Drawing, number: int, x: float, y: float, width: float, *lines: str, kind: str = "accent") -> None:
    drawing.box(x, y - 30, width, 60, *lines, kind=kind)
    drawing.number(x + 2, y - 30, number)
