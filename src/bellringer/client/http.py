"""Translates between the client and HTTP: requests into arguments of httpx, responses into values or errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import httpx2
import msgspec

from bellringer.client.calls import ApiRequest
from bellringer.clock import SystemClock
from bellringer.errors import BellringerError, ConfigError, NotFound, Unavailable
from bellringer.wire.problems import Problem
from bellringer.wire.problems import to_error as problem_to_error
from bellringer.wire.routes import Route

T = TypeVar("T")

FIRST_POLL_SECONDS: Final = 0.05
LONGEST_POLL_SECONDS: Final = 1.0
_MISSING: Final = re.compile(r"there is no such ([a-z -]+)")
# The collections in paths that are not the plural of what the server calls their members.
_COLLECTIONS: Final = {
    "workflow run": "runs",
    "webhook endpoint": "webhooks",
    "delivery": "deliveries",
    "skip": "skips",
}


def check_url(url: str) -> str:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError(f"{url[:200]!r} is not the URL of a server", hint="write it like http://127.0.0.1:8700")
    return url


def auth_headers(token: str | None, tenant: str | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {token}" if token else None, "X-Tenant": tenant}
    return {name: value for name, value in headers.items() if value}


def to_httpx(request: ApiRequest[Any]) -> dict[str, Any]:
    content_type = {} if request.body is None else {"Content-Type": request.route.media[0]}
    return {
        "method": request.route.method,
        "url": request.path,
        "params": dict(request.query),
        "content": request.content(),
        "headers": {**content_type, **request.headers},
    }


def poll_intervals(run_id: str, timeout: float | None) -> Iterator[float]:
    """Yield the seconds to wait between two polls, growing up to a second. Raises Unavailable after the timeout."""
    clock = SystemClock()
    end = None if timeout is None else clock.monotonic() + timeout
    interval = FIRST_POLL_SECONDS
    while True:
        left = None if end is None else end - clock.monotonic()
        yield interval if left is None else max(0.0, min(interval, left))
        if left is not None and left <= 0:
            raise Unavailable(
                f"run {run_id} has not ended within {timeout:g} s", hint="wait longer, or look at the state of the run"
            )
        interval = min(interval * 1.5, LONGEST_POLL_SECONDS)


def decode_response(url: str, route: Route[T], response: httpx2.Response) -> T:
    if not (response.is_success or response.status_code in route.responses):
        raise to_error(url, response)
    if route.response is type(None):
        return None
    try:
        return msgspec.json.decode(response.content, type=route.response)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _unknown_server(url, response) from None


def to_error(url: str, response: httpx2.Response) -> BellringerError:
    try:
        error = problem_to_error(msgspec.json.decode(response.content, type=Problem))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _unknown_server(url, response)
    return _name_missing(error, url, response) if isinstance(error, NotFound) else error


def _name_missing(error: NotFound, url: str, response: httpx2.Response) -> NotFound:
    """Adds to "there is no such job" which one, on which server, and for which tenant if the caller chose one."""
    found = _MISSING.fullmatch(error.message)
    if found is None:
        return error
    collection = _COLLECTIONS.get(found[1], f"{found[1]}s".replace(" ", "-"))
    segments = response.request.url.raw_path.decode().partition("?")[0].split("/")
    name = segments[segments.index(collection) + 1 :][:1] if collection in segments else []
    what = f"{found[1]} {unquote(name[0])!r}" if name and name[0] else f"such {found[1]}"
    tenant = response.request.headers.get("X-Tenant")
    of_tenant = f" of tenant {tenant!r}" if tenant else ""
    named = NotFound(f"there is no {what}{of_tenant} on {url}", hint=error.hint, pointer=error.pointer)
    named.code = error.code
    return named


def _unknown_server(url: str, response: httpx2.Response) -> BellringerError:
    message = f"{url} responded with status {response.status_code} and a body that is not from Bellringer"
    if response.status_code in {502, 503, 504}:  # a proxy in front of a server that is down
        return Unavailable(message, hint="try again in a moment")
    return BellringerError(message, hint="check BELLRINGER_URL")


def transport_error(url: str, error: Exception) -> Unavailable:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return Unavailable(
            f"cannot connect to a Bellringer server at {url}",
            hint="start one with `bellringer dev`, or set BELLRINGER_URL",
        )
    if isinstance(error, httpx2.TimeoutException):
        return Unavailable(f"{url} did not respond in time", hint="try again, or use a longer timeout")
    return Unavailable(
        f"the connection to {url} was lost", hint="the request may have been executed: check before you repeat it"
    )
