"""Runs: execute a task, read a run, wait for it, its result, attempts and logs; cancel, retry and replay it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.job_request_bodies import (
    find_warnings,
    prepare_target,
    protect_overrides,
    read_send,
    with_warnings,
)
from bellringer.api.endpoints.run_lists import MAX_FILTER_LENGTH
from bellringer.api.http.json_body import JSON, RESPONSE_TIMEOUT_SECONDS
from bellringer.api.http.operation import (
    CURSOR_PARAMETER,
    LIMIT_PARAMETER,
    choice,
    flag,
    moment,
    number,
    operation,
    string,
)
from bellringer.api.http.request import LineMark, RequestContext, no_run, reply
from bellringer.api.http.sse import (
    HEARTBEAT_COMMENT,
    HEARTBEAT_SECONDS,
    MAX_STREAM_SECONDS,
    accepts,
    counted_stream,
    encode_event,
    stream,
)
from bellringer.api.http.verify_credentials import AuthenticationFailed, AuthFailureReason
from bellringer.api.render import documents
from bellringer.core.runs import FINAL_STATES, Cause, RunKey
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import send
from bellringer.engine.job_and_run_commands import replay as repeat
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import run_logs, runs, workflows
from bellringer.store.run_logs import LEVELS, SOURCES, LineFilter
from bellringer.store.runs import RunWithAttempts
from bellringer.store.wakeups import CANCELS_CHANNEL, COHORTS_CHANNEL, WORK_CHANNEL
from bellringer.telemetry import escape_control_characters
from bellringer.wire.decode import instant, note
from bellringer.wire.definitions import (
    kwargs_of,
)
from bellringer.wire.models import Empty, RequestWarning
from bellringer.wire.routes import PREFIX, Routes
from bellringer.wire.runs import (
    Attempt,
    Attempts,
    CancelRequest,
    ExecuteRequest,
    Line,
    Lines,
    ReplayRequest,
)


@operation(Routes.execute, role=Role.OPERATOR, fires=True)
async def execute(call: RequestContext) -> Response:
    """Executes a task without a job; if a run with the same `key` exists, returns that run."""
    request = await call.body(ExecuteRequest)
    order = await prepare_target(call, await read_send(call, request))
    warnings = await find_warnings(call, order)
    wakeups = call.service.wakeups
    notify = wakeups is not None and wakeups.may_notify()
    sent = await send.send(call.store, call.catalog, order, tenant_id=call.tenant_id, notify=notify)
    if wakeups is not None and sent.created and not notify:
        wakeups.announce(sent.now, [sent.key.scheduled_for])
    where = f"{PREFIX}/runs/{sent.key.id}"
    if not sent.created:
        return await run_reply(call, sent.key, created=False, Location=where, Idempotency_Replayed="true")
    return await run_reply(call, sent.key, 202, created=True, warnings=warnings, Location=where)


@operation(Routes.run, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns a run with its attempts."""
    call.query()
    found = await call.service.read_cache.run(call.tenant_id, call.part("id"))
    if found is None:
        raise no_run()
    return Response(found, media_type=JSON)


@operation(Routes.cancel, role=Role.OPERATOR, problems=(409,))
async def cancel(call: RequestContext) -> Response:
    """Cancels a run: 200 if it is cancelled; 202 if it is running and was asked to stop."""
    request = await call.body(CancelRequest)
    reason = note(request.reason, what="reason") or "cancelled by request"
    key = call.run_key()
    state = await commands.cancel(call.store, key, tenant_id=call.tenant_id, reason=reason)
    await call.service.wake(CANCELS_CHANNEL)
    return await run_reply(call, key, 202 if state == "running" else 200)


@operation(Routes.retry, role=Role.OPERATOR, problems=(409,))
async def retry(call: RequestContext) -> Response:
    """Retries a dead run, or one that waits for its next attempt, at once."""
    await call.body(Empty)
    key = call.run_key()
    await commands.retry(call.store, key, tenant_id=call.tenant_id)
    await call.service.wake(WORK_CHANNEL, (await call.store.now()).isoformat())
    await call.service.wake(COHORTS_CHANNEL)  # a retry in the far future waits in a timer
    return await run_reply(call, key, 202)


async def run_reply(
    call: RequestContext,
    key: RunKey,
    status: int = 200,
    *,
    created: bool | None = None,
    warnings: Sequence[RequestWarning] = (),
    **headers: str,
) -> Response:
    """Replies with a run and its attempts."""
    found = await runs.get_with_attempts(call.store, key, call.tenant_id)
    if found is None:
        raise no_run()
    return await render_reply(call, found, status, created=created, warnings=warnings, **headers)


async def render_reply(
    call: RequestContext,
    found: RunWithAttempts,
    status: int = 200,
    *,
    created: bool | None = None,
    warnings: Sequence[RequestWarning] = (),
    **headers: str,
) -> Response:
    run, key = found.run, found.run.key
    counted_stream = (
        await workflows.find_node_placements(call.store, call.tenant_id, [key]) if run.cause == Cause.WORKFLOW else {}
    )
    body = documents.render_run(run, found.attempts, created=created, placed=counted_stream.get(key))
    return reply(with_warnings(body, warnings), status, **headers)


MAX_WAIT_SECONDS: Final = 60
DEFAULT_WAIT_SECONDS: Final = 30


@operation(
    Routes.wait_run,
    role=Role.VIEWER,
    query=(number("timeout", "maximum seconds to wait; 30 if omitted", 0, MAX_WAIT_SECONDS),),
    problems=(429,),
    streams=True,
)
async def wait(call: RequestContext) -> Response:
    """Waits for the end of a run: 200 when it has ended, 202 after the timeout."""
    seconds = _seconds(call.query().get("timeout"))
    key, service = call.run_key(), call.service
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    call.extend_timeout(seconds + RESPONSE_TIMEOUT_SECONDS)
    with service.streams.waits.taken(call.tenant_id):
        while True:
            found = await runs.get_with_attempts(call.store, key, call.tenant_id)
            if found is None:
                raise no_run()
            left = end - loop.time()
            if found.run.state in FINAL_STATES:
                return await render_reply(call, found)
            if left <= 0 or service.streams.is_closing:
                return await render_reply(call, found, 202, Retry_After="1")
            await service.streams.endings.wait(service.store, service.clock, key, min(left, HEARTBEAT_SECONDS))
            if not await call.is_still_admitted():
                raise AuthenticationFailed(AuthFailureReason.KEY)


def _seconds(text: str | None) -> int:
    if text is None:
        return DEFAULT_WAIT_SECONDS
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) <= MAX_WAIT_SECONDS):
        raise InvalidInput(f"timeout must be a number of seconds from 0 to {MAX_WAIT_SECONDS}", code="limit_range")
    return int(text)


@operation(Routes.result, role=Role.VIEWER, problems=(409,))
async def result(call: RequestContext) -> Response:
    """Returns the result of an ended run, or the error that ended it."""
    call.query()
    key = call.run_key()
    stored = await runs.get(call.store, key, call.tenant_id)
    if stored is None:
        raise no_run()
    if stored.state not in FINAL_STATES:
        raise Conflict(
            f"the run is {stored.state}", hint=f"wait for its end at {PREFIX}/runs/{key.id}/wait", code="run_unfinished"
        )
    return reply(documents.render_result(stored))


@operation(Routes.attempts, role=Role.VIEWER)
async def attempts(call: RequestContext) -> Response:
    """Lists the attempts of a run, the oldest first."""
    call.query()
    return reply(Attempts(items=await _attempts(call)))


@operation(Routes.attempt, role=Role.VIEWER)
async def attempt(call: RequestContext) -> Response:
    """Returns one attempt by its number; 0 is an end without an attempt."""
    call.query()
    wanted = call.part("number")
    for found in await _attempts(call):
        if str(found.attempt) == wanted:
            return reply(found)
    raise NotFound("there is no such attempt")


async def _attempts(call: RequestContext) -> list[Attempt]:
    found = await runs.get_with_attempts(call.store, call.run_key(), call.tenant_id)
    if found is None:
        raise no_run()
    hidden = found.run.spec.redact if found.run.spec else ()
    return [documents.render_attempt(row, hidden) for row in found.attempts]


@operation(Routes.replay, role=Role.OPERATOR, fires=True, problems=(409,))
async def replay(call: RequestContext) -> Response:
    """Replays an ended run as a new run; given arguments replace those of the original."""
    request = await call.body(ReplayRequest)
    kwargs, reason = kwargs_of(request), note(request.reason, what="reason")
    args = request.args
    if call.service.payload_codec is not None and (args or kwargs):
        run = await runs.get(call.store, call.run_key(), call.tenant_id)
        args, kwargs = protect_overrides(call, None if run is None else run.task, args, kwargs)
    key = await repeat(call.store, call.run_key(), tenant_id=call.tenant_id, args=args, kwargs=kwargs, reason=reason)
    await call.service.wake(WORK_CHANNEL, (await call.store.now()).isoformat())
    return await run_reply(call, key, 202, Location=f"{PREFIX}/runs/{key.id}")


NDJSON: Final = "application/x-ndjson"
PLAIN_TEXT: Final = "text/plain"
LOG_LINES_PER_QUERY: Final = 500  # lines in one query
LOG_POLL_SECONDS: Final = 0.5  # between two queries for new lines
_MAX_INT32: Final = (1 << 31) - 1
_MAX_INT63: Final = (1 << 63) - 1


@operation(
    Routes.logs,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        choice("level", "only lines of this level or higher", LEVELS),
        number("attempt", "only lines of this attempt", 0, _MAX_INT32),
        string("q", "only lines with this text"),
        string(
            "source",
            "only lines of these sources, separated by commas: ctx, stdout, stderr, warnings, logging (all loggers) or "
            "logging:NAME (this logger and those below it)",
        ),
        moment("since", "only lines at or after this time"),
        number("after", "only lines after the one with this number", 0, _MAX_INT63),
        number("tail", "only this many of the last lines, the oldest first", 1, 200),
        flag("follow", "stream new lines as server-sent events until the run has ended"),
    ),
    streams=True,
)
async def list_log_lines(call: RequestContext) -> Response:
    """Lists the log lines and the captured output of a run's handler, the oldest first.

    With `Accept: application/x-ndjson` or `text/plain`, returns all lines; with `follow=true`, streams server-sent
    events, which continue after `Last-Event-ID`.
    """
    query = call.query()
    key, limit = call.run_key(), call.limit()
    wanted = _wanted(call)
    of = f"logs of {key.id} {wanted.level or ''} {wanted.attempt or ''} {wanted.q or ''}"
    of += f" {','.join(wanted.sources or ())} {wanted.since or ''}"
    after = _number(query.get("after"), "after", 0, _MAX_INT63) or 0
    mark = call.cursor(of, LineMark)
    tail = _number(query.get("tail"), "tail", 1, 200)
    if await runs.get(call.store, key, call.tenant_id) is None:
        raise no_run()
    if _wants_follow(query.get("follow")) and call.may_stream:
        call.service.streams.streams.check(call.tenant_id)
        return stream(_follow_lines(call, key, wanted, max(after, _last_seen(call))))
    accept = call.request.headers.get("accept", "")
    for media, written in ((NDJSON, _json_line), (PLAIN_TEXT, _text_line)):
        if call.may_stream and accepts(accept, media):
            places = call.service.streams.streams
            places.check(call.tenant_id)
            return stream(counted_stream(places, call.tenant_id, _all_lines(call, key, wanted, after, written)), media)
    if tail is not None:
        found = await run_logs.last_lines(call.reads, key, wanted, tail)
        return reply(Lines(items=[documents.render_log_line(row) for row in found]))
    page = await run_logs.lines_after(call.reads, key, wanted, mark.line if mark else after, limit)
    following = call.cursor_to(of, LineMark(page.stop)) if page.stop is not None else None
    return reply(Lines(items=[documents.render_log_line(row) for row in page.lines], next_cursor=following))


async def _all_lines(
    call: RequestContext, key: RunKey, wanted: LineFilter, line: int, written: Callable[[Line], bytes]
) -> AsyncIterator[bytes]:
    while True:
        if not await call.is_still_admitted():
            raise AuthenticationFailed(
                AuthFailureReason.KEY
            )  # the connection is aborted, so that the log does not look complete
        page = await run_logs.lines_after(call.reads, key, wanted, line, LOG_LINES_PER_QUERY)
        yield b"".join(written(documents.render_log_line(row)) for row in page.lines)
        if page.stop is None:
            return
        line = page.stop


def _json_line(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _text_line(line: Line) -> bytes:
    """Formats one line of text, whatever the message contains."""
    fields = "".join(f" {name}={msgspec.json.encode(value).decode()}" for name, value in (line.fields or {}).items())
    source = "" if line.source == "ctx" else f"[{line.source}] "
    text = f"{line.at:%Y-%m-%dT%H:%M:%S.%fZ} #{line.attempt} {line.level} {source}{line.message}{fields}"
    return escape_control_characters(text.replace("\r", " ").replace("\n", " ")).encode() + b"\n"


async def _follow_lines(call: RequestContext, key: RunKey, wanted: LineFilter, line: int) -> AsyncIterator[bytes]:
    """Yields new lines. Lines that were logged right before the end may arrive after it, so it reads once more."""
    clock = call.service.clock
    end, quiet_since, last_look = clock.monotonic() + MAX_STREAM_SECONDS, clock.monotonic(), False
    with call.service.streams.streams.taken(call.tenant_id):
        yield HEARTBEAT_COMMENT
        while clock.monotonic() < end and not call.service.streams.is_closing and await call.is_still_admitted():
            page = await run_logs.lines_after(call.store, key, wanted, line, LOG_LINES_PER_QUERY)
            for row in page.lines:
                yield encode_event(documents.render_log_line(row), name="line", number=str(row.line))
            if page.lines or page.stop is not None:
                line = page.stop or page.lines[-1].line
                quiet_since = clock.monotonic()
                continue
            run = await runs.get(call.store, key, call.tenant_id)
            if last_look or run is None:
                yield encode_event({"state": run.state.value if run else None}, name="end")
                return
            last_look = run.state in FINAL_STATES
            if clock.monotonic() - quiet_since > HEARTBEAT_SECONDS:
                quiet_since = clock.monotonic()
                yield HEARTBEAT_COMMENT
            await clock.sleep(LOG_POLL_SECONDS)


def _last_seen(call: RequestContext) -> int:
    text = call.request.headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _wanted(call: RequestContext) -> LineFilter:
    query = call.query()
    level, words = query.get("level"), query.get("q")
    if level is not None and level not in LEVELS:
        raise InvalidInput(f"unknown level {level[:40]!r}", hint=f"use one of {', '.join(LEVELS)}", code="choice")
    if words is not None and not 0 < len(words) <= MAX_FILTER_LENGTH:
        raise InvalidInput(f"q must have 1 to {MAX_FILTER_LENGTH} characters", code="limit")
    return LineFilter(
        level=level,
        attempt=_number(query.get("attempt"), "attempt", 0, _MAX_INT32),
        q=words,
        sources=_sources(query.get("source")),
        since=instant(query.get("since"), what="since"),
    )


def _sources(text: str | None) -> list[str] | None:
    if text is None:
        return None
    if not 0 < len(text) <= MAX_FILTER_LENGTH:
        raise InvalidInput(f"source must have 1 to {MAX_FILTER_LENGTH} characters", code="limit")
    sources = [word.strip() for word in text.split(",")]
    unknown = [word for word in sources if word not in SOURCES and not word.startswith("logging:")]
    if unknown:
        raise InvalidInput(
            f"unknown source {unknown[0][:40]!r}", hint=f"use {', '.join(SOURCES)} or logging:NAME", code="choice"
        )
    return sources


def _number(text: str | None, what: str, least: int, most: int) -> int | None:
    if text is None:
        return None
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= value <= most:
        raise InvalidInput(f"{what} must be a number from {least} to {most}", code="limit_range")
    return value


def _wants_follow(text: str | None) -> bool:
    if text not in {None, "true", "false"}:
        raise InvalidInput("follow must be true or false", code="choice")
    return text == "true"
