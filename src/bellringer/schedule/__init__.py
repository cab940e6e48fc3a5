"""When a job is due: cron, interval, delay and one-shot schedules. All pure: time is an argument."""

from __future__ import annotations

from bellringer.schedule.crontab import Cron, Dst, cron
from bellringer.schedule.documents import parse, to_document
from bellringer.schedule.fires import Fire, preview
from bellringer.schedule.intervals import Delay, Every, delay, every
from bellringer.schedule.oneshot import At, at
from bellringer.schedule.rows import Row, Schedule, from_row, to_row

__all__ = [
    "At",
    "Cron",
    "Delay",
    "Dst",
    "Every",
    "Fire",
    "Row",
    "Schedule",
    "at",
    "cron",
    "delay",
    "every",
    "from_row",
    "parse",
    "preview",
    "to_document",
    "to_row",
]
