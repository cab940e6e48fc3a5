"""Times as people say them."""

from __future__ import annotations

from datetime import datetime


def span(seconds: float) -> str:
    """A length of time in its two largest units: "850 ms", "3 s", "4m 12s", "2h 5m", "3d 4h"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 >= 0.05 else f"{seconds:.0f} s"
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def from_now(moment: datetime | None, now: datetime) -> str:
    """ "in 4m 12s", "3 s ago", "now"; "–" for none."""
    if moment is None:
        return "–"
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 0.5:
        return "now"
    whole = float(round(abs(seconds)))
    return f"in {span(whole)}" if seconds > 0 else f"{span(whole)} ago"


def between(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return "–"
    return span(max((end - start).total_seconds(), 0.0))


def clock_time(moment: datetime | None) -> str:
    """In this machine's zone, with its offset: nobody has to guess."""
    if moment is None:
        return "–"
    return moment.astimezone().isoformat(sep=" ", timespec="milliseconds")
