"""The calls of the API about keys and tenants; as those of `wire.asks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from bellringer.wire.access import (
    ApiKey,
    ApiKeyPage,
    Limits,
    NewApiKey,
    Tenant,
    TenantPage,
    TenantUsage,
    Whoami,
)
from bellringer.wire.asks import PREFIX, Ask, Document


def whoami() -> Ask[Whoami]:
    """As whom the server sees us."""
    return Ask(method="GET", path=f"{PREFIX}/whoami", shape=Whoami)


def limits() -> Ask[Limits]:
    """What our tenant may have and has, and what holds for everyone."""
    return Ask(method="GET", path=f"{PREFIX}/limits", shape=Limits)


def api_keys(*, limit: int | None = None, cursor: str | None = None) -> Ask[ApiKeyPage]:
    """The tenant's keys, the oldest first."""
    return Ask(method="GET", path=_keys(), shape=ApiKeyPage, query=_given(limit=limit, cursor=cursor))


def api_key(key_id: str) -> Ask[ApiKey]:
    return Ask(method="GET", path=_keys(key_id), shape=ApiKey)


def create_api_key(
    name: str, role: str, *, scopes: Sequence[str] = (), expires: str | float | None = None
) -> Ask[NewApiKey]:
    """A new key; this answer alone has its secret."""
    body = _given(name=name, role=role, scopes=list(scopes), expires=expires)
    return Ask(method="POST", path=_keys(), shape=NewApiKey, body=body)


def rotate_api_key(
    key_id: str, *, grace: str | float | None = None, expires: str | float | None = None
) -> Ask[NewApiKey]:
    """A new key in the place of one, which stays good for the grace."""
    return Ask(method="POST", path=_keys(key_id, "rotate"), shape=NewApiKey, body=_given(grace=grace, expires=expires))


def revoke_api_key(key_id: str) -> Ask[None]:
    return Ask(method="DELETE", path=_keys(key_id), shape=type(None))


def installation_keys(*, limit: int | None = None, cursor: str | None = None) -> Ask[ApiKeyPage]:
    """The keys of the whole installation; only who has one may ask."""
    return Ask(method="GET", path=_masters(), shape=ApiKeyPage, query=_given(limit=limit, cursor=cursor))


def installation_key(key_id: str) -> Ask[ApiKey]:
    return Ask(method="GET", path=_masters(key_id), shape=ApiKey)


def create_installation_key(
    name: str, role: str, *, scopes: Sequence[str] = (), expires: str | float | None = None
) -> Ask[NewApiKey]:
    """A new key for all tenants; this answer alone has its secret."""
    body = _given(name=name, role=role, scopes=list(scopes), expires=expires)
    return Ask(method="POST", path=_masters(), shape=NewApiKey, body=body)


def rotate_installation_key(
    key_id: str, *, grace: str | float | None = None, expires: str | float | None = None
) -> Ask[NewApiKey]:
    body = _given(grace=grace, expires=expires)
    return Ask(method="POST", path=_masters(key_id, "rotate"), shape=NewApiKey, body=body)


def revoke_installation_key(key_id: str) -> Ask[None]:
    return Ask(method="DELETE", path=_masters(key_id), shape=type(None))


def own_tenant() -> Ask[Tenant]:
    """Our tenant."""
    return Ask(method="GET", path=f"{PREFIX}/tenant", shape=Tenant)


def tenants(*, limit: int | None = None, cursor: str | None = None) -> Ask[TenantPage]:
    """All tenants by their names; only callers of the whole installation may ask, here and below."""
    return Ask(method="GET", path=_tenants(), shape=TenantPage, query=_given(limit=limit, cursor=cursor))


def tenant(name: str) -> Ask[Tenant]:
    return Ask(method="GET", path=_tenants(name), shape=Tenant)


def create_tenant(
    name: str, *, weight: float | None = None, quotas: Document | None = None, objective: Document | None = None
) -> Ask[Tenant]:
    body = _given(name=name, weight=weight, quotas=quotas, objective=objective)
    return Ask(method="POST", path=_tenants(), shape=Tenant, body=body)


def patch_tenant(name: str, patch: Document) -> Ask[Tenant]:
    """Give a tenant another weight, quotas or objective, suspend it or let it go on."""
    headers = {"Content-Type": "application/merge-patch+json"}
    return Ask(method="PATCH", path=_tenants(name), shape=Tenant, body=patch, headers=headers)


def tenant_usage(name: str) -> Ask[TenantUsage]:
    """What a tenant has, against its quotas."""
    return Ask(method="GET", path=_tenants(name, "usage"), shape=TenantUsage)


def _keys(*parts: str) -> str:
    return _path("api-keys", *parts)


def _masters(*parts: str) -> str:
    return _path("installation-keys", *parts)


def _tenants(*parts: str) -> str:
    return _path("tenants", *parts)


def _path(*parts: str) -> str:
    return PREFIX + "".join("/" + quote(part, safe="") for part in parts)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
