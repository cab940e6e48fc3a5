"""The agenda: named occurrences of jobs by hour or day, with holidays, freezes and clock changes."""

from __future__ import annotations

from datetime import date, datetime

from bellringer.wire.models import ResponseModel

_RANGE = {"start": "from", "end": "to"}


class AgendaEntry(ResponseModel, frozen=True):
    """The occurrences of a job in a cell: the first, and how many `times` it occurs. `runs` of those in the past got a
    run, and `failed` of these runs are dead; null if the first is in the future or if too many entries are listed.
    """

    job_id: str
    job: str
    at: datetime
    times: int
    runs: int | None
    failed: int | None


class AgendaCell(ResponseModel, frozen=True, rename=_RANGE):
    """An hour or a day: its `fires`, and how many `jobs` have any, without jobs that repeat all day. `entries` holds
    those of the rarest of these jobs, by time.
    """

    start: datetime
    end: datetime
    fires: int
    jobs: int
    entries: list[AgendaEntry]


class ClockChange(ResponseModel, frozen=True):
    """A change of the clocks in the time zone, by `seconds`."""

    at: datetime
    seconds: int
    text: str


class AgendaRepeat(ResponseModel, frozen=True):
    """A job that repeats all day, and how many `times` it occurs. `failed` of its runs up to now are dead; null as in
    entries of cells.
    """

    job_id: str
    job: str
    times: int
    failed: int | None


class AgendaRepeats(ResponseModel, frozen=True):
    """The `jobs` that occur 20 times or more on a day, and are in no cell of it. `items` holds the first by name."""

    fires: int
    jobs: int
    items: list[AgendaRepeat]


class AgendaDay(ResponseModel, frozen=True, rename=_RANGE):
    """A day of the time zone. `fires` counts the occurrences of all jobs that match, also of those in no cell; null if
    those are not known. `holidays` names the calendars that have the day off.
    """

    date: date
    start: datetime
    end: datetime
    fires: int | None
    repeats: AgendaRepeats
    holidays: list[str]
    clock_changes: list[ClockChange]


class AgendaFreeze(ResponseModel, frozen=True, rename=_RANGE):
    """A freeze that overlaps the range. With tags, it covers only jobs with one of them."""

    freeze_id: str
    name: str
    start: datetime
    end: datetime
    policy: str
    tags: list[str]


class AgendaJobName(ResponseModel, frozen=True):
    job_id: str
    job: str


class FrequentJobs(ResponseModel, frozen=True):
    """Jobs that occur more often than every minute, and are in no cell and no count; `items` holds the first by
    name.
    """

    jobs: int
    items: list[AgendaJobName]


class Agenda(ResponseModel, frozen=True, rename=_RANGE):
    """The occurrences of active jobs from `from` up to, but not including, `to`, as their present schedules name them.

    Cells without occurrences are left out. `truncated`: more jobs match than the `jobs` that were read, the first by
    name, or `left_out` jobs could not be counted within the limit. Jitter is ignored, and freezes are not applied.
    """

    start: datetime
    end: datetime
    tz: str
    cell: str
    days: list[AgendaDay]
    cells: list[AgendaCell]
    frequent: FrequentJobs
    freezes: list[AgendaFreeze]
    jobs: int
    left_out: int
    truncated: bool
