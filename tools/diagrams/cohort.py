"""The idea of cohorts: one row moves, however many jobs fire."""

from __future__ import annotations

from tools.diagrams.svg import Drawing


def draw_cohort() -> Drawing:
    drawing = Drawing(
        880,
        400,
        "Cohorts",
        "With one row per job, ten thousand due jobs are ten thousand reads, inserts and updates. With a cohort they"
        " are one insert … select over the members and one update of next_at.",
    )
    drawing.panel(20, 20, 400, 360, "One row per job")
    for number in range(4):
        y = 62 + number * 62
        name = f"job {number + 1}" if number < 3 else "job 10,000"
        if number == 3:
            drawing.text(104, y - 2, "⋮", kind="title")
            y += 22
        drawing.box(40, y, 128, 40, name, "next_at 00:00")
        drawing.arrow((168, y + 14), (288, y + 14))
        drawing.arrow((288, y + 30), (170, y + 30), dashed=True)
        drawing.text(228, y + 4, "read, insert", kind="small")
        drawing.text(228, y + 41, "write next_at", kind="small")
        drawing.box(290, y, 110, 40, "run")
    drawing.lines(
        40,
        344,
        "10,000 reads, 10,000 inserts, 10,000 updates",
        "of the hottest rows; the last job waits for all",
        kind="small",
    )

    drawing.panel(460, 20, 400, 360, "Cohort: same shard, same schedule")
    drawing.box(480, 62, 150, 60, "cohort", "0 0 * * *", "next_at 00:00", kind="accent")
    drawing.panel(480, 152, 122, 148, "members", kind="box")
    for number, name in enumerate(("job 1", "job 2", "job 3", "⋮", "job 10,000")):
        drawing.text(541, 192 + number * 22, name, kind="small")
    drawing.line((541, 122), (541, 152))
    drawing.panel(714, 152, 130, 148, "runs", kind="box")
    for number, name in enumerate(("run of job 1", "run of job 2", "run of job 3", "⋮", "run of job 10,000")):
        drawing.text(779, 192 + number * 22, name, kind="small")
    drawing.arrow((602, 226), (712, 226), kind="strong")
    drawing.text(657, 212, "insert … select", kind="small")
    drawing.text(657, 243, "one statement", kind="small")
    drawing.arrow((630, 82), (676, 82), (676, 102), (632, 102), kind="strong")
    drawing.lines(686, 86, "update next_at:", "one row", kind="small")
    drawing.lines(
        480, 330, "one insert and one update in one transaction;", "the next instant is computed once", kind="small"
    )
    return drawing
