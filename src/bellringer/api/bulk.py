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
from bellringer.api.bodies import JSON, LARGE, NDJSON, check_count, check_media, is_too_deep, parse
from bellringer.api.calls import Call, reply
from bellringer.api.idempotency import HEADER
from bellringer.api.operations import flag, operation
from bellringer.api.problems import Refused
from bellringer.api.targets import prepared
from bellringer.errors import InvalidInput
from bellringer.jobs import HTTP, Definition
from bellringer.lifecycle import bulk
from bellringer.lifecycle.register import Written
from bellringer.store.wakeups import HANDS
from bellringer.wire import Fault, Faults, JobRequest, read, to_definition
from bellringer.wire.asks_jobs import BULK_LIMIT, MOST_JOBS
from bellringer.wire.definitions import filled, task_of
from bellringer.wire.jobs import BulkCreated, BulkItem, BulkRequest
from bellringer.wire.reading import MOST_FAULTS

T = TypeVar("T")

PATIENCE: Final = 30.0  # seconds: ten thousand jobs take longer than one, above all beside other work
FIRST: Final = 200  # jobs that the database creates while the next are read: few, so that it begins soon
BATCH: Final = 2_500  # … later, each time twice as many: to read a job takes half as long as to create it
# A thread of its own: who waits for it may hold the locks of all shards, and the others may be busy for seconds.
_OPENING: Final = ThreadPoolExecutor(1, "bulk")
_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_APART: Final = (b" :", b"\t:", b"\n:", b"\r:")  # a colon that may be of a key before it
_KEYS: Final = (b'"items"', b'"atomic"')
_OWN: Final = frozenset({"name", "args", "kwargs", "payload"})  # what differs between jobs that are alike


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
    call.deadline.reschedule(asyncio.get_running_loop().time() + PATIENCE)
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
        items: Sequence[Any] = _parsed(b'{"items":[' + b",".join(texts) + b"]}")["items"]
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
        document = _parsed(data)
        if not isinstance(document, dict):
            raise Refused(400, "body_not_object", "the body must be a JSON object")
        items, atomic = _items(document, wish)
    if not 1 <= len(items) <= MOST_JOBS:
        raise InvalidInput(f"a request takes 1 to {MOST_JOBS:,} jobs", pointer="/items", code="limit")
    return items, atomic


def _parsed(data: bytes) -> Any:
    """What `parse` gives. Of text without escapes a faster parser gives the same, if no key is twice in an object: then
    what was read has as many keys as the text. Where in doubt, `parse` decides."""
    check_count(data)
    if b"\\" in data or b"\0" in data or is_too_deep(_brackets(data)):
        return parse(data)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return parse(data)
    return value if _has_as_many_keys(data, msgspec.json.encode(value)) else parse(data)


def _brackets(data: bytes) -> bytes:
    """JSON without its strings, of which none holds a quote. With all but quotes and brackets gone, a string is two
    quotes; if such pairs are not all the quotes, there is a string with a bracket."""
    marks = data.translate(None, _NO_MARKS).replace(b'""', b"")
    return _bare(data) if b'"' in marks else marks


def _has_as_many_keys(data: bytes, read: bytes) -> bool:
    """Whether none was lost on the way. Mostly a colon comes right behind its key, or begins a text; and of those texts
    there are no more after than before, so they do not make up for a lost key."""
    keys = data.count(b'":')
    if keys < data.count(b":") and any(apart in data for apart in _APART):
        return _bare(data).count(b":") == _bare(read).count(b":")
    return keys == read.count(b'":')


def _bare(data: bytes) -> bytes:
    return b"".join(data.split(b'"')[::2])


def _line(place: int, line: bytes) -> Any:
    try:
        return _parsed(line)
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
    """Reads the items; those that differ only in name and arguments are read from what the first of them gave."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._moulds: dict[bytes, Callable[[str, Sequence[Any], Mapping[str, Any]], Definition]] = {}

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
            start, many = start + many, min(2 * many, BATCH)

    async def definitions(self, items: Sequence[Any]) -> tuple[dict[int, Definition], dict[int, InvalidInput]]:
        wanted: dict[int, Definition] = {}
        faults: dict[int, InvalidInput] = {}
        for place, item in enumerate(items):
            if place % 50 == 49:
                await asyncio.sleep(0)  # others have their turn meanwhile
            try:
                wanted[place] = self._again(item) or await self._first(item)
            except InvalidInput as error:
                faults[place] = error
        return wanted, faults

    async def _first(self, item: Any) -> Definition:
        if not isinstance(item, dict):
            raise InvalidInput("a job is an object", code="type")
        request = read(JobRequest, item)
        defaults = await self._call.service.desk.task_defaults(task_of(request))
        definition = await prepared(self._call, to_definition(filled(request, defaults)))
        if definition.task != HTTP:
            self._moulds[_likeness(item)] = definition.mould()
        return definition

    def _again(self, item: Any) -> Definition | None:
        """None: it has to be read in full, or refused."""
        if type(item) is not dict or ("payload" in item and "kwargs" in item):
            return None
        cast = self._moulds.get(_likeness(item))
        name, args, kwargs = item.get("name"), item.get("args", []), item.get("kwargs", item.get("payload", {}))
        if cast is None or type(name) is not str or type(args) is not list or type(kwargs) is not dict:
            return None
        return cast(name, args, kwargs)


def _likeness(item: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({key: value for key, value in item.items() if key not in _OWN})


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
