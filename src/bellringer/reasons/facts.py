"""What is known of a run, a job and its surroundings when somebody asks why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from bellringer.runs import State
from bellringer.schedule import Schedule
from bellringer.schedule.instants import EPOCH

MOST_AHEAD: Final = 1000  # rows before a run are counted no further
SILENT: Final = timedelta(seconds=10)  # after which a worker is not counted on
NEAR: Final = timedelta(minutes=1)  # a time that a person names means the minute that begins there
PAUSED, PREDECESSOR, TASK_UNKNOWN, FROZEN, LIMITED, SENT = 1, 2, 4, 8, 32, 64  # the bits of `blocked`
MOMENT: Final = timedelta(microseconds=1)
LONGEST: Final = 200  # signs of an error or a note that a reason repeats

Holds = bool | Literal["ok"]


@dataclass(frozen=True, slots=True)
class Reason:
    """`holds`: True: this is in the way; False: it only tells; "ok": a check that is fine."""

    code: str
    holds: Holds
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    at: datetime
    by: str | None = None
    why: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job as it is now, or as a revision of it was."""

    name: str
    schedules: tuple[Schedule, ...] = ()
    enabled: bool = True
    pause: Pause | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    created_at: datetime = EPOCH
    hand_at: datetime | None = None  # where the clock hand of its schedules stands
    timer_at: datetime | None = None
    routed: bool = False  # nobody named its pool …
    expected: timedelta | None = None  # … it goes by this, where it is given …
    learned_at: datetime | None = None  # … or by what its runs have taught


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """A time in which schedules rest."""

    name: str
    until: datetime
    why: str | None = None
    policy: str = "defer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit that a run waits under: its key (None: the job's own), how many may be under way, and which are."""

    key: str | None
    most: int
    taken: int = 0
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A pool's own bounds: how many of its runs may be under way and are, how many may start a second, and how many
    starts are saved up."""

    concurrency: int | None = None
    under_way: int = 0
    rate: float | None = None
    credit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """The breaker of what a job calls, while it is not closed: since when, why, and when one call tries again."""

    origin: str
    since: datetime
    probe_at: datetime
    why: str
    trying: bool = False  # one call is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A run, with what only its queue or timer row knows."""

    run_id: str
    state: State
    attempt: int = 0
    spent: int = 0  # attempts that count
    attempts: int = 1  # that it may spend
    available_at: datetime | None = None
    in_timer: bool = False
    blocked: int = 0
    predecessor: str | None = None
    limit: Limit | None = None
    behind: bool = False  # it runs behind live work
    worker: str | None = None
    worker_state: str = "live"
    worker_age: float = 0.0  # seconds since it was heard of
    since: datetime | None = None
    progress: Any = None
    cancel_requested: bool = False
    finished_at: datetime | None = None
    error: Any = None  # of the end, or of the latest attempt
    dead_letter: bool = False
    backfill: str | None = None  # that made it
    replaced_by: datetime | None = None  # the run of its job that came while it was under way, where overlap is replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """A live worker: its slots by pool, and whether it knows the task."""

    name: str
    pools: Mapping[str, int]
    knows: bool
    dispatch: str = "postgresql"  # how work gets to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Occurrences that got no run, from one instant up to another."""

    from_at: datetime
    to_at: datetime
    count: int | None
    reason: str
    into_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A catch-up or backfill that will come to an instant."""

    name: str
    state: str
    made: int
    total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """What is known of one instant: the revision in force (None: the job was not there), a gap, the freeze that
    covers it, and whether history still reaches so far back.
    """

    job: Member | None = None
    gap: Gap | None = None
    waiting: Waiting | None = None
    freeze: Freeze | None = None
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A node that another waits for; with `equals`, JSON text, it counts only if that is its result."""

    name: str
    state: str
    reason: str | None = None
    since: datetime | None = None
    equals: str | None = None
    is_met: bool = True


@dataclass(frozen=True, slots=True)
class Room:
    """How many may be under way at once, and how many are."""

    most: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a workflow run, or an element of a map: then `of` is the map, and `place` where it is in the list."""

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
    broken: int = 0  # … and how many of those did not go well
    before: tuple[Before, ...] = ()
    room: Room | None = None  # that it waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A workflow run from inside: its nodes, and some elements of its maps that run."""

    run_id: str
    job: Member | None = None  # at the top
    stopped: str | None = None
    undoing: bool = False
    nodes: tuple[Node, ...] = ()
    elements: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that reasons are found from. `taken` counts what the pool's workers hold, `ahead` what is claimed before."""

    job: Member | None = None
    run: Held | None = None
    then: Then = field(default_factory=Then)
    task: str | None = None
    pool: str | None = None
    pool_pause: Pause | None = None
    pool_bounds: Bounds | None = None
    shard: int | None = None
    scheduler: str | None = None  # who holds the shard
    sent_at: datetime | None = None  # when a broker got it
    waits_for: str | None = None  # what a scheduler waits for
    workers: tuple[Hand, ...] = ()
    tasks: tuple[str, ...] = ()  # that live workers know
    taken: int = 0
    ahead: int = 0
    freeze: Freeze | None = None  # that covers the job now
    suspended_at: datetime | None = None  # its tenant
    cap: int | None = None  # how many runs its tenant may have under way …
    in_flight: int = 0  # … and how many it has
    circuit: Circuit | None = None
    flow: Flow | None = None  # of a workflow run whose nodes are under way
