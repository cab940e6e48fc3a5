"""Schedules: cron, recurrence rule, interval, delay and one-shot. All functions are pure; callers pass the time."""

from __future__ import annotations

from bellringer.schedule.cron_ast import DayMatch, Dialect
from bellringer.schedule.cron_schedule import Cron, cron
from bellringer.schedule.dst import DstFold, DstGap
from bellringer.schedule.exclusions import ExcludedFire, Exclusion, excluded_fires, explain_exclusion
from bellringer.schedule.holiday_calendars import DaysOff, HolidayCalendar, Shift, cache_calendar, cached_calendar
from bellringer.schedule.ics_parser import parse_ics
from bellringer.schedule.interval_and_oneshot import At, Delay, Every, at, delay, every
from bellringer.schedule.natural_language import ReadSchedule, Understood, read_schedule
from bellringer.schedule.open_hours import format_hours, parse_hours
from bellringer.schedule.preview import (
    PlannedFire,
    SchedulePreview,
    ScheduleWarning,
    fires_per_minute,
    next_fires,
    summarize_schedule,
)
from bellringer.schedule.repeat_count import RepeatCount
from bellringer.schedule.rrule_schedule import Rrule, rrule
from bellringer.schedule.serialization import (
    Schedule,
    ScheduleRow,
    apply_seed,
    bind_repeat,
    from_row,
    keep_repeat,
    parse_schedule,
    to_document,
    to_row,
)
from bellringer.schedule.zoned_schedule import (
    ZonedSchedule,
    bind_calendar,
    explain_day_off,
    missing_calendar_digests,
)

__all__ = [
    "At",
    "Cron",
    "DayMatch",
    "DaysOff",
    "Delay",
    "Dialect",
    "DstFold",
    "DstGap",
    "Every",
    "ExcludedFire",
    "Exclusion",
    "HolidayCalendar",
    "PlannedFire",
    "ReadSchedule",
    "RepeatCount",
    "Rrule",
    "Schedule",
    "SchedulePreview",
    "ScheduleRow",
    "ScheduleWarning",
    "Shift",
    "Understood",
    "ZonedSchedule",
    "apply_seed",
    "at",
    "bind_calendar",
    "bind_repeat",
    "cache_calendar",
    "cached_calendar",
    "cron",
    "delay",
    "every",
    "excluded_fires",
    "explain_day_off",
    "explain_exclusion",
    "fires_per_minute",
    "format_hours",
    "from_row",
    "keep_repeat",
    "missing_calendar_digests",
    "next_fires",
    "parse_hours",
    "parse_ics",
    "parse_schedule",
    "read_schedule",
    "rrule",
    "summarize_schedule",
    "to_document",
    "to_row",
]
