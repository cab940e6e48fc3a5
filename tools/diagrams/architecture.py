"""The processes around PostgreSQL."""

from __future__ import annotations

from tools.diagrams.svg import Drawing


def draw_architecture() -> Drawing:
    drawing = Drawing(
        890,
        500,
        "Processes around PostgreSQL",
        "Clients call API servers. API servers, schedulers and workers read and write PostgreSQL and never call each"
        " other. Schedulers insert runs that are due; workers claim, execute and settle them.",
    )
    for x, width, name in (
        (40, 150, "Python SDK"),
        (210, 150, "command line"),
        (380, 150, "web console"),
        (550, 150, "any HTTP client"),
    ):
        drawing.box(x, 24, width, 36, name)
        drawing.arrow((x + width / 2, 60), (x + width / 2, 94))
    drawing.box(40, 96, 660, 46, "API servers", "any number; a request is one transaction", kind="accent")
    drawing.arrow((370, 142), (370, 190), both=True)
    drawing.text(380, 166, "create jobs, send runs, read state", kind="small", anchor="start")

    drawing.panel(40, 192, 660, 138, "PostgreSQL", kind="panel")
    drawing.box(64, 232, 168, 74, "jobs", "cohorts, timers")
    drawing.box(286, 232, 168, 74, "runs", "queue")
    drawing.box(508, 232, 168, 74, "attempts", "dead letters, logs")
    drawing.arrow((232, 269), (284, 269), kind="strong")
    drawing.arrow((454, 269), (506, 269), kind="strong")

    drawing.box(
        40,
        394,
        310,
        76,
        "schedulers",
        "each holds some of the 64 shards,",
        "by a lease with a fencing token",
        kind="accent",
    )
    drawing.box(
        390, 394, 310, 76, "workers", "event loop, threads or processes;", "any number, in pools", kind="accent"
    )
    drawing.arrow((195, 394), (195, 332), both=True)
    drawing.text(204, 363, "insert runs that are due", kind="small", anchor="start")
    drawing.arrow((545, 394), (545, 332), both=True)
    drawing.text(554, 363, "claim, execute, settle", kind="small", anchor="start")

    drawing.lines(730, 108, "Optional", kind="title")
    for y, name, use in (
        (130, "Kafka", "hands runs to workers"),
        (210, "Redis", "shared cache"),
        (290, "etcd", "grants the leases"),
    ):
        drawing.box(720, y, 150, 56, name, use, kind="calm")
    drawing.lines(
        724, 394, "Processes never", "call each other:", "every step reads", "rows and writes", "rows.", kind="small"
    )
    return drawing
