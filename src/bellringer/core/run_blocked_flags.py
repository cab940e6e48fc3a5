"""Bits of `queue.blocked`: why a queued run cannot be claimed the ordinary way.

SQL files use the same names in capitals (`blocked & SENT = SENT`); see `store/sql_names.py`.
"""

from __future__ import annotations

from enum import IntFlag


class Blocked(IntFlag):
    """Several reasons may hold a run at once. A run with none of these bits is ready when its time has come."""

    PAUSED = 1  # the job is paused
    PREDECESSOR = 2  # an earlier run of the job is unfinished
    TASK_UNKNOWN = 4  # no live worker of the pool has the task
    FROZEN = 8  # a freeze defers the run
    UNDECIDED = 16  # with PREDECESSOR: the overlap policy is applied when the run is due
    LIMITED = 32  # the run shares a concurrency limit, so `claim_limited` claims it instead of `claim`
    SENT = 64  # a broker has the run; it counts as under way until a worker takes it or it comes back
    OPEN_WORKFLOW = 128  # a workflow run whose nodes are under way: it runs, though no worker holds it
    TASK_PAUSED = 256  # the task is paused for the tenant

    HELD = PAUSED | PREDECESSOR | TASK_UNKNOWN | FROZEN | UNDECIDED  # the predicate of the index `queue_blocked`
    NOT_CLAIMABLE = HELD | TASK_PAUSED  # nothing may start the run yet
    UNDER_WAY = SENT | OPEN_WORKFLOW  # counts against limits although no worker holds the run
