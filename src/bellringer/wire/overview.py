"""The overview of a tenant, and the state and settings of the server."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.wire.cluster import Shards
from bellringer.wire.models import Count, ResponseModel


class Pulse(ResponseModel, frozen=True):
    """Change counters: a number differs from an earlier one if a resource of that kind has changed."""

    runs: int
    jobs: int
    dead: int
    workers: int
    events: int


class OverviewProblem(ResponseModel, frozen=True):
    """All problems of one kind together. `tone` is bad or warn; `count` is the number of jobs, runs or other things
    concerned. `link` is the path of the console page that shows them, and `fix` a command that helps, if there is one.
    """

    kind: str
    tone: str
    text: str
    count: Count
    link: str | None = None
    fix: str = ""


class Verdict(ResponseModel, frozen=True):
    """The overall health in one sentence, which names the worst problem and counts the others; `tone` is good, warn or
    bad. `problems` has every problem, the worst first.
    """

    tone: str
    text: str
    problems: list[OverviewProblem] = field(default_factory=list)


class Attention(ResponseModel, frozen=True):
    """A problem that needs attention, and the command that fixes it, if there is one."""

    kind: str
    tone: str
    text: str
    job_id: str | None = None
    job: str | None = None
    run_id: str | None = None
    pool: str | None = None
    since: datetime | None = None
    fix: str = ""
    error: str | None = None


class JobSums(ResponseModel, frozen=True):
    """Counts of jobs. `late` includes jobs with missed occurrences; the last run of `failing` jobs is dead."""

    total: Count
    late: Count
    failing: Count
    paused: Count


class WorkerSums(ResponseModel, frozen=True):
    """Live workers, their slots, and how many slots are in use."""

    live: int
    slots: int
    busy: int


class PoolWait(ResponseModel, frozen=True):
    """The waiting (`ready`) and running (`busy`) runs of this tenant in a pool; `oldest` is a waiting time in seconds.

    `workers` and their `slots` are shared with other tenants.
    """

    pool: str
    paused: bool
    workers: int
    slots: int
    busy: int
    ready: Count
    oldest: float | None


class Timing(ResponseModel, frozen=True):
    """How punctually runs start within the range. A run is late if it starts later than `within`.

    Missed occurrences, which were not fired in time and will not run, count as late in `compliance` and `burn`. `burn`
    is the burn rate of the error budget; 1 is the highest sustainable rate. The lateness percentiles are those of the
    runs that were read; `firing` is the maximum lateness of the shards in seconds. `missed_rate` is the share of the
    `expected` occurrences that was missed, and `missed_burn` that share as a multiple of `max_missed_rate`.
    """

    started: int
    late: int
    missed: int
    compliance: float | None
    target: float
    within: str
    burn: float
    lateness_p50_ms: int | None
    lateness_p99_ms: int | None
    firing: float
    expected: int
    missed_rate: float | None
    max_missed_rate: float
    missed_burn: float


class SchedulerSums(ResponseModel, frozen=True):
    """Live schedulers, the shards that they hold, and what they wait for."""

    nodes: int
    shards: Shards
    waits_for: str | None


class Point(ResponseModel, frozen=True):
    """The runs that were due or ended in a step that starts at `at`. Unknown values of the past are null.

    `failed` counts dead runs. `waiting` and `busy` are the average numbers of runs that waited for their first start,
    and that executed.
    """

    at: datetime
    started: int
    late: int
    missed: int
    succeeded: int | None
    failed: int
    lateness_p50_ms: int | None
    lateness_p99_ms: int | None
    waiting: float | None = None
    busy: float | None = None


class Series(ResponseModel, frozen=True):
    """Points, oldest first, `step` seconds apart; `looked_at` is the number of runs that were read."""

    step: int
    points: list[Point]
    looked_at: Count


class Bar(ResponseModel, frozen=True):
    """A run in the timeline."""

    run_id: str
    state: str
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Lane(ResponseModel, frozen=True):
    """A job in the timeline: its runs, newest first, and its next fires. `earlier`: there are earlier runs than listed;
    `more`: there are more fires than listed.
    """

    job_id: str
    job: str
    runs: list[Bar]
    fires: list[datetime]
    more: bool
    earlier: bool = False
    paused: bool = False


class Timeline(ResponseModel, frozen=True, rename={"start": "from", "end": "to"}):
    """The jobs with the most recent runs. `truncated`: some had more runs than listed."""

    start: datetime
    end: datetime
    lanes: list[Lane]
    truncated: bool


class TaskTime(ResponseModel, frozen=True):
    """The durations of a task in seconds: the sum over all attempts that were read, and percentiles."""

    task: str
    attempts: int
    failures: int
    seconds: float
    p50: float | None
    p95: float | None


class TaskTimes(ResponseModel, frozen=True):
    """Tasks by total duration, including those with the most failures; `looked_at` is the number of attempts read."""

    looked_at: Count
    items: list[TaskTime]


class Overview(ResponseModel, frozen=True):
    """The overview of a tenant."""

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


class Setting(ResponseModel, frozen=True):
    """A setting of the server. For a secret, the value only says whether it is set.

    `source` is default, file, environment, flag or dev (set by `bellringer dev`); `where` is the name in that source.
    """

    name: str
    value: Any
    secret: bool
    source: str
    where: str


class ServerProcess(ResponseModel, frozen=True):
    """The process that handled the request. `roles` lists what it runs: api, scheduler, http_worker."""

    host: str
    pid: int
    roles: list[str]


class Settings(ResponseModel, frozen=True):
    """The settings of the process that handled the request, in the order of the documentation."""

    items: list[Setting]
    process: ServerProcess | UnsetType = UNSET


class Version(ResponseModel, frozen=True):
    """The versions of the server and of its API."""

    version: str
    api: str = "v1"


class Index(ResponseModel, frozen=True):
    """The paths of the server."""

    name: str
    version: str
    paths: list[str]


class Readiness(ResponseModel, frozen=True):
    """Whether the server can serve requests; `checks` holds the result of each check."""

    status: str
    checks: dict[str, str] = field(default_factory=dict)
