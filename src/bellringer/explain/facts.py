"""The facts about a run, its job and its surroundings that the explanation rules read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from bellringer.core.policies import After
from bellringer.core.runs import State
from bellringer.schedule import Schedule
from bellringer.schedule.instants import EPOCH

MAX_RUNS_AHEAD_COUNTED: Final = 1000  # rows before a run are counted no further
WORKER_SILENT_AFTER: Final = timedelta(seconds=10)  # after which a worker is not counted on
ASKED_TIME_SPAN: Final = timedelta(minutes=1)  # a time that a person names means the minute that begins there
MICROSECOND: Final = timedelta(microseconds=1)
MAX_QUOTE_LENGTH: Final = 200  # signs of an error or a note that a reason repeats

Holds = bool | Literal["ok"]


@dataclass(frozen=True, slots=True)
class ExplainReason:
    """One reason. `holds` is True if it prevents progress, False if it is information, and "ok" if it is a passed
    check.
    """

    code: str
    holds: Holds
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseFacts:
    at: datetime
    by: str | None = None
    why: str | None = None
    until: datetime | None = None
    release_rate: float | None = None  # of a task that was resumed: held runs a second


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFacts:
    """A restore of the database from a backup. What happened between the two times is not recorded."""

    recovered_to: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFacts:
    """A job that the code of its app no longer declares; `version` is the last one that did, if it is known."""

    app: str
    version: str | None
    since: datetime


@dataclass(frozen=True, slots=True)
class UpstreamFacts:
    """The last run of the job that a job starts after; None: it has had no run."""

    run_id: str | None = None
    state: State | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job in its current state, or in the state of an earlier revision."""

    name: str
    schedules: tuple[Schedule, ...] = ()
    enabled: bool = True
    pause: PauseFacts | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    created_at: datetime = EPOCH
    hand_at: datetime | None = None  # where the clock hand of its schedules stands
    timer_at: datetime | None = None
    routed: bool = False  # its pool was not chosen by the definition …
    expected: timedelta | None = None  # … it goes by this, where it is given …
    learned_at: datetime | None = None  # … or by what its runs have taught
    deleted_when_done: bool = False  # after_completion = "delete"
    orphan: OrphanFacts | None = None
    after: After | None = None  # the job that it starts after …
    upstream: UpstreamFacts | None = None  # … and the last run of that job; None: there is no such job


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeFacts:
    """A period in which schedules do not fire."""

    name: str
    until: datetime
    why: str | None = None
    policy: str = "defer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """A concurrency limit that a run waits for: its key (None: the job's own limit), the maximum, and the runs that
    use it.
    """

    key: str | None
    most: int
    taken: int = 0
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """The limits of a pool: maximum and current number of running runs, maximum starts per second, and available
    start tokens.
    """

    concurrency: int | None = None
    under_way: int = 0
    rate: float | None = None
    credit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """The circuit breaker of the URL that a job calls, while it is open."""

    origin: str
    since: datetime
    probe_at: datetime
    why: str
    trying: bool = False  # one call is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBlock:
    """A coroutine that blocked the event loop of the run; it may be the run's own handler."""

    task: str
    run_id: str
    length: timedelta
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run, with the columns of its queue or timer row."""

    run_id: str
    state: State
    attempt: int = 0
    spent: int = 0  # attempts that count
    attempts: int = 1  # that it may spend
    available_at: datetime | None = None
    expires_at: datetime | None = None
    in_timer: bool = False
    blocked: int = 0
    predecessor: str | None = None  # the first unfinished run before it, where it waits for that or has ended
    predecessor_waits: bool = False  # the predecessor has not started
    limit: LimitFacts | None = None
    behind: bool = False  # it runs behind live work
    worker: str | None = None
    worker_state: str = "live"
    worker_age: float = 0.0  # seconds since it was heard of
    unconfirmed: bool = False  # its worker has not confirmed that it knows the run
    since: datetime | None = None
    progress: Any = None
    cancel_requested: bool = False
    finished_at: datetime | None = None
    error: Any = None  # of the end, or of the latest attempt
    dead_letter: bool = False
    backfill: str | None = None  # that made it
    upstream: str | None = None  # the run whose end started it, as text
    replaced_by: datetime | None = None  # the run of its job that came while it was under way, where overlap is replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A live worker: its slots by pool, and whether it has registered the task."""

    name: str
    pools: Mapping[str, int]
    knows: bool
    dispatch: str = "postgresql"  # how work gets to it


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedSpan:
    """A range of occurrences that got no run."""

    from_at: datetime
    to_at: datetime
    count: int | None
    reason: str
    into_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBackfill:
    """A catch-up or backfill that has not reached an instant yet."""

    name: str
    state: str
    made: int
    total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantFacts:
    """The facts about one instant: the job revision in effect (None: the job did not exist), a gap, a pending
    backfill, a freeze, and whether the history of that time is still kept.
    """

    job: JobFacts | None = None
    gap: MissedSpan | None = None
    waiting: PendingBackfill | None = None
    freeze: FreezeFacts | None = None
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A parent of a node. With `equals` (JSON text), the edge is satisfied only if the parent's result is equal."""

    name: str
    state: str
    reason: str | None = None
    since: datetime | None = None
    equals: str | None = None
    is_met: bool = True


@dataclass(frozen=True, slots=True)
class Capacity:
    """A concurrency limit and its current use."""

    most: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node of a workflow run, or an element of a map: then `of` is the map and `place` the index in its list."""

    name: str
    state: str  # blocked, queued, running, retrying, waiting, or how it ended
    kind: str = "task"
    reason: str | None = None
    rule: str = "all_success"
    undoes: str | None = None
    signal: str | None = None
    of: str | None = None
    place: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    finished_at: datetime | None = None
    size: int | None = None  # of a map that has been opened: its elements …
    ended: int = 0  # … how many of them have ended …
    elements_failed: int = 0  # … and how many of those failed
    before: tuple[Dependency, ...] = ()
    room: Capacity | None = None  # that it waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFacts:
    """A workflow run with its nodes, and some of the running elements of its maps."""

    run_id: str
    job: JobFacts | None = None  # at the top
    stopped: str | None = None
    undoing: bool = False
    nodes: tuple[NodeFacts, ...] = ()
    elements: tuple[NodeFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFacts:
    """All facts that the rules read. `taken` is the number of runs that the pool's workers hold, `ahead` the number
    of runs that will be claimed before this one.
    """

    job: JobFacts | None = None
    run: QueuedRun | None = None
    then: InstantFacts = field(default_factory=InstantFacts)
    task: str | None = None
    pool: str | None = None
    pool_pause: PauseFacts | None = None
    task_pause: PauseFacts | None = None
    pool_bounds: PoolLimits | None = None
    shard: int | None = None
    scheduler: str | None = None  # the node that holds the shard
    sent_at: datetime | None = None  # when a broker got it
    waits_for: str | None = None  # what a scheduler waits for
    workers: tuple[LiveWorker, ...] = ()
    tasks: tuple[str, ...] = ()  # that live workers know
    taken: int = 0
    ahead: int = 0
    freeze: FreezeFacts | None = None  # that covers the job now
    suspended_at: datetime | None = None  # its tenant
    cap: int | None = None  # how many runs its tenant may have under way …
    in_flight: int = 0  # … and how many it has
    circuit: OpenBreaker | None = None
    blocks: tuple[LoopBlock, ...] = ()  # of the event loop that it runs, or ran, on
    flow: WorkflowFacts | None = None  # of a workflow run whose nodes are under way
    outage: MissedSpan | None = None  # the occurrences that the job missed last, if that is not long ago
