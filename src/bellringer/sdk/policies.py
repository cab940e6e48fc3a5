"""The policies of a job, as programs write them: by keyword, beside its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from bellringer.durations import parse_duration
from bellringer.policies import Catchup, Limit, Misfire, Overlap
from bellringer.schedule.instants import read_instant
from bellringer.sdk.misuse import read_choice
from bellringer.tasks import Duration


class Policies(TypedDict, total=False):
    """When a job takes part, and what becomes of its occurrences when something is in the way."""

    misfire: Misfire | str
    max_catchup: int
    catchup_window: Duration
    catchup_rate: float
    overlap: Overlap | str
    max_concurrency: int
    concurrency_key: str
    concurrency_limit: int
    jitter: Duration
    late_after: Duration
    starts_at: datetime | str
    ends_at: datetime | str
    enabled: bool
    region: str


POLICIES: Final = tuple(Policies.__annotations__)


def read_policies(policies: Policies) -> dict[str, Any]:
    """The fields of a definition that these choose; what is left out has its default."""
    given: dict[str, Any] = {**policies}
    found: dict[str, Any] = {name: given[name] for name in ("max_concurrency", "enabled", "region") if name in given}
    if "misfire" in given:
        found["misfire"] = read_choice(given["misfire"], Misfire, what="misfire")
    if "overlap" in given:
        found["overlap"] = read_choice(given["overlap"], Overlap, what="overlap")
    if given.keys() & {"max_catchup", "catchup_window", "catchup_rate"}:
        found["catchup"] = _catchup(given)
    if (key := given.get("concurrency_key")) is not None:
        found["limit"] = Limit(key, given.get("concurrency_limit", 1))
    for name in ("jitter", "late_after"):
        if (length := given.get(name)) is not None:
            found[name] = parse_duration(length, what=name)
    for name in ("starts_at", "ends_at"):
        if (moment := given.get(name)) is not None:
            found[name] = read_instant(moment, what=name, pointer=f"/{name}")
    return found


def _catchup(given: Mapping[str, Any]) -> Catchup:
    plain = Catchup()
    window = given.get("catchup_window")
    return Catchup(
        given.get("max_catchup", plain.most),
        plain.window if window is None else parse_duration(window, what="catchup_window"),
        given.get("catchup_rate"),
    )
