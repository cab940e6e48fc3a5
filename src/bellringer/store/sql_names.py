"""Names in capitals that the SQL files may use: bits of `queue.blocked`, advisory lock spaces, the numbers by which
`members` stores policies, times of sends, planner settings, the first slot of runs that follow a run of another job,
and the columns of `core.jobs.JobFields`.

`expand` replaces each name when a file is read, so the database gets plain numbers. An immutable SQL function in place
of each number would cost 2 to 10 microseconds every time a statement is planned; see docs/decisions/022.
"""

from __future__ import annotations

import re
from typing import Final

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.jobs import JOB_FIELDS
from bellringer.core.messages import GRAPH_KEPT, SEND_AHEAD, SEND_NOTICE
from bellringer.core.policies import Misfire, Overlap
from bellringer.core.run_blocked_flags import Blocked
from bellringer.core.runs import FOLLOWER_SLOT_BASE
from bellringer.errors import ConfigError

_BY_KEY: Final = (
    "set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off"  # nested loops only
)

PLANNER_SETTINGS: Final = {
    # Nested loops over indexes, even where the statistics of a table are older than its growth.
    "PLAN_BY_KEY": _BY_KEY,
    # The same, and rows come in the order of the index, so that a LIMIT stops the scan early.
    "PLAN_BY_INDEX": f"{_BY_KEY} set enable_bitmapscan = off",
    # The same, and an index that gives the requested order is preferred to any sort.
    "PLAN_IN_INDEX_ORDER": f"{_BY_KEY} set enable_bitmapscan = off set enable_sort = off",
    # Beside one of the others: plan once per session. A call for one row then costs a quarter; see docs/decisions/024.
    "PLAN_KEPT": "set plan_cache_mode = force_generic_plan",
}
# `members` holds policies as numbers, because a tick reads a row of it for every run that it fires.
_MISFIRE: Final = (Misfire.FIRE_ONCE, Misfire.SKIP, Misfire.FIRE_ALL)
_OVERLAP: Final = (Overlap.ALLOW, Overlap.SKIP, Overlap.QUEUE, Overlap.COLLAPSE, Overlap.REPLACE)
POLICY_NUMBERS: Final = {
    **{f"MISFIRE_{policy.name}": number for number, policy in enumerate(_MISFIRE)},
    **{f"OVERLAP_{policy.name}": number for number, policy in enumerate(_OVERLAP)},
}
SEND_TIMES: Final = {"SEND_AHEAD": SEND_AHEAD, "SEND_NOTICE": SEND_NOTICE, "GRAPH_KEPT": GRAPH_KEPT}
NAMES: Final = {
    **{name: f"{bits.value}/*{name}*/" for name, bits in Blocked.__members__.items()},
    **{f"LOCK_{space.name}": f"{space.value}/*LOCK_{space.name}*/" for space in AdvisoryLock},
    **{name: f"{number}/*{name}*/" for name, number in POLICY_NUMBERS.items()},
    **{name: f"interval '{length.total_seconds():.12g} s'/*{name}*/" for name, length in SEND_TIMES.items()},
    **PLANNER_SETTINGS,
    "FOLLOWER_SLOT_BASE": f"{FOLLOWER_SLOT_BASE}::bigint/*FOLLOWER_SLOT_BASE*/",
    "JOB_FIELDS": ", ".join(JOB_FIELDS),  # the columns of `jobs` that `core/jobs.py` declares
}
_NAME: Final = re.compile(rf"\b(?:{'|'.join(NAMES)}|(?:LOCK|PLAN|MISFIRE|OVERLAP)_[A-Z_]+)\b")


def expand(sql: str) -> str:
    """Replace the names in an SQL text. Raises ConfigError for an unknown lock, policy or planner setting."""
    return _NAME.sub(_value, sql)


def _value(found: re.Match[str]) -> str:
    try:
        return NAMES[found[0]]
    except KeyError:
        raise ConfigError(f"{found[0]} is not a name that SQL files may use", hint="see store/sql_names.py") from None
