"""Keys, tenants and what they may have, as they travel."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.access.quotas import Quotas
from bellringer.errors import NotFound
from bellringer.wire.answers import Answer
from bellringer.wire.requests import Request


class KeyRequest(Request, frozen=True):
    """`scopes` are tags of the operations that it may use, none: all; `expires` an instant, or a length of time."""

    name: str
    role: str
    scopes: list[str] = field(default_factory=list)
    expires: str | int | float | None = None


class KeyRotation(Request, frozen=True):
    """For how long the old key stays good beside the new one; `expires` is the new one's."""

    grace: str | int | float = "1h"
    expires: str | int | float | None = None


class ApiKey(Answer, frozen=True):
    """`state` is active, expired or revoked; `last_used_at` is exact to a minute or so."""

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
    """`key` is shown here and never again."""

    key: str


class ApiKeyPage(Answer, frozen=True):
    """Keys, the oldest first."""

    items: list[ApiKey]
    next_cursor: str | None = None


class TenantRequest(Request, frozen=True):
    """`objective` has a `target`, such as 0.999, and `within`, in seconds."""

    name: str
    weight: float = 1.0
    quotas: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)


class TenantPatch(Request, frozen=True):
    """What is left out stays as it is; a quota that is null is taken away."""

    weight: float | UnsetType = UNSET
    quotas: dict[str, Any] | UnsetType | None = UNSET
    objective: dict[str, Any] | UnsetType | None = UNSET
    suspended: bool | UnsetType = UNSET


class Tenant(Answer, frozen=True):
    """Whose things are whose; `weight` is its share of the claims beside the others'."""

    name: str
    weight: float
    quotas: Quotas
    objective: dict[str, Any]
    suspended_at: datetime | None
    created_at: datetime


class TenantPage(Answer, frozen=True):
    """Tenants by their names."""

    items: list[Tenant]
    next_cursor: str | None = None


class Quota(Answer, frozen=True):
    """What a tenant has of something; `most` none: as much as it wants; `used` none: it is counted by the minute."""

    name: str
    used: float | None
    most: float | None


class TenantUsage(Answer, frozen=True):
    """What a tenant has, against its quotas."""

    tenant: str
    items: list[Quota]


class Limits(Answer, frozen=True):
    """A tenant's quotas, and what holds for everyone."""

    tenant: str
    quotas: list[Quota]
    body_bytes: int
    payload_bytes: int
    page_items: int
    bulk_items: int


class Whoami(Answer, frozen=True):
    """As whom the server sees the caller. `everywhere`: of the whole installation, so it may name any tenant."""

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
