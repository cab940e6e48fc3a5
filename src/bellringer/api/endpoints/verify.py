"""Verification of a tenant's history: compares its runs with what its schedules asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import flag, moment, operation, string
from bellringer.api.http.request import RequestContext
from bellringer.api.http.sse import HEARTBEAT_SECONDS, stream
from bellringer.api.http.verify_credentials import AuthenticationFailed, AuthFailureReason
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.verify import Finding, VerifyScope, VerifySummary
from bellringer.verify import verify as verify_history
from bellringer.wire.decode import instant
from bellringer.wire.routes import NDJSON, Routes

DEFAULT_WINDOW: Final = timedelta(hours=24)
MAX_WINDOW: Final = timedelta(days=31)
MAX_FINDINGS: Final = 10_000  # of one response; the summary counts all
EARLY_ERROR_SECONDS: Final = 2.0  # errors that occur within this time have their own status
WHOLE_PROCESS: Final = 0  # instead of a tenant: a verification holds one of the few connections of the process


@operation(
    Routes.verify,
    role=Role.ADMIN,
    streams=True,
    query=(
        moment("from", "start of the window; 24 hours before its end by default"),
        moment("to", "end of the window; now by default"),
        string("job", "only this job, by name or id"),
        string("late_after", "a run that was created later than this is late; 60s by default"),
        string("unstarted_after", "a run that has not started after this long is a finding; 5m by default"),
        flag("strict", "whether late runs are findings"),
    ),
)
async def verify(call: RequestContext) -> Response:
    """Verifies that no occurrence was missed, ran twice or ran early. Responds with a line of NDJSON per finding (up
    to 10,000), and the summary at the end. A response without a summary is incomplete. Empty lines mean nothing.
    """
    scope = _scope(call, call.query(), await call.service.store.now())
    places = call.service.streams.verifications
    places.check(WHOLE_PROCESS)
    found: list[Finding] = []
    checking = asyncio.create_task(_check(call, scope, found))
    await asyncio.wait([checking], timeout=EARLY_ERROR_SECONDS)
    if checking.done():
        checking.result()  # raises what the response must say, such as that there is no such job
    return stream(_lines(call, checking, found), NDJSON)


def _scope(call: RequestContext, query: Mapping[str, str], now: datetime) -> VerifyScope:
    end = instant(query.get("to"), what="to") or now
    start = instant(query.get("from"), what="from") or end - DEFAULT_WINDOW
    if end - start > MAX_WINDOW:
        raise InvalidInput(
            f"a window may have at most {MAX_WINDOW.days} days",
            hint="verify a longer one in parts, or with `bellringer verify --dsn …`",
            pointer="/from",
            code="window_too_long",
        )
    return VerifyScope(
        start=start,
        end=end,
        tenant=call.caller.tenant,
        job=query.get("job"),
        late_after=parse_duration(query.get("late_after", "60s"), what="late_after"),
        unstarted_after=parse_duration(query.get("unstarted_after", "5m"), what="unstarted_after"),
        strict=query.get("strict") == "true",
    )


async def _check(call: RequestContext, scope: VerifyScope, found: list[Finding]) -> VerifySummary:
    def keep(finding: Finding) -> None:
        if len(found) < MAX_FINDINGS:
            found.append(finding)

    with call.service.streams.verifications.taken(WHOLE_PROCESS):
        async with call.service.store.pool.acquire() as acquired:
            connection: Any = acquired
            return await verify_history(connection, scope, keep, retention=call.service.run_retention)


async def _lines(
    call: RequestContext, checking: asyncio.Task[VerifySummary], found: Sequence[Finding]
) -> AsyncIterator[bytes]:
    """Yields the findings as they are found, and empty lines in between, so that no proxy ends a quiet response."""
    sent = 0
    try:
        while not checking.done():
            await asyncio.wait([checking], timeout=HEARTBEAT_SECONDS)
            if not await call.is_still_admitted():
                raise AuthenticationFailed(AuthFailureReason.KEY)  # aborts the connection
            new = found[sent:]
            sent += len(new)
            yield b"".join(_line(finding.document()) for finding in new) or b"\n"
        summary = checking.result()
        yield b"".join(_line(finding.document()) for finding in found[sent:]) + _line(summary.document())
    finally:
        checking.cancel()


def _line(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document) + b"\n"
