"""One request on its way through: what it may use, and what it asked for by path, query and body."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bellringer.access import Caller
from bellringer.api import cursors
from bellringer.api.bodies import JSON, read_bytes, read_document
from bellringer.api.creating import Creating
from bellringer.api.deadlines import Deadline, Deadlines
from bellringer.api.moulds import Moulds
from bellringer.api.operations import Operation
from bellringer.api.reads import Desk
from bellringer.api.streams import Streams
from bellringer.clock import Clock
from bellringer.dispatch import Unread
from bellringer.egress.settings import Egress
from bellringer.errors import InvalidInput, NotFound
from bellringer.jobs import check_name
from bellringer.runs import RunKey, decode_id
from bellringer.store import jobs
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.replica import Replica
from bellringer.store.scope import ScopedStore
from bellringer.store.wakeups import Wakeups
from bellringer.wire import read
from bellringer.wire.overview import Setting

S = TypeVar("S", bound=msgspec.Struct)

DEFAULT_LIMIT: Final = 50
LIMITS: Final = range(1, 201)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_LARGEST: Final = (1 << 63) - 1  # what the database can count


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What all requests share. `store` sees all; what serves one tenant goes through `tenants` (see store.scope)."""

    store: Store
    tenants: Store
    replica: Replica | None  # its store is of the same kind as `tenants`, for lists and history
    names: Names
    desk: Desk
    moulds: Moulds
    creating: Creating
    version: str
    clock: Clock
    wakeups: Wakeups | None
    egress: Egress
    ready: Callable[[], bool]
    streams: Streams = field(default_factory=Streams)  # answers that go on
    deadlines: Deadlines = field(default_factory=Deadlines)
    unread: Unread | None = None  # what a broker still has to hand over
    settings: Sequence[Setting] = ()  # of this process, as they are told

    async def wake(self, channel: str, payload: str = "") -> None:
        """A hint that there is something to do; without it everything still happens, a little later."""
        if self.wakeups is not None:
            await self.wakeups.send(channel, payload)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request, of a caller who is known and may ask for it."""

    service: Service
    request: Request
    deadline: Deadline
    operation: Operation
    caller: Caller
    store: ScopedStore  # decisions and changes
    reads: Store  # lists and history: they may lag behind a little
    request_id: str
    seal: bytes  # signs cursors
    still: Callable[[], Awaitable[bool]]  # whether the caller would be let in now, too: for answers that go on

    @property
    def names(self) -> Names:
        return self.service.names

    @property
    def tenant_id(self) -> int:
        return self.caller.tenant_id

    @property
    def who(self) -> str:
        return self.caller.who

    @property
    def goes_on(self) -> bool:
        """Whether the answer may be a stream: of one to a HEAD nobody would see the end."""
        return self.request.method == "GET"

    def part(self, name: str) -> str:
        """A part of the path, as it was meant."""
        return unquote(self.request.path_params[name])

    async def document(self) -> dict[str, Any]:
        """The body, read as the operation declares it."""
        terms = self.operation
        return await read_document(
            self.request, self.deadline, media=tuple(terms.media), optional=terms.optional, limit=terms.largest
        )

    async def raw(self) -> bytes:
        """The body as it came, no longer than the operation takes."""
        return await read_bytes(self.request, self.deadline, self.operation.largest)

    async def body(self, shape: type[S]) -> S:
        assert shape is self.operation.body, "the operation declares another body than its handler reads"
        return read(shape, await self.document())

    async def job_id(self) -> UUID:
        """The job that the path names, by its id or its name."""
        return await find_job(self, self.part("id"))

    def run_key(self) -> RunKey:
        """The run that the path names."""
        return run_key(self.part("id"))

    def query(self) -> Mapping[str, str]:
        """The query's parameters; unknown ones are refused: a misspelt filter would filter nothing."""
        if not self.request.scope["query_string"]:
            return {}
        known = [query.name for query in self.operation.query]
        given = dict(self.request.query_params)
        for name, value in given.items():
            if name not in known:
                near = get_close_matches(name[:40], known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}"
                raise InvalidInput(f"there is no parameter {name[:40]!r}", hint=hint, code="unknown_parameter")
            if "\0" in value:
                raise InvalidInput(f"{name} holds a NUL character", code="nul_character")
        return given

    def limit(self) -> int:
        text = self.request.query_params.get("limit", str(DEFAULT_LIMIT))
        number = int(text) if re.fullmatch("[0-9]{1,9}", text, re.ASCII) else 0
        if number not in LIMITS:
            raise InvalidInput(f"limit must be a number from {LIMITS[0]} to {LIMITS[-1]}", code="limit_range")
        return number

    def cursor(self, of: str, shape: type[S]) -> S | None:
        """Where the last page ended; a cursor belongs to one list and its filter, which `of` names."""
        text = self.request.query_params.get("cursor")
        if text is None:
            return None
        return cursors.read(text, of, shape, tenant_id=self.tenant_id, seal=self.seal)

    def cursor_to(self, of: str, mark: msgspec.Struct) -> str:
        """The cursor that a page which ends there carries; it is good for this tenant and this list alone."""
        return cursors.write(of, mark, tenant_id=self.tenant_id, seal=self.seal)


BigInt = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


class RunMark(msgspec.Struct, frozen=True, array_like=True):
    """The last run of a page: its whole key, because many runs share an instant."""

    scheduled_for: datetime
    job_id: UUID
    slot: BigInt

    def __post_init__(self) -> None:
        check_utc(self.scheduled_for)


class LetterMark(msgspec.Struct, frozen=True, array_like=True):
    """The last dead letter of a page: when it died, and its whole key."""

    died_at: datetime
    scheduled_for: datetime
    job_id: UUID
    slot: BigInt

    def __post_init__(self) -> None:
        check_utc(self.died_at)
        check_utc(self.scheduled_for)


class LineMark(msgspec.Struct, frozen=True, array_like=True):
    """The last line of a page."""

    line: BigInt


def check_utc(instant: datetime) -> None:
    """A forged mark may name an instant that the database cannot hold; ours are always written in UTC."""
    if instant.utcoffset() != timedelta(0):
        raise ValueError("not in UTC")


async def find_job(call: Call, text: str) -> UUID:
    """A job's id, from its id or its exact name; what is neither is, as any unknown id, not found."""
    if _UUID.fullmatch(text):
        return UUID(text)
    try:
        name = check_name(text)
        found = await jobs.find(call.store, call.tenant_id, name)
    except InvalidInput:
        found = None
    if found is None:
        raise no_job()
    return found[0]


def run_key(text: str) -> RunKey:
    try:
        key = decode_id(text)
    except NotFound:
        raise no_run() from None
    if key.slot > _LARGEST:
        raise no_run()
    return key


def no_job() -> NotFound:
    return NotFound("there is no such job")


def no_run() -> NotFound:
    return NotFound("there is no such run")


def reply(body: msgspec.Struct, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(msgspec.json.encode(body), status_code=status, headers=named, media_type=JSON)
