"""The context of one request: its caller, path, query, body, cursors and ETag conditions."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
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
from bellringer.api.http.create_batcher import CreateBatcher
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.idempotency_quota import IdempotencyQuota
from bellringer.api.http.json_body import JSON, RESPONSE_TIMEOUT_SECONDS, extend, read_bytes, read_document
from bellringer.api.http.operation import Endpoint
from bellringer.api.http.read_cache import ReadCache
from bellringer.api.http.sse import OpenStreams
from bellringer.clock import Clock
from bellringer.codecs import PayloadCodec
from bellringer.core.broker import QueueDepths
from bellringer.core.cache import RateLimits
from bellringer.core.jobs import check_name
from bellringer.core.runs import RunKey, decode_run_id
from bellringer.egress.settings import Egress
from bellringer.engine.known_tasks import KnownTasks
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import jobs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.replica import Replica
from bellringer.store.tenant_scope import ScopedStore
from bellringer.store.wakeups import Wakeups
from bellringer.wire.decode import read
from bellringer.wire.overview import Setting


def matches_revision(tags: str | None, revision: int) -> bool:
    """Returns whether an If-Match or If-None-Match header names this revision, or all by a star."""
    return tags is not None and bool({"*", f'"{revision}"'} & {tag.strip() for tag in tags.split(",")})


def check_match(expected: str | None, revision: int) -> None:
    """Raises 412 if an If-Match header is given and does not name this revision."""
    if expected is None or matches_revision(expected, revision):
        return
    raise Refused(
        412,
        "revision_mismatch",
        f"the job is at revision {revision}, and If-Match names another",
        hint="read it again and repeat the change",
        headers={"ETag": f'"{revision}"'},
    )


_SIGNATURE_BYTES: Final = 16
_MAX_CURSOR_LENGTH: Final = 2048


def write_cursor(of: str, mark: msgspec.Struct, *, tenant_id: int, seal: bytes) -> str:
    """Encodes and signs the position of a page's last item; `of` names the list and its filter."""
    data = msgspec.json.encode(mark)
    return base64.urlsafe_b64encode(_sign_cursor(data, of, tenant_id, seal) + data).rstrip(b"=").decode()


def read_cursor(text: str, of: str, shape: type[S], *, tenant_id: int, seal: bytes) -> S:
    """Decodes a cursor; raises Refused if it is malformed, or of another list or tenant."""
    try:
        data = base64.b64decode(
            text[:_MAX_CURSOR_LENGTH].encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, UnicodeError):
        raise _invalid_cursor() from None
    signature, data = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _sign_cursor(data, of, tenant_id, seal)):
        raise _invalid_cursor()
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.DecodeError:  # the cursor of an earlier version
        raise _invalid_cursor() from None


def _sign_cursor(data: bytes, of: str, tenant_id: int, seal: bytes) -> bytes:
    shown = b"cursor\0" + msgspec.json.encode((tenant_id, of)) + b"\0" + data
    return hmac.new(seal, shown, hashlib.sha256).digest()[:_SIGNATURE_BYTES]


def _invalid_cursor() -> Refused:
    return Refused(
        400, "cursor_invalid", "the cursor does not belong to this list", hint="start again without a cursor"
    )


S = TypeVar("S", bound=msgspec.Struct)

DEFAULT_PAGE_LIMIT: Final = 50
PAGE_LIMITS: Final = range(1, 201)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_MAX_INT64: Final = (1 << 63) - 1  # bigint


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """The dependencies that all requests share. `store` sees all tenants; statements for one tenant use `tenants` (see
    store/tenant_scope.py).
    """

    store: Store
    tenants: Store
    replica: Replica | None  # for lists and history; its connections are scoped to a tenant too
    catalog: Catalog
    read_cache: ReadCache
    known_tasks: KnownTasks
    create_batcher: CreateBatcher
    version: str
    clock: Clock
    wakeups: Wakeups | None
    egress: Egress
    idempotency_quota: IdempotencyQuota
    ready: Callable[[], bool]
    ping_limits: RateLimits
    streams: OpenStreams = field(default_factory=OpenStreams)
    queue_depths: QueueDepths | None = None  # the backlog of a message broker
    settings: Sequence[Setting] = ()  # the settings of this process, for display
    run_retention: timedelta | None = None  # how long runs are kept
    roles: Sequence[str] = ("api",)  # what this process runs, for display
    payload_codec: PayloadCodec | None = None  # encrypts arguments that arrive unencrypted
    public_url: str | None = None  # the address under which callers reach this installation

    async def wake(self, channel: str, payload: str = "") -> None:
        """Sends a wake-up notification. It is only a hint: without it, the work is done a little later."""
        if self.wakeups is not None:
            await self.wakeups.send(channel, payload)


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One admitted request."""

    service: AppState
    request: Request
    timeout: asyncio.Timeout
    operation: Endpoint
    caller: Caller
    store: ScopedStore  # for decisions and changes
    reads: Store  # for lists and history, which may lag behind a little
    request_id: str
    seal: bytes  # signs cursors
    is_still_admitted: Callable[[], Awaitable[bool]]  # whether the caller would still be admitted: for streams
    count_sends: Callable[[int], Awaitable[None]]  # counts sends against the tenant's rate limit; raises QuotaExceeded

    @property
    def catalog(self) -> Catalog:
        return self.service.catalog

    @property
    def tenant_id(self) -> int:
        return self.caller.tenant_id

    @property
    def who(self) -> str:
        return self.caller.who

    @property
    def may_stream(self) -> bool:
        """Whether the response may be a stream: a HEAD request must end."""
        return self.request.method == "GET"

    def extend_timeout(self, seconds: float = RESPONSE_TIMEOUT_SECONDS) -> None:
        extend(self.timeout, seconds)

    def part(self, name: str) -> str:
        """Returns a path parameter, decoded."""
        return unquote(self.request.path_params[name])

    async def document(self) -> dict[str, Any]:
        """Reads the JSON body as the operation declares it."""
        terms = self.operation
        return await read_document(
            self.request,
            self.timeout,
            media=tuple(terms.route.media),
            optional=terms.route.body_optional,
            limit=terms.route.body_limit,
        )

    async def raw(self) -> bytes:
        """Reads the raw body, up to the maximum size of the operation."""
        return await read_bytes(self.request, self.timeout, self.operation.route.body_limit)

    async def body(self, shape: type[S]) -> S:
        assert shape is self.operation.route.body, "the operation declares another body than its handler reads"
        return read(shape, await self.document())

    async def job_id(self) -> UUID:
        """Returns the id of the job in the path, which may be an id or a name."""
        return await find_job(self, self.part("id"))

    def run_key(self) -> RunKey:
        """Returns the key of the run in the path."""
        return run_key(self.part("id"))

    def query(self) -> Mapping[str, str]:
        """Returns the query parameters. Raises InvalidInput for unknown ones, which would have no effect."""
        if not self.request.scope["query_string"]:
            return {}
        known = [query.name for query in self.operation.query]
        given = dict(self.request.query_params)
        for name, value in given.items():
            if name not in known:
                near = get_close_matches(name[:40], known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known parameters: {', '.join(known) or 'none'}"
                raise InvalidInput(f"unknown query parameter {name[:40]!r}", hint=hint, code="unknown_parameter")
            if "\0" in value:
                raise InvalidInput(f"{name} contains a NUL character", code="nul_character")
        return given

    def limit(self) -> int:
        text = self.request.query_params.get("limit", str(DEFAULT_PAGE_LIMIT))
        number = int(text) if re.fullmatch("[0-9]{1,9}", text, re.ASCII) else 0
        if number not in PAGE_LIMITS:
            raise InvalidInput(f"limit must be a number from {PAGE_LIMITS[0]} to {PAGE_LIMITS[-1]}", code="limit_range")
        return number

    def cursor(self, of: str, shape: type[S]) -> S | None:
        """Returns the position of the cursor parameter, or None. A cursor is valid for one list and filter, which `of`
        names.
        """
        text = self.request.query_params.get("cursor")
        if text is None:
            return None
        return read_cursor(text, of, shape, tenant_id=self.tenant_id, seal=self.seal)

    def cursor_to(self, of: str, mark: msgspec.Struct) -> str:
        """Returns the cursor for the page after this position."""
        return write_cursor(of, mark, tenant_id=self.tenant_id, seal=self.seal)


BigInt = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT64)]


class RunMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a run in a list: its whole key, because many runs share an instant."""

    scheduled_for: datetime
    job_id: UUID
    slot: BigInt

    def __post_init__(self) -> None:
        check_utc(self.scheduled_for)


class DeadLetterMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a dead letter in a list: its time and its whole key."""

    died_at: datetime
    scheduled_for: datetime
    job_id: UUID
    slot: BigInt

    def __post_init__(self) -> None:
        check_utc(self.died_at)
        check_utc(self.scheduled_for)


class LineMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a log line."""

    line: BigInt


def check_utc(instant: datetime) -> None:
    """Raises ValueError for an instant that is not in UTC: cursors of this server are, and others may be out of the
    database's range.
    """
    if instant.utcoffset() != timedelta(0):
        raise ValueError("not in UTC")


async def find_job(call: RequestContext, text: str) -> UUID:
    """Returns a job's id from its id or exact name; raises NotFound for anything else."""
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
        key = decode_run_id(text)
    except NotFound:
        raise no_run() from None
    if key.slot > _MAX_INT64:
        raise no_run()
    return key


def no_job() -> NotFound:
    return NotFound("there is no such job")


def no_run() -> NotFound:
    return NotFound("there is no such run")


def reply(body: msgspec.Struct, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(msgspec.json.encode(body), status_code=status, headers=named, media_type=JSON)
