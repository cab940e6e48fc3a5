"""How it all goes, as the API tells it: the pulse, the overview, and the settings of the server that answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.answers import Answer, Count
from bellringer.wire.cluster import Shards


class Pulse(Answer, frozen=True):
    """Marks, not counts: a number differs from the one before when such a thing has changed."""

    runs: int
    jobs: int
    dead: int
    workers: int
    events: int


class Verdict(Answer, frozen=True):
    """How it goes, in one sentence; the tone is good, warn or bad."""

    tone: str
    text: str


class Attention(Answer, frozen=True):
    """Something that somebody should look at, and the command that helps, where there is one."""

    kind: str
    tone: str
    text: str
    job_id: str | None = None
    job: str | None = None
    run_id: str | None = None
    pool: str | None = None
    since: datetime | None = None
    fix: str = ""


class JobSums(Answer, frozen=True):
    """Jobs, counted: of those in trouble the late ones, missed ones among them, and those whose last run gave up."""

    total: Count
    late: Count
    failing: Count
    paused: Count


class WorkerSums(Answer, frozen=True):
    """Workers that live, their places, and how many of these are taken."""

    live: int
    slots: int
    busy: int


class PoolWait(Answer, frozen=True):
    """What waits in a pool for this tenant: `oldest` is for how many seconds; `busy` is what of it runs.

    `workers` and their `slots` are there for all.
    """

    pool: str
    paused: bool
    workers: int
    slots: int
    busy: int
    ready: Count
    oldest: float | None


class Timing(Answer, frozen=True):
    """Whether runs start in time: `started` and `late` are of the range, and late is what starts later than `within`.

    `burn` is how fast the error budget is used up, 1 being as fast as it may. The lateness is of the runs that were
    looked at, and how many seconds the shards are late at most is `firing`.
    """

    started: int
    late: int
    compliance: float | None
    target: float
    within: str
    burn: float
    lateness_p50_ms: int | None
    lateness_p99_ms: int | None
    firing: float


class SchedulerSums(Answer, frozen=True):
    """Schedulers that live, the shards that they hold, and what they wait for."""

    nodes: int
    shards: Shards
    waits_for: str | None


class Point(Answer, frozen=True):
    """What was due or ended from `at` on, for as long as a step. What is not known so far back is none.

    `failed` counts the runs that gave up.
    """

    at: datetime
    started: int
    late: int
    succeeded: int | None
    failed: int
    lateness_p99_ms: int | None


class Series(Answer, frozen=True):
    """Points, the oldest first, `step` seconds apart; so many runs were looked at."""

    step: int
    points: list[Point]
    looked_at: Count


class Bar(Answer, frozen=True):
    """A run in time."""

    run_id: str
    state: str
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Lane(Answer, frozen=True):
    """A job in time: its runs, and when it fires next; `more`: there are more fires than these."""

    job_id: str
    job: str
    runs: list[Bar]
    fires: list[datetime]
    more: bool


class Timeline(Answer, frozen=True, rename={"start": "from", "end": "to"}):
    """The jobs that ran most of late. `truncated`: some had more runs than are told."""

    start: datetime
    end: datetime
    lanes: list[Lane]
    truncated: bool


class TaskTime(Answer, frozen=True):
    """What a task took, in seconds: of all its attempts that were looked at, of half of them, and of 95 of 100."""

    task: str
    attempts: int
    failures: int
    seconds: float
    p50: float | None
    p95: float | None


class TaskTimes(Answer, frozen=True):
    """Tasks, those first that took most; those that failed most are among them. So many attempts were looked at."""

    looked_at: Count
    items: list[TaskTime]


class Overview(Answer, frozen=True):
    """How it goes for a tenant."""

    now: datetime
    range: str
    verdict: Verdict
    jobs: JobSums
    dead_letters: Count
    workers: WorkerSums
    pools: list[PoolWait]
    timing: Timing
    scheduler: SchedulerSums
    attention: list[Attention]
    series: Series
    timeline: Timeline
    tasks: TaskTimes


class RunCounts(Answer, frozen=True):
    """How many runs are in which state, as far as one look reaches."""

    states: dict[str, Count]


class Setting(Answer, frozen=True):
    """One setting of the server that answers. Of a secret it is told whether it is set.

    The source is default, file, environment, flag, or dev: a `bellringer dev` here; `where` is its name there.
    """

    name: str
    value: Any
    secret: bool
    source: str
    where: str


class Settings(Answer, frozen=True):
    """All settings of the server that answers, in the order of the documentation."""

    items: list[Setting]
