"""When a job is due: cron, recurrence rule, interval, delay and one-shot schedules. All pure: time is an argument."""

from __future__ import annotations

from bellringer.schedule.ahead import Outlook, Remark, fires_per_minute, outlook
from bellringer.schedule.calendars import know, known, missing, resolved, why_off
from bellringer.schedule.crontab import Cron, cron
from bellringer.schedule.daysoff import Calendar, DaysOff, Shift
from bellringer.schedule.documents import parse, to_document
from bellringer.schedule.fires import Fire, preview
from bellringer.schedule.ics import read_ics
from bellringer.schedule.intervals import Delay, Every, delay, every
from bellringer.schedule.oneshot import At, at
from bellringer.schedule.readings import Fold, Gap
from bellringer.schedule.recurrence import Rrule, rrule
from bellringer.schedule.rows import Row, Schedule, from_row, seeded, to_row
from bellringer.schedule.timetable import Timetable

__all__ = [
    "At",
    "Calendar",
    "Cron",
    "DaysOff",
    "Delay",
    "Every",
    "Fire",
    "Fold",
    "Gap",
    "Outlook",
    "Remark",
    "Row",
    "Rrule",
    "Schedule",
    "Shift",
    "Timetable",
    "at",
    "cron",
    "delay",
    "every",
    "fires_per_minute",
    "from_row",
    "know",
    "known",
    "missing",
    "outlook",
    "parse",
    "preview",
    "read_ics",
    "resolved",
    "rrule",
    "seeded",
    "to_document",
    "to_row",
    "why_off",
]
