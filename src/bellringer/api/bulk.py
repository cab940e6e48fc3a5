"""Many jobs in one request, as one JSON document or a line of JSON each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.bodies import JSON, LARGE, NDJSON, check_count, check_media, parse
from bellringer.api.calls import Call, reply
from bellringer.api.idempotency import HEADER
from bellringer.api.moulds import Reading
from bellringer.api.operations import flag, operation
from bellringer.api.problems import Refused
from bellringer.api.targets import prepared
from bellringer.errors import InvalidInput
from bellringer.jobs import Definition
from bellringer.lifecycle import bulk
from bellringer.lifecycle.register import Written
from bellringer.store.wakeups import HANDS
from bellringer.wire import Fault, Faults, read
from bellringer.wire.asks_jobs import BULK_LIMIT, MOST_JOBS
from bellringer.wire.jobs import BulkCreated, BulkItem, BulkRequest
from bellringer.wire.reading import MOST_FAULTS

T = TypeVar("T")

PATIENCE: Final = 30.0  # seconds: ten thousand jobs take longer than one, above all beside other work
FIRST: Final = 200  # jobs that the database creates while the next are read: few, so that it begins soon
GROWTH: Final = 3  # … each time so many times as many: to create a job takes that much longer than to read it …
BATCH: Final = 2_500  # … up to so many
# A thread of its own: who waits for it may hold the locks of all shards, and the others may be busy for seconds.
_OPENING: Final = ThreadPoolExecutor(1, "bulk")
_KEYS: Final = (b'"items"', b'"atomic"')


@operation(
    "jobs",
    role=Role.EDITOR,
    answers={201: BulkCreated, 207: BulkCreated},
    body=BulkRequest,
    media=(JSON, NDJSON),
    query=(flag("atomic", "of lines: all or none (true), or each for itself"),),
    largest=BULK_LIMIT,
)
async def create(call: Call) -> Response:
    """Make up to 10,000 jobs: 201 all of them, or, where `atomic` is false, 207 with what became of each."""
    query = call.query()
    data, wish = await call.raw(), query.get("atomic")
    _check(call, wish)
    texts = None if HEADER in call.request.headers else await _aside(_glance, call, data, wish)
    items, atomic = (texts, True) if texts is not None else await _aside(_read, call, data, wish)
    call.deadline.extend(PATIENCE)
    is_brief = "return=minimal" in call.request.headers.get("prefer", "").replace(" ", "").lower()
    reader = _Reader(call)
    if atomic and HEADER not in call.request.headers:  # with a key, the request is one transaction already
        made = await bulk.create_together(
            call.store,
            call.names,
            reader.batches(items),
            tenant_id=call.tenant_id,
            who=call.who,
            now=call.service.desk.now,
        )
        if made is not None:
            await call.service.wake(HANDS)
            if is_brief:
                answer = BulkCreated(created=len(items), failed=0)
                asyncio.get_running_loop().call_soon(_forget, items, made)
                return reply(msgspec.structs.replace(answer, job_ids=made.ids()), 201)
            return _answer(len(items), dict(enumerate(made.written())), is_brief=False, atomic=True)
        if texts is not None:
            items, atomic = await _aside(_read, call, data, wish)  # as a whole, to say what is in the way
    wanted, faults = await reader.definitions(items)
    if faults and atomic:
        raise _all_faults(faults)
    outcomes = await bulk.create(
        call.store,
        call.names,
        wanted,
        tenant_id=call.tenant_id,
        who=call.who,
        now=await call.service.desk.now(),
        atomic=atomic,
    )
    refused = dict(bulk.refusals(outcomes))
    if refused and atomic:
        raise _all_faults(refused)
    await call.service.wake(HANDS)
    return _answer(len(items), {**outcomes, **faults}, is_brief=is_brief, atomic=atomic)


def _forget(*_: object) -> None:
    """To let go of thousands of jobs takes longer than to answer: it is done when the answer is out."""


def _check(call: Call, wish: str | None) -> None:
    if call.request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "encoding_unsupported", "compressed bodies are not read", hint="send plain JSON")
    if wish not in (None, "true", "false"):
        raise InvalidInput("atomic is true or false", code="choice")


async def _aside(look: Callable[[Call, bytes, str | None], T], call: Call, data: bytes, wish: str | None) -> T:
    """In a thread, if it is much: others have their turn meanwhile."""
    return await asyncio.to_thread(look, call, data, wish) if len(data) > LARGE else look(call, data, wish)


def _glance(call: Call, data: bytes, wish: str | None) -> Sequence[msgspec.Raw] | None:
    """The items of one document as text, if all or none are wanted: some are parsed while the database creates those
    before them. None: all are parsed first, for a part of them is wanted, or a key may be there twice."""
    if check_media(call.request.headers.get("content-type", ""), (JSON, NDJSON)) == NDJSON or wish == "false":
        return None
    check_count(data)
    if b"\\" in data or b"\0" in data or any(data.count(key) > 1 for key in _KEYS):
        return None
    try:
        found = msgspec.json.decode(data, type=_Glance)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found.items if found.atomic and 1 <= len(found.items) <= MOST_JOBS else None


def _opened(texts: Sequence[msgspec.Raw]) -> Sequence[Any]:
    """Items that were only glanced at, read as strictly as in their document, and at the same depth in it."""
    try:
        items: Sequence[Any] = parse(b'{"items":[' + b",".join(texts) + b"]}")["items"]
    except Refused as error:
        raise InvalidInput(error.message, code=error.code) from error
    return items


def _read(call: Call, data: bytes, wish: str | None) -> tuple[Sequence[Any], bool]:
    """The items, and whether all or none of them are wanted."""
    kind = check_media(call.request.headers.get("content-type", ""), (JSON, NDJSON))
    items: Sequence[Any]
    if kind == NDJSON:
        lines = [line for line in data.split(b"\n") if line.strip()]
        items = [_line(place, line) for place, line in enumerate(lines)] if len(lines) <= MOST_JOBS else lines
        atomic = wish != "false"
    else:
        document = parse(data)
        if not isinstance(document, dict):
            raise Refused(400, "body_not_object", "the body must be a JSON object")
        items, atomic = _items(document, wish)
    if not 1 <= len(items) <= MOST_JOBS:
        raise InvalidInput(f"a request takes 1 to {MOST_JOBS:,} jobs", pointer="/items", code="limit")
    return items, atomic


def _line(place: int, line: bytes) -> Any:
    try:
        return parse(line)
    except (Refused, InvalidInput) as error:
        error.pointer = f"/items/{place}{error.pointer}"
        raise


def _items(document: Mapping[str, Any], wish: str | None) -> tuple[Sequence[Any], bool]:
    read(_Envelope, document)
    items, atomic = document["items"], document.get("atomic", wish != "false")
    if wish is not None and atomic != (wish == "true"):
        raise InvalidInput("atomic is said twice, and differently", pointer="/atomic", code="conflicting_fields")
    return items, atomic


class _Envelope(msgspec.Struct):
    """A bulk request whose items are not looked into yet."""

    items: list[Any]
    atomic: bool = True


class _Glance(msgspec.Struct, forbid_unknown_fields=True):
    """A bulk request whose items are text yet."""

    items: list[msgspec.Raw]
    atomic: bool = True


class _Reader:
    """Reads the items."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._reading = Reading(call.service.moulds)

    async def batches(self, items: Sequence[Any]) -> AsyncIterator[Sequence[Definition]]:
        """All of them, some at a time; what is wrong with one ends it."""
        start, many = 0, FIRST
        while start < len(items):
            some = items[start : start + many]
            if isinstance(some[0], msgspec.Raw):
                some = await asyncio.get_running_loop().run_in_executor(_OPENING, _opened, some)
            wanted, faults = await self.definitions(some)
            if faults:
                raise next(iter(faults.values()))
            yield list(wanted.values())
            start, many = start + many, min(GROWTH * many, BATCH)

    async def definitions(self, items: Sequence[Any]) -> tuple[dict[int, Definition], dict[int, InvalidInput]]:
        wanted: dict[int, Definition] = {}
        faults: dict[int, InvalidInput] = {}
        for place, item in enumerate(items):
            if place % 250 == 249:
                await asyncio.sleep(0)  # others have their turn meanwhile
            try:
                wanted[place] = self._reading.again(item) or await self._first(item)
            except InvalidInput as error:
                faults[place] = error
        return wanted, faults

    async def _first(self, item: Any) -> Definition:
        await asyncio.sleep(0)  # to read one in full takes as long as to cast dozens
        return await prepared(self._call, await self._reading.first(item))


def _all_faults(refused: Mapping[int, InvalidInput]) -> Faults:
    """What is wrong with all of them, as far as an answer tells it."""
    told: list[InvalidInput] = []
    for place in sorted(refused):
        told += [_placed(fault, place) for fault in _each(refused[place])]
        if len(told) >= MOST_FAULTS:
            break
    return Faults(told)


def _each(error: InvalidInput) -> Sequence[InvalidInput]:
    return error.faults if isinstance(error, Faults) else (error,)


def _placed(fault: InvalidInput, place: int) -> InvalidInput:
    return InvalidInput(fault.message, hint=fault.hint, pointer=f"/items/{place}{fault.pointer}", code=fault.code)


def _answer(count: int, outcomes: Mapping[int, Written | InvalidInput], *, is_brief: bool, atomic: bool) -> Response:
    made = sum(isinstance(outcome, Written) for outcome in outcomes.values())
    answer = BulkCreated(created=made, failed=count - made)
    if atomic and is_brief:
        ids = [outcomes[place].registered.job_id for place in range(count)]  # type: ignore[union-attr] # all
        return reply(msgspec.structs.replace(answer, job_ids=ids), 201)
    items = [_item(place, outcomes[place], is_brief=is_brief) for place in range(count)]
    return reply(msgspec.structs.replace(answer, items=items), 201 if atomic else 207)


def _item(place: int, outcome: Written | InvalidInput, *, is_brief: bool) -> BulkItem:
    if isinstance(outcome, Written):
        job = UNSET if is_brief else documents.job(outcome.job())
        return BulkItem(index=place, status=201, job_id=str(outcome.registered.job_id), job=job)
    errors = [Fault(pointer=f.pointer, code=f.code, detail=f.message, hint=f.hint) for f in _each(outcome)]
    status = 409 if outcome.code == "name_taken" else 422
    return BulkItem(index=place, status=status, code=outcome.code, detail=outcome.message, errors=errors)
