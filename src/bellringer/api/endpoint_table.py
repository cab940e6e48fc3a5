"""Assigns an endpoint to every route of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bellringer.api.endpoints import (
    agenda,
    apps,
    audit,
    backfills,
    bulk_actions,
    bulk_create,
    bulk_send,
    calendars,
    checkins,
    cluster,
    composition,
    dead_letters,
    events,
    explain,
    forecast,
    freezes,
    health,
    job_history,
    jobs,
    keys,
    notifications,
    objective,
    overview,
    run_lists,
    runs,
    schedules,
    secrets,
    skips,
    tasks,
    tenants,
    verify,
    webhooks,
    workflows,
)
from bellringer.api.http.operation import Endpoint
from bellringer.core.jobs import RESERVED_JOB_NAMES
from bellringer.wire.routes import PREFIX, all_routes

_MODULES: Final = (
    agenda,
    apps,
    audit,
    backfills,
    bulk_actions,
    bulk_create,
    bulk_send,
    calendars,
    checkins,
    cluster,
    composition,
    dead_letters,
    events,
    explain,
    forecast,
    freezes,
    health,
    job_history,
    jobs,
    notifications,
    objective,
    overview,
    run_lists,
    runs,
    schedules,
    secrets,
    skips,
    tasks,
    tenants,
    verify,
    webhooks,
    workflows,
)


def _by_path() -> Mapping[str, Mapping[str, Endpoint]]:
    """Returns the endpoint of every route by path and method, in the order of the routes."""
    found = [value for module in _MODULES for value in vars(module).values() if isinstance(value, Endpoint)]
    endpoints = {endpoint.route: endpoint for endpoint in (*found, *keys.endpoints())}
    table: dict[str, dict[str, Endpoint]] = {}
    for route in all_routes():
        table.setdefault(route.path, {})[route.method] = endpoints[route]
    return table


ROUTES: Final = _by_path()


def words_beside(template: str) -> frozenset[str]:
    """Returns the literal words that routes have in place of the last parameter: a job of that name could not be
    reached.
    """
    parent, place = template.rpartition("/")[0], template.count("/")
    parts = [path.split("/") for path in ROUTES if path.startswith(f"{parent}/")]
    return frozenset(part[place] for part in parts if not part[place].startswith("{"))


if missing := words_beside(f"{PREFIX}/jobs/{{id}}") - RESERVED_JOB_NAMES:
    raise RuntimeError(f"add {sorted(missing)} to core.jobs.RESERVED_JOB_NAMES: these routes hide jobs of that name")
