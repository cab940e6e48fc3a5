"""Helpers that phrase reasons: instants, durations, counts, errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any
from zoneinfo import ZoneInfo

from bellringer.durations import format_duration
from bellringer.explain.facts import MAX_QUOTE_LENGTH, MAX_RUNS_AHEAD_COUNTED, ExplainReason, JobFacts, RestoreFacts


def format_instant(moment: datetime) -> str:
    """Formats an instant in UTC. Seconds are omitted if they are zero."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M}{f':{utc.second:02}' if utc.second else ''}Z"


def format_in_zone(moment: datetime, zone: str) -> str:
    """Formats an instant in UTC, and in another time zone next to it."""
    if zone == "UTC":
        return format_instant(moment)
    local = moment.astimezone(ZoneInfo(zone))
    return f"{format_instant(moment)} ({local:%Y-%m-%d %H:%M}{f':{local.second:02}' if local.second else ''} {zone})"


def blocking_reason(code: str, text: str, fix: str = "") -> ExplainReason:
    return ExplainReason(code, holds=True, text=text, fix=fix)


def info_reason(code: str, text: str, fix: str = "") -> ExplainReason:
    return ExplainReason(code, holds=False, text=text, fix=fix)


def restored_reason(restore: RestoreFacts) -> ExplainReason:
    """Says that a run may have been executed by a database that was lost and restored from a backup."""
    return info_reason(
        "restored",
        f"the run may have run before: the database was restored at {format_instant(restore.finished_at)} to its state "
        f"of {format_instant(restore.recovered_to)}, and executions between these times are not recorded",
    )


def passed_check(code: str, text: str) -> ExplainReason:
    return ExplainReason(code, holds="ok", text=text)


def sort_reasons(found: Sequence[ExplainReason]) -> list[ExplainReason]:
    """Sorts blocking reasons first, then information, then passed checks."""
    return sorted(found, key=lambda reason: (reason.holds is not True, reason.holds == "ok"))


def pause_reason(job: JobFacts, now: datetime) -> ExplainReason:
    fix = f"bellringer jobs resume {quote(job.name)}"
    pause = job.pause
    if pause is None:  # resumed between two reads
        return blocking_reason("job_paused", "the job was paused until just now", fix)
    why = f" ({shorten(pause.why)})" if pause.why else ""
    until = f"until {format_instant(pause.until)}" if pause.until else "until resumed"
    return blocking_reason(
        "job_paused",
        f"the job was paused by {pause.by or 'an unknown user'} {format_relative(pause.at, now)}{why}, {until}",
        fix,
    )


def format_count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_ahead(ahead: int) -> str:
    return f"{ahead:,} or more runs" if ahead >= MAX_RUNS_AHEAD_COUNTED else format_count(ahead, "run")


def format_relative(moment: datetime, now: datetime) -> str:
    if abs(moment - now) < timedelta(seconds=1):
        return "now"
    length = format_duration(round_duration(abs(moment - now)))
    return f"in {length}" if moment > now else f"{length} ago"


def round_duration(length: timedelta) -> timedelta:
    """Rounds down to about two units."""
    step = timedelta(seconds=1)
    for size, unit in ((timedelta(hours=1), timedelta(minutes=1)), (timedelta(days=1), timedelta(hours=1))):
        step = unit if length >= size else step
    return max(length, timedelta(0)) // step * step


def format_error(error: Any) -> str:
    """Formats an error as one line."""
    if not isinstance(error, dict):
        return ""
    shown = ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))
    reason = "" if error.get("reason") == error.get("message") else str(error.get("reason") or "")
    return shorten("; ".join(part for part in (shown, reason) if part))


def shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTE_LENGTH else line[:MAX_QUOTE_LENGTH] + "…"
