"""API keys, tenants, quotas, and a tenant's objective."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.access.quotas import Quotas
from bellringer.errors import NotFound
from bellringer.wire.models import RequestModel, ResponseModel


class KeyRequest(RequestModel, frozen=True):
    """A key to create. `scopes` are tags of operations, empty for all; `expires` is an instant or a duration."""

    name: str
    role: str
    scopes: list[str] = field(default_factory=list)
    expires: str | int | float | None = None


class KeyRotation(RequestModel, frozen=True):
    """A key rotation. `grace` is how long the old key stays valid; `expires` applies to the new key."""

    grace: str | int | float = "1h"
    expires: str | int | float | None = None


class ApiKey(ResponseModel, frozen=True):
    """An API key. `state` is active, expired or revoked; `last_used_at` is accurate to about a minute."""

    key_id: str
    name: str
    role: str
    scopes: list[str]
    state: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None


class NewApiKey(ApiKey, frozen=True):
    """A new API key. Only this response contains `key`."""

    key: str


class ApiKeyPage(ResponseModel, frozen=True):
    """API keys, oldest first."""

    items: list[ApiKey]
    next_cursor: str | None = None


class TenantRequest(RequestModel, frozen=True):
    """A tenant to create. `objective` has a `target`, such as 0.999, and `within` in seconds."""

    name: str
    weight: float = 1.0
    quotas: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)


class TenantPatch(RequestModel, frozen=True):
    """Omitted fields are not changed; a quota of null is removed."""

    weight: float | UnsetType = UNSET
    quotas: dict[str, Any] | UnsetType | None = UNSET
    objective: dict[str, Any] | UnsetType | None = UNSET
    suspended: bool | UnsetType = UNSET


class Tenant(ResponseModel, frozen=True):
    """A tenant. `weight` is its share of worker capacity relative to other tenants."""

    name: str
    weight: float
    quotas: Quotas
    objective: dict[str, Any]
    suspended_at: datetime | None
    created_at: datetime


class TenantPage(ResponseModel, frozen=True):
    """Tenants, ordered by name."""

    items: list[Tenant]
    next_cursor: str | None = None


class Quota(ResponseModel, frozen=True):
    """A quota. `most` is null if unlimited; `used` is null for rates, which are counted per minute."""

    name: str
    used: float | None
    most: float | None


class TenantLoad(ResponseModel, frozen=True):
    """The present load of a tenant: `ready` runs wait for a worker, the first for `oldest` seconds; `retrying` wait for
    their next attempt; `held` wait for the end of a task's pause. Counts stop at 10,000 in each pool.

    `retried` of the attempts that `started` in the last hour were second or later ones.
    """

    ready: int
    retrying: int
    running: int
    held: int
    oldest: float | None
    started: int
    retried: int


class TenantUsage(ResponseModel, frozen=True):
    """The use of a tenant's quotas, and its load."""

    tenant: str
    items: list[Quota]
    load: TenantLoad


class Limits(ResponseModel, frozen=True):
    """The quotas of a tenant, and the limits that apply to all tenants."""

    tenant: str
    quotas: list[Quota]
    body_bytes: int
    payload_bytes: int
    page_items: int
    bulk_items: int


class Whoami(ResponseModel, frozen=True):
    """The identity of the caller. `everywhere`: an installation key, which may act for any tenant."""

    who: str
    role: str
    tenant: str
    everywhere: bool
    scopes: list[str]
    origin: str | None


def no_key() -> NotFound:
    return NotFound("there is no such key", hint="`bellringer keys list` shows them")


def no_tenant() -> NotFound:
    return NotFound("there is no such tenant", hint="`bellringer tenants list` shows them")


class PoolUse(ResponseModel, frozen=True):
    """The use of a pool in a minute with late runs.

    `cause` is `no_worker`, `full` (all slots were busy) or `free` (slots were free, so something else held the runs).
    `own` and `others` are shares of the busy time; `named` lists the heaviest other tenants, for installation keys.
    """

    pool: str
    cause: str
    saturation: float | None
    own: float
    others: float
    named: dict[str, float]


class LateMinute(ResponseModel, frozen=True):
    """A minute with runs that started late, or with missed occurrences."""

    at: datetime
    started: int
    late: int
    missed: int
    pools: list[PoolUse]


class Burn(ResponseModel, frozen=True):
    """The burn rate of the error budget over a period. At a rate of 1, the budget lasts exactly for the window."""

    over: str
    started: int
    late: int
    missed: int
    rate: float


class MissedBurn(ResponseModel, frozen=True):
    """The missed occurrences of a period: of those `expected`, `missed` did not run. `burn` is the share as a multiple
    of the allowed share.
    """

    over: str
    expected: int
    missed: int
    rate: float | None
    burn: float


class MissedObjective(ResponseModel, frozen=True):
    """The objective for missed occurrences: at most the share `max_rate`.

    `expected` counts occurrences that ran and those that were missed, which `bellringer_missed_total` counts too.
    Occurrences that were skipped on purpose (overlap, freeze, pause, calendar) are in neither. `rate` is null if
    nothing was expected; `budget_left` is negative if the objective is violated.
    """

    max_rate: float
    expected: int
    missed: int
    rate: float | None
    budget_left: float
    burns: list[MissedBurn]


class Objective(ResponseModel, frozen=True, rename={"start": "from", "end": "to"}):
    """The service level of a tenant: the share `target` of its runs should start `within` this time after they are due.

    A run counts for the minute in which it was due, once it has started. `missed` occurrences, which were not fired in
    time and will not run, count as late. `budget_left` is 1 if no run was late, and negative if the objective is
    violated.
    """

    tenant: str
    target: float
    within: str
    start: datetime
    end: datetime
    started: int
    late: int
    missed: int
    compliance: float | None
    budget_left: float
    burns: list[Burn]
    worst: list[LateMinute]
    occurrences: MissedObjective
