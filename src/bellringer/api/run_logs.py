"""What a run's handler logged: page by page, whole as lines of text or JSON, or as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, LineMark, no_run, reply
from bellringer.api.logins import unauthenticated
from bellringer.api.operations import CURSOR, LIMIT, choice, flag, number, operation, string
from bellringer.api.run_filters import LONGEST as LONGEST_WORDS
from bellringer.api.streams import HEART, HEARTBEAT, LONGEST, SSE, event, placed, stream, wants
from bellringer.errors import InvalidInput
from bellringer.runs import FINAL, RunKey
from bellringer.store import logs, runs
from bellringer.store.logs import LEVELS, LineFilter
from bellringer.wire import Line, Lines

NDJSON: Final = "application/x-ndjson"
TEXT: Final = "text/plain"
CHUNK: Final = 500  # lines that a stream reads at once
FOLLOW: Final = 0.5  # seconds between two looks for new lines
_LARGEST: Final = (1 << 31) - 1


@operation(
    "runs",
    role=Role.VIEWER,
    answers={200: (Lines, NDJSON, TEXT, SSE)},
    query=(
        LIMIT,
        CURSOR,
        choice("level", "only lines of this level or above it", LEVELS),
        number("attempt", "only lines of this try", 0, _LARGEST),
        string("q", "only lines with these words"),
        number("tail", "the last so many lines, oldest first", 1, 200),
        flag("follow", "go on with what comes, as server-sent events, until the run has ended"),
    ),
    streams=True,
)
async def listing(call: Call) -> Response:
    """What the handler logged, oldest first.

    Whole as `application/x-ndjson` or `text/plain` where `Accept` asks for that; with `follow=true` as server-sent
    events, which go on after `Last-Event-ID`.
    """
    query = call.query()
    key, limit = call.run_key(), call.limit()
    wanted = _wanted(call)
    of = f"logs of {key.id} {wanted.level or ''} {wanted.attempt or ''} {wanted.q or ''}"
    mark = call.cursor(of, LineMark)
    tail = _number(query.get("tail"), "tail", 1, 200)
    if await runs.get(call.store, key, call.tenant_id) is None:
        raise no_run()
    if _wants_follow(query.get("follow")) and call.goes_on:
        call.service.streams.streams.check(call.tenant_id)
        return stream(_following(call, key, wanted, _last_seen(call)))
    accept = call.request.headers.get("accept", "")
    for media, written in ((NDJSON, _json_line), (TEXT, _text_line)):
        if call.goes_on and wants(accept, media):
            places = call.service.streams.streams
            places.check(call.tenant_id)
            return stream(placed(places, call.tenant_id, _whole(call, key, wanted, written)), media)
    if tail is not None:
        found = await logs.tail(call.reads, key, wanted, tail)
        return reply(Lines(items=[documents.line(row) for row in found]))
    page = await logs.after(call.reads, key, wanted, mark.line if mark else 0, limit)
    following = call.cursor_to(of, LineMark(page.stop)) if page.stop is not None else None
    return reply(Lines(items=[documents.line(row) for row in page.lines], next_cursor=following))


async def _whole(call: Call, key: RunKey, wanted: LineFilter, written: Callable[[Line], bytes]) -> AsyncIterator[bytes]:
    line = 0
    while True:
        if not await call.still():
            raise unauthenticated()  # it is cut off, and does not look like all
        page = await logs.after(call.reads, key, wanted, line, CHUNK)
        yield b"".join(written(documents.line(row)) for row in page.lines)
        if page.stop is None:
            return
        line = page.stop


def _json_line(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _text_line(line: Line) -> bytes:
    """One line each, whatever the message holds."""
    fields = "".join(f" {name}={msgspec.json.encode(value).decode()}" for name, value in (line.fields or {}).items())
    text = f"{line.at:%Y-%m-%dT%H:%M:%S.%fZ} #{line.attempt} {line.level} {line.message}{fields}"
    return text.replace("\r", " ").replace("\n", " ").encode() + b"\n"


async def _following(call: Call, key: RunKey, wanted: LineFilter, line: int) -> AsyncIterator[bytes]:
    """Lines as they come. What is logged right before the end may arrive after it: look once more."""
    clock = call.service.clock
    end, quiet_since, last_look = clock.monotonic() + LONGEST, clock.monotonic(), False
    with call.service.streams.streams.taken(call.tenant_id):
        yield HEART
        while clock.monotonic() < end and not call.service.streams.is_closing and await call.still():
            page = await logs.after(call.store, key, wanted, line, CHUNK)
            for row in page.lines:
                yield event(documents.line(row), name="line", number=str(row.line))
            if page.lines or page.stop is not None:
                line = page.stop or page.lines[-1].line
                quiet_since = clock.monotonic()
                continue
            run = await runs.get(call.store, key, call.tenant_id)
            if last_look or run is None:
                yield event({"state": run.state.value if run else None}, name="end")
                return
            last_look = run.state in FINAL
            if clock.monotonic() - quiet_since > HEARTBEAT:
                quiet_since = clock.monotonic()
                yield HEART
            await clock.sleep(FOLLOW)


def _last_seen(call: Call) -> int:
    text = call.request.headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _wanted(call: Call) -> LineFilter:
    query = call.query()
    level, words = query.get("level"), query.get("q")
    if level is not None and level not in LEVELS:
        raise InvalidInput(f"there is no level {level[:40]!r}", hint=f"use one of {', '.join(LEVELS)}", code="choice")
    if words is not None and not 0 < len(words) <= LONGEST_WORDS:
        raise InvalidInput(f"q must have 1 to {LONGEST_WORDS} characters", code="limit")
    return LineFilter(level=level, attempt=_number(query.get("attempt"), "attempt", 0, _LARGEST), q=words)


def _number(text: str | None, what: str, least: int, most: int) -> int | None:
    if text is None:
        return None
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else -1
    if not least <= value <= most:
        raise InvalidInput(f"{what} must be a number from {least} to {most}", code="limit_range")
    return value


def _wants_follow(text: str | None) -> bool:
    if text not in {None, "true", "false"}:
        raise InvalidInput("follow must be true or false", code="choice")
    return text == "true"
