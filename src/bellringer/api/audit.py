"""The audit: who changed what, page by page or whole; and the seals that chain it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import BigInt, Call, reply
from bellringer.api.logins import unauthenticated
from bellringer.api.operations import CURSOR, LIMIT, Query, flag, moment, operation, string
from bellringer.api.problems import Refused
from bellringer.api.streams import placed, stream
from bellringer.errors import InvalidInput, NotFound
from bellringer.runs import RunKey, decode_id
from bellringer.schedule.instants import EPOCH
from bellringer.store import audit
from bellringer.store.audit import Entry, Filter
from bellringer.store.pool import Store
from bellringer.wire import instant
from bellringer.wire.audit import AuditEntry, AuditPage, AuditSeal, AuditSeals

NDJSON: Final = "application/x-ndjson"
CHUNK: Final = 200  # entries that an export reads at once
WHOLE: Final = 0  # the number that stands for no tenant: what is of the whole installation
LARGE: Final = 2048  # bytes of a field that a list shows
LONGEST: Final = 255
_LAST: Final = (1 << 63) - 1
_MICROSECOND: Final = timedelta(microseconds=1)
_FILTERS: Final[tuple[Query, ...]] = (
    string("who", "only what this one did, as key:deploy or user:ada"),
    string("action", "only this, as job.changed"),
    string("kind", "only what was done to these, as job, run, freeze"),
    string("target", "only what was done to this, by its id; calendars, pools and tenants by their name"),
    moment("from", "only what was done then or later"),
    moment("to", "only what was done before then"),
    flag("installation", "what is of the whole installation; for its administrators"),
)


class AuditMark(msgspec.Struct, frozen=True, array_like=True):
    """The last entry, or seal, of a page."""

    number: BigInt


@operation("audit", role=Role.ADMIN, answers={200: AuditPage}, query=(LIMIT, CURSOR, *_FILTERS))
async def listing(call: Call) -> Response:
    """What was changed, the newest first: by whom, from where, and which fields."""
    query = call.query()
    limit, wanted = call.limit(), _filter(query)
    store, tenant_id = _whose(call, query)
    of = f"audit {msgspec.json.encode(wanted).decode()} {tenant_id}"
    mark = call.cursor(of, AuditMark)
    look = await audit.newest(store, tenant_id, mark.number if mark else _LAST, wanted, limit)
    following = None if look.stop is None else call.cursor_to(of, AuditMark(look.stop))
    return reply(AuditPage(items=[_brief(entry) for entry in look.entries], next_cursor=following))


@operation("audit", role=Role.ADMIN, answers={200: NDJSON}, query=_FILTERS, streams=True)
async def export(call: Call) -> Response:
    """All of it, oldest first: a line of JSON for each change, with all that was before and after."""
    query = call.query()
    wanted = _filter(query)
    store, tenant_id = _whose(call, query)
    places = call.service.streams.streams
    places.check(call.tenant_id)
    return stream(placed(places, call.tenant_id, _lines(call, store, tenant_id, wanted)), NDJSON)


async def _lines(call: Call, store: Store, tenant_id: int, wanted: Filter) -> AsyncIterator[bytes]:
    """Up to what was the newest when it began, or it would never end."""
    newest = (await audit.newest(store, tenant_id, _LAST, Filter(), 1)).entries
    stop: int | None = 0
    while stop is not None and newest:
        if not await call.still():
            raise unauthenticated()  # it is cut off, and does not look like all
        look = await audit.after(store, tenant_id, stop, wanted, CHUNK)
        kept = [entry for entry in look.entries if entry.audit_id <= newest[0].audit_id]
        yield b"".join(msgspec.json.encode(_entry(entry)) + b"\n" for entry in kept)
        stop = look.stop if len(kept) == len(look.entries) else None


@operation("audit", role=Role.ADMIN, answers={200: AuditSeals}, query=(LIMIT, CURSOR))
async def seals(call: Call) -> Response:
    """The hashes that chain the changes of all tenants, the newest first. Who keeps one elsewhere can prove more."""
    call.query()
    limit = call.limit()
    mark = call.cursor("seals", AuditMark)
    found = await audit.newest_seals(call.reads, mark.number if mark else _LAST, limit + 1)
    following = call.cursor_to("seals", AuditMark(found[limit - 1].seal_id)) if len(found) > limit else None
    items = [
        AuditSeal(
            seal_id=seal.seal_id,
            entries=seal.count,
            hash=seal.hash.hex(),
            prev_hash=seal.prev_hash.hex(),
            sealed_at=seal.sealed_at,
        )
        for seal in found[:limit]
    ]
    return reply(AuditSeals(items=items, next_cursor=following))


def _whose(call: Call, query: Mapping[str, str]) -> tuple[Store, int]:
    """Where to look, and for whom."""
    told = query.get("installation", "false")
    if told not in ("true", "false"):
        raise InvalidInput("installation is true or false", code="flag_invalid")
    if told == "false":
        return call.reads, call.tenant_id
    if not call.caller.everywhere:
        raise Refused(403, "forbidden", "only administrators of the whole installation may read that")
    return call.service.store, WHOLE


def _filter(query: Mapping[str, str]) -> Filter:
    for name in ("who", "action", "kind", "target"):
        if not 0 < len(query.get(name, "-")) <= LONGEST:
            raise InvalidInput(f"{name} must have 1 to {LONGEST} characters", code="limit")
    start, end = instant(query.get("from"), what="from"), instant(query.get("to"), what="to")
    return Filter(
        who=query.get("who"),
        action=query.get("action"),
        kind=query.get("kind"),
        target=_stored_target(query.get("target")),
        start=start,
        end=end,
    )


def _stored_target(text: str | None) -> str | None:
    """A run by its key; all else as it is named."""
    try:
        key = decode_id(text or "")
    except NotFound:
        return text
    return f"{key.job_id} {(key.scheduled_for - EPOCH) // _MICROSECOND} {key.slot}"


def _shown_target(entry: Entry) -> str:
    if entry.kind != "run":
        return entry.target
    job_id, micros, slot = entry.target.split(" ")
    return RunKey(UUID(job_id), EPOCH + int(micros) * _MICROSECOND, int(slot)).id


def _entry(entry: Entry) -> AuditEntry:
    before, after = entry.before, entry.after
    changed: Iterable[str] = ()
    if before is not None and after is not None:  # of a job, what is null is left out
        changed = (key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return AuditEntry(
        audit_id=entry.audit_id,
        at=entry.at,
        who=entry.who,
        origin=entry.origin,
        request_id=entry.request_id,
        action=entry.action,
        kind=entry.kind,
        target=_shown_target(entry),
        name=entry.name,
        revision=entry.revision,
        changed=sorted(changed),
        before=None if before is None else dict(before),
        after=None if after is None else dict(after),
    )


def _brief(entry: Entry) -> AuditEntry:
    whole = _entry(entry)
    if whole.before is None or whole.after is None:
        wanted = {**(whole.before or {}), **(whole.after or {})}.keys()
    else:
        wanted = dict.fromkeys(whole.changed).keys()
    sides = {
        side: None if values is None else {key: _small(values.get(key)) for key in wanted}
        for side, values in (("before", whole.before), ("after", whole.after))
    }
    return msgspec.structs.replace(whole, **sides)


def _small(value: Any) -> Any:
    size = len(msgspec.json.encode(value))
    return value if size <= LARGE else {"bytes": size}
