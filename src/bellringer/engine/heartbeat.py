"""The dead man's switch: calls an external URL while the cluster is healthy. If the calls stop, that service alerts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from bellringer.egress.addresses import parse_networks
from bellringer.egress.guarded_connect import EgressGuard, resolve
from bellringer.egress.http_call import CallFailure, HttpRequest, send_request
from bellringer.egress.urls import parse_url
from bellringer.store import cohorts, leases
from bellringer.store.connection_pool import Store

MAX_FIRE_DELAY: Final = timedelta(seconds=30)  # of a due cohort or timer in a healthy cluster
HEARTBEAT_TIMEOUT: Final = timedelta(seconds=10)
_ANYWHERE: Final = parse_networks(("0.0.0.0/0", "::/0"))  # the operator names the URL, not a tenant


async def find_problem(store: Store) -> str | None:
    """Returns why the cluster is not healthy (shards without a scheduler, due work that nobody fires), or None."""
    free = sum(lease.holder is None or lease.seconds_left <= 0 for lease in await leases.list_leases(store))
    if free:
        return f"{free} shards have no scheduler"
    if overdue := await cohorts.count_overdue(store, MAX_FIRE_DELAY):
        return f"{overdue} jobs and timers are overdue"
    return None


async def call_heartbeat_url(url: str, monotonic: Callable[[], float]) -> str | None:
    """Calls the URL; returns what went wrong, or None. The text does not contain the URL, which is a secret."""
    target = parse_url(url, _ANYWHERE, pointer="")
    request = HttpRequest(url=target, method="GET", timeout=HEARTBEAT_TIMEOUT)
    end = await send_request(request, EgressGuard(_ANYWHERE, target.scheme == "https", resolve), monotonic)
    if isinstance(end, CallFailure):
        return f"{end.trouble.value}: {end.message}"
    return None if 200 <= end.status < 300 else f"the service returned {end.status}"
