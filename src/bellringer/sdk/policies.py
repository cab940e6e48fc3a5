"""The policies of a job as keyword arguments of the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypedDict

from bellringer.core.jobs import check_name
from bellringer.core.policies import After, AfterCompletion, Catchup, Limit, Misfire, Overlap, UpstreamOutcome
from bellringer.core.tasks import Duration
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule import Schedule
from bellringer.schedule.instants import read_instant
from bellringer.sdk.usage_errors import check_schedules, read_choice


class HasName(Protocol):
    """A task or a workflow; its job has the same name unless it was given another."""

    @property
    def name(self) -> str: ...


def after(job: str | HasName, *, on: UpstreamOutcome | str = UpstreamOutcome.SUCCESS) -> After:
    """Start a job when a run of another job ends: `@app.schedule(after("extract"))`.

    `on` is `success`, `failure` (the run is dead: all its attempts have failed) or `any`.
    """
    name = job if isinstance(job, str) else job.name
    return After(check_name(name, what="job"), read_choice(on, UpstreamOutcome, what="on"))


def split_triggers(triggers: Sequence[Schedule | After], *, of: str) -> dict[str, Any]:
    """Return the fields `schedules` and `after` of a job definition."""
    upstreams = [trigger for trigger in triggers if isinstance(trigger, After)]
    schedules = tuple(trigger for trigger in triggers if not isinstance(trigger, After))
    check_schedules(schedules, of=of)
    if len(upstreams) > 1:
        message, hint = "a job can start after one other job", "use a workflow to wait for several"
        raise InvalidInput(message, hint=hint, pointer="/after", code="choice")
    return {"schedules": schedules, "after": upstreams[0] if upstreams else None}


class Policies(TypedDict, total=False):
    """Keyword arguments that decide when a job fires, and what happens to missed or overlapping occurrences."""

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
    after_completion: AfterCompletion | str
    pause_after_failures: int


POLICIES: Final = tuple(Policies.__annotations__)


def read_policies(policies: Policies) -> dict[str, Any]:
    """Convert the given policies to fields of a job definition."""
    given: dict[str, Any] = {**policies}
    plain = ("max_concurrency", "enabled", "region", "pause_after_failures")
    found: dict[str, Any] = {name: given[name] for name in plain if name in given}
    choices = {"misfire": Misfire, "overlap": Overlap, "after_completion": AfterCompletion}
    found |= {name: read_choice(given[name], kind, what=name) for name, kind in choices.items() if name in given}
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
