"""Leases and fencing tokens: a scheduler that lost its lease cannot write."""

from __future__ import annotations

from tools.diagrams.svg import Drawing

FIRST, DATABASE, SECOND = 150, 440, 730
TOP, BOTTOM = 84, 520


def draw_leases() -> Drawing:
    drawing = Drawing(
        880,
        560,
        "Lease and fencing token",
        "Scheduler A holds shard 5 with token 7 and is stopped. Its lease expires. Scheduler B takes the shard with"
        " token 8 and fires. When A continues, the database rejects its write, because token 7 is not the current one.",
    )
    for x, *lines in ((FIRST, "scheduler A"), (DATABASE, "PostgreSQL", "lease of shard 5"), (SECOND, "scheduler B")):
        drawing.box(x - 85, 24, 170, 50, *lines, kind="accent" if x != DATABASE else "box")
        drawing.line((x, TOP - 10), (x, BOTTOM), dashed=True)

    _message(drawing, 1, 112, FIRST, DATABASE, "take: holder A, token 7")
    drawing.box(DATABASE - 62, 128, 124, 26, "A · token 7", kind="accent")
    _message(drawing, 2, 184, FIRST, DATABASE, "renew every second")
    drawing.box(FIRST - 75, 206, 150, 196, "stopped", "SIGSTOP, long pause,", "lost network", kind="calm")
    drawing.box(DATABASE - 62, 236, 124, 26, "expired", kind="bad")
    _message(drawing, 3, 290, SECOND, DATABASE, "take: holder B, token 8")
    drawing.box(DATABASE - 62, 306, 124, 26, "B · token 8", kind="accent")
    _message(drawing, 4, 362, SECOND, DATABASE, "tick with token 8", kind="strong")
    drawing.text((SECOND + DATABASE) / 2, 378, "accepted: runs are inserted", kind="small")
    _message(drawing, 5, 430, FIRST, DATABASE, "tick with token 7", kind="failed")
    drawing.text((FIRST + DATABASE) / 2, 446, "rejected: no row has holder A, token 7", kind="small")
    drawing.arrow((DATABASE, 476), (FIRST + 4, 476), kind="failed", dashed=True)
    drawing.text((FIRST + DATABASE) / 2, 492, "A knows that it lost the shard", kind="small")
    drawing.text(
        440,
        540,
        "The token is checked in the transaction that writes; clocks of the schedulers do not matter.",
        kind="small",
    )
    return drawing


def _message(
    drawing: Drawing, number: int, y: float, start: float, end: float, text: str, *, kind: str = "line"
) -> None:
    drawing.arrow((start, y), (end - 4 if end > start else end + 4, y), kind=kind)
    drawing.number(start, y, number)
    drawing.text((start + end) / 2, y - 13, text)
