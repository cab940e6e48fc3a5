"""The agenda of jobs: their occurrences by hour or day of a time zone. The number of evaluations is bounded."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from heapq import merge
from itertools import groupby, islice, pairwise
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from bellringer.durations import format_duration
from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule import Schedule
from bellringer.schedule.instants import floor_seconds, from_seconds
from bellringer.schedule.time_zones import period_at

MAX_DAYS: Final = 42
MAX_DAYS_BY_HOUR: Final = 8
MAX_EVALUATIONS: Final = 30_000  # evaluations of schedules: about a fifth of a second
MAX_REPEATS: Final = 24  # listed per day
REPEATS_PER_DAY: Final = 20  # a job that occurs so often on a day is listed for the day instead of in its cells
_HOUR: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AgendaDay:
    """A day of a time zone, or a part of it."""

    date: date
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A change of the UTC offset of a zone; `wall` is the time that clocks showed before it."""

    at: datetime
    by: timedelta
    wall: time

    def describe(self) -> str:
        way = "forward" if self.by > timedelta(0) else "back"
        minutes = abs(self.by) // _MINUTE
        length = f"{minutes} min" if minutes % 60 else f"{minutes // 60} h"
        return f"clocks go {way} {length} at {self.wall:%H:%M}"


@dataclass(frozen=True, slots=True)
class AgendaWindow:
    """The time from `start` up to, but not including, `end`, by days of a zone; each cell is an hour or a day."""

    zone: str
    days: Sequence[AgendaDay]
    cells: Sequence[datetime]  # their starts

    @classmethod
    def of(cls, zone: str, start: datetime, end: datetime, *, by_hour: bool | None = None) -> AgendaWindow:
        """Returns a validated window; by default with hours if there are few enough. Raises InvalidInput."""
        if not timedelta(0) < end - start <= MAX_DAYS * timedelta(days=1) + 2 * _HOUR:  # with a change of the clocks
            hint = f"give a span of at most {MAX_DAYS} days, from before to"
            raise InvalidInput(f"the calendar would span {format_duration(end - start)}", hint=hint, code="limit")
        days = list(_days(ZoneInfo(zone), start, end))
        if by_hour is None:
            by_hour = len(days) <= MAX_DAYS_BY_HOUR
        if by_hour and len(days) > MAX_DAYS_BY_HOUR:
            hint = f"use cell=day, or at most {MAX_DAYS_BY_HOUR} days"
            raise InvalidInput(f"{len(days)} days have too many hours", hint=hint, code="limit")
        cells = [at for day in days for at in (_hours(day) if by_hour else (day.start,))]
        return cls(zone, days, cells)

    @property
    def start(self) -> datetime:
        return self.days[0].start

    @property
    def end(self) -> datetime:
        return self.days[-1].end

    def index(self, at: datetime) -> int:
        """Returns the cell that contains an instant of the window."""
        return bisect_right(self.cells, at) - 1

    def day_of(self, index: int) -> int:
        """Returns the number of the day that contains a cell."""
        return bisect_right(self.days, self.cells[index], key=attrgetter("start")) - 1

    def end_of(self, index: int) -> datetime:
        return self.cells[index + 1] if index + 1 < len(self.cells) else self.end

    def clock_changes(self) -> list[ClockChange]:
        """Returns the changes of the zone's clocks within the window."""
        found: list[ClockChange] = []
        period, last = period_at(self.zone, floor_seconds(self.start)), floor_seconds(self.end)
        while period is not None and period.end < last:
            following = period_at(self.zone, period.end)
            if following is None:
                break
            if following.offset != period.offset:
                wall = from_seconds(period.end + period.offset).time()
                found.append(
                    ClockChange(from_seconds(period.end), timedelta(seconds=following.offset - period.offset), wall)
                )
            period = following
        return found


def _days(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[AgendaDay]:
    day = start.astimezone(zone).date()
    while start < end:
        day += timedelta(days=1)
        following = min(midnight(zone, day), end)
        if following > start:
            yield AgendaDay(day - timedelta(days=1), start, following)
            start = following


def midnight(zone: ZoneInfo, day: date) -> datetime:
    """Returns the instant at which a day begins: where clocks skip midnight, when they are put forward."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _hours(day: AgendaDay) -> Iterator[datetime]:
    at = day.start
    while at < day.end:
        yield at
        at += _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class AgendaJob:
    """A job with schedules, or with one known time: that of a one-shot, or the next one of a fixed delay.

    Jobs with the same `key` and bounds have the same schedules.
    """

    job_id: UUID
    name: str
    key: tuple[int, ...]
    schedules: tuple[Schedule, ...]
    starts_at: datetime | None
    ends_at: datetime | None
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgendaEntry:
    """The occurrences of a job in a cell: the first, and how many there are."""

    job: AgendaJob
    at: datetime
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgendaCell:
    """A cell with its occurrences and the number of jobs that have any; `entries` holds those of the rarest jobs."""

    start: datetime
    end: datetime
    fires: int
    jobs: int
    entries: Sequence[AgendaEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgendaRepeats:
    """The `jobs` that occur at least REPEATS_PER_DAY times on a day; `entries` holds the first of them by name."""

    fires: int
    jobs: int
    entries: Sequence[AgendaEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agenda:
    """The cells that have occurrences, and what repeats all day long, by day. Jobs that occur more often than every
    minute are `frequent`, and in neither; `left_out` jobs were not evaluated.
    """

    cells: Sequence[AgendaCell]
    repeats: Sequence[AgendaRepeats]
    frequent: Sequence[AgendaJob]
    left_out: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Jobs that have the same occurrences, of which there are `total` between `start` and `end`."""

    jobs: Sequence[AgendaJob]
    start: datetime
    end: datetime
    total: int

    @property
    def is_frequent(self) -> bool:
        return self.total > 1 and (self.end - self.start) / self.total < _MINUTE


class _Fires(NamedTuple):
    """The occurrences of a group in a cell or on a day: the first, and how many there are."""

    first: datetime
    times: int
    group: _Group


def build_agenda(jobs: Iterable[AgendaJob], window: AgendaWindow, limit: int) -> Agenda:
    """Returns the occurrences of jobs by cell, with at most `limit` jobs in each.

    Rare occurrences are evaluated first, so that the jobs left out are those with the most occurrences.
    """
    groups, left_out = _group_jobs(jobs, window)
    frequent = [job for group in groups if group.is_frequent for job in group.jobs]
    found: list[list[_Fires]] = [[] for _ in window.cells]
    repeats: list[list[_Fires]] = [[] for _ in window.days]
    work = MAX_EVALUATIONS
    for group in sorted((group for group in groups if not group.is_frequent), key=lambda group: group.total):
        work -= min(group.total, 2 * len(window.cells)) + 1
        if work < 0:
            left_out += len(group.jobs)
            continue
        by_cell = _fires_by_cell(group, window)
        for day, cells in groupby(sorted(by_cell), key=window.day_of):
            fires = [(index, _Fires(*by_cell[index], group)) for index in cells]
            total = sum(one.times for _, one in fires)
            if total >= REPEATS_PER_DAY:
                repeats[day].append(_Fires(fires[0][1].first, total, group))
            else:
                for index, one in fires:
                    found[index].append(one)
    return Agenda(
        cells=[
            AgendaCell(
                start=window.cells[index],
                end=window.end_of(index),
                fires=_count_fires(fires),
                jobs=_count_jobs(fires),
                entries=_first_entries(fires, limit),
            )
            for index, fires in enumerate(found)
            if fires
        ],
        repeats=[
            AgendaRepeats(
                fires=_count_fires(fires), jobs=_count_jobs(fires), entries=_entries_by_name(fires, MAX_REPEATS)
            )
            for fires in repeats
        ],
        frequent=sorted(frequent, key=lambda job: job.name),
        left_out=left_out,
    )


def _group_jobs(jobs: Iterable[AgendaJob], window: AgendaWindow) -> tuple[list[_Group], int]:
    """Groups jobs with the same occurrences; also returns how many jobs this version cannot evaluate."""
    alike: dict[tuple[tuple[int, ...], datetime, datetime, datetime | None], list[AgendaJob]] = defaultdict(list)
    for job in jobs:
        start = max(window.start, job.starts_at) if job.starts_at else window.start
        end = min(window.end, job.ends_at + _MICROSECOND) if job.ends_at else window.end
        if start < end:
            alike[job.key, start, end, job.at].append(job)
    groups, left_out = [], 0
    for (_, start, end, at), found in alike.items():
        same = sorted(found, key=lambda job: job.name)
        try:
            total = sum(schedule.count_between(start, end) for schedule in same[0].schedules)
        except InvalidSchedule:  # such as days off that are not known here
            left_out += len(same)
            continue
        total += at is not None and start <= at < end
        if total:
            groups.append(_Group(same, start, end, total))
    return groups, left_out


def _fires_by_cell(group: _Group, window: AgendaWindow) -> Mapping[int, tuple[datetime, int]]:
    """Returns the first occurrence of each cell, and how many it has."""
    job, found = group.jobs[0], dict[int, tuple[datetime, int]]()
    if group.total <= 2 * len(window.cells):
        last: datetime | None = None
        for at in _instants(job, group.start, group.end):
            if at != last:  # schedules that share an instant fire once
                index = window.index(at)
                first, times = found.get(index, (at, 0))
                found[index] = (first, times + 1)
            last = at
        return found
    for index in range(window.index(group.start), window.index(group.end - _MICROSECOND) + 1):
        start, end = max(window.cells[index], group.start), min(window.end_of(index), group.end)
        if times := sum(schedule.count_between(start, end) for schedule in job.schedules):
            firsts = [schedule.next_after(start - _MICROSECOND) for schedule in job.schedules]
            found[index] = (min(at for at in firsts if at is not None), times)
    return found


def _instants(job: AgendaJob, start: datetime, end: datetime) -> Iterator[datetime]:
    single = [job.at] if job.at is not None and start <= job.at < end else []
    return merge(single, *(schedule.between(start - _MICROSECOND, end - _MICROSECOND) for schedule in job.schedules))


def _count_fires(fires: Iterable[_Fires]) -> int:
    return sum(one.times * len(one.group.jobs) for one in fires)


def _count_jobs(fires: Iterable[_Fires]) -> int:
    return sum(len(one.group.jobs) for one in fires)


def _first_entries(fires: Iterable[_Fires], limit: int) -> list[AgendaEntry]:
    """Returns the entries of the jobs with the fewest occurrences in the window, by time and name."""
    found: list[AgendaEntry] = []
    order = attrgetter("group.total")
    for _, alike in groupby(sorted(fires, key=order), key=order):
        found += _entries_by_name(alike, limit - len(found))
        if len(found) >= limit:
            break
    return sorted(found, key=lambda entry: (entry.at, entry.job.name))


def _entries_by_name(fires: Iterable[_Fires], limit: int) -> list[AgendaEntry]:
    """Returns the first entries by name. Only groups are merged: each has its jobs in the order of names."""
    entries = ([AgendaEntry(job=job, at=one.first, times=one.times) for job in one.group.jobs[:limit]] for one in fires)
    return list(islice(merge(*entries, key=lambda entry: entry.job.name), limit))


def count_by_day(crowds: Iterable[tuple[Schedule, int]], window: AgendaWindow) -> tuple[list[int], int]:
    """Counts the occurrences of groups of jobs on each day, without those that are more frequent than every minute;
    also returns how many jobs were not counted. The largest groups are counted first.
    """
    totals, left_out, work = [0] * len(window.days), 0, MAX_EVALUATIONS // 2
    edges = [*(day.start for day in window.days), window.end]
    for schedule, jobs in sorted(crowds, key=lambda crowd: -crowd[1]):
        work -= len(window.days)
        if work < 0:
            left_out += jobs
            continue
        try:
            counts = [schedule.count_between(start, end) for start, end in pairwise(edges)]
        except InvalidSchedule:
            left_out += jobs
            continue
        if sum(counts) and (window.end - window.start) / sum(counts) >= _MINUTE:
            for number, count in enumerate(counts):
                totals[number] += count * jobs
    return totals, left_out
