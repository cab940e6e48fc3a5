"""Reads bulk requests: one JSON document with items, or NDJSON with an item on each line. Renders their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bellringer.api.http.error_responses import Refused
from bellringer.api.http.json_body import JSON, NDJSON, THREAD_THRESHOLD_BYTES, check_media, parse
from bellringer.api.http.operation import Query, flag
from bellringer.api.http.request import RequestContext
from bellringer.errors import InvalidInput
from bellringer.wire.decode import MOST_FAULTS, DecodeErrors, read
from bellringer.wire.problems import Fault

BULK_TIMEOUT_SECONDS: Final = 30.0
YIELD_EVERY_ITEMS: Final = 250  # after which other requests may run
ATOMIC_PARAMETER: Final[Query] = flag(
    "atomic", "for NDJSON: create all items or none (true, the default), or each on its own (false)"
)


class _Envelope(msgspec.Struct):
    """A bulk request whose items are not validated yet."""

    items: list[Any]
    atomic: bool = True


async def read_items(call: RequestContext, most: int, what: str) -> tuple[Sequence[Any], bool]:
    """Returns the documents of a request's items, and whether all or none of them are to be created."""
    atomic_parameter, data = call.query().get("atomic"), await call.raw()
    if call.request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "encoding_unsupported", "compressed bodies are not supported", hint="send plain JSON")
    if atomic_parameter not in (None, "true", "false"):
        raise InvalidInput("atomic must be true or false", code="choice")
    arguments = (call.request.headers.get("content-type", ""), data, atomic_parameter, most, what)
    is_large = len(data) > THREAD_THRESHOLD_BYTES
    found = await asyncio.to_thread(_parse_items, *arguments) if is_large else _parse_items(*arguments)
    call.extend_timeout(BULK_TIMEOUT_SECONDS)
    return found


def _parse_items(
    content_type: str, data: bytes, atomic_parameter: str | None, most: int, what: str
) -> tuple[Sequence[Any], bool]:
    items: Sequence[Any]
    if check_media(content_type, (JSON, NDJSON)) == NDJSON:
        lines = [line for line in data.split(b"\n") if line.strip()]
        items = [_parse_line(index, line) for index, line in enumerate(lines)] if len(lines) <= most else lines
        atomic = atomic_parameter != "false"
    else:
        document = parse(data)
        if not isinstance(document, dict):
            raise Refused(400, "body_not_object", "the body must be a JSON object")
        read(_Envelope, document)
        items, atomic = document["items"], document.get("atomic", atomic_parameter != "false")
        if atomic_parameter is not None and atomic != (atomic_parameter == "true"):
            message = "the body and the query give different values for atomic"
            raise InvalidInput(message, pointer="/atomic", code="conflicting_fields")
    if not 1 <= len(items) <= most:
        raise InvalidInput(f"a request takes 1 to {most:,} {what}", pointer="/items", code="limit")
    return items, atomic


def _parse_line(index: int, line: bytes) -> Any:
    try:
        return parse(line)
    except (Refused, InvalidInput) as error:
        error.pointer = f"/items/{index}{error.pointer}"
        raise


def is_brief(call: RequestContext) -> bool:
    """Returns whether the caller wants only the ids of what was created."""
    return "return=minimal" in call.request.headers.get("prefer", "").replace(" ", "").lower()


def all_faults(refused: Mapping[int, InvalidInput]) -> DecodeErrors:
    """Returns the faults of all items as one error, up to the number that a response lists."""
    faults: list[InvalidInput] = []
    for index in sorted(refused):
        faults += [_with_index(fault, index) for fault in _faults_of(refused[index])]
        if len(faults) >= MOST_FAULTS:
            break
    return DecodeErrors(faults)


def render_faults(error: InvalidInput) -> list[Fault]:
    """Returns the faults of one item."""
    return [Fault(pointer=f.pointer, code=f.code, detail=f.message, hint=f.hint) for f in _faults_of(error)]


def _faults_of(error: InvalidInput) -> Sequence[InvalidInput]:
    return error.faults if isinstance(error, DecodeErrors) else (error,)


def _with_index(fault: InvalidInput, index: int) -> InvalidInput:
    return InvalidInput(fault.message, hint=fault.hint, pointer=f"/items/{index}{fault.pointer}", code=fault.code)
