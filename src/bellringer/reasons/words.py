"""How reasons are put into words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any

from bellringer.durations import format_duration
from bellringer.reasons.facts import LONGEST, MOST_AHEAD, Member, Reason


def shown(moment: datetime) -> str:
    """An instant in UTC; with seconds only where there are some."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M}{f':{utc.second:02}' if utc.second else ''}Z"


def holds(code: str, text: str, fix: str = "") -> Reason:
    return Reason(code, holds=True, text=text, fix=fix)


def tells(code: str, text: str, fix: str = "") -> Reason:
    return Reason(code, holds=False, text=text, fix=fix)


def fine(code: str, text: str) -> Reason:
    return Reason(code, holds="ok", text=text)


def ordered(found: Sequence[Reason]) -> list[Reason]:
    """What is in the way, then what only tells, then the checks that are fine."""
    return sorted(found, key=lambda reason: (reason.holds is not True, reason.holds == "ok"))


def paused(job: Member, now: datetime) -> Reason:
    fix = f"bellringer jobs resume {quote(job.name)}"
    pause = job.pause
    if pause is None:  # it was resumed between two looks
        return holds("job_paused", "it was held by a pause of its job", fix)
    why = f" ({short(pause.why)})" if pause.why else ""
    until = f"until {shown(pause.until)}" if pause.until else "until resumed"
    return holds("job_paused", f"paused by {pause.by or 'somebody'} {from_now(pause.at, now)}{why}, {until}", fix)


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def before_it(ahead: int) -> str:
    return f"{ahead:,} or more runs" if ahead >= MOST_AHEAD else counted(ahead, "run")


def from_now(moment: datetime, now: datetime) -> str:
    if abs(moment - now) < timedelta(seconds=1):
        return "now"
    length = format_duration(rounded(abs(moment - now)))
    return f"in {length}" if moment > now else f"{length} ago"


def rounded(length: timedelta) -> timedelta:
    """To about two units."""
    step = timedelta(seconds=1)
    for size, unit in ((timedelta(hours=1), timedelta(minutes=1)), (timedelta(days=1), timedelta(hours=1))):
        step = unit if length >= size else step
    return max(length, timedelta(0)) // step * step


def told_error(error: Any) -> str:
    """An error in one line."""
    if not isinstance(error, dict):
        return ""
    told = ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))
    reason = "" if error.get("reason") == error.get("message") else str(error.get("reason") or "")
    return short("; ".join(part for part in (told, reason) if part))


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[:LONGEST] + "…"
