"""The audit log: list, export, and the seals that chain it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, Query, flag, moment, operation, string
from bellringer.api.http.request import BigInt, RequestContext, reply
from bellringer.api.http.sse import counted_stream, stream
from bellringer.api.http.verify_credentials import AuthenticationFailed, AuthFailureReason
from bellringer.core.redaction import redact_arguments, redact_document
from bellringer.core.runs import RunKey, decode_run_id
from bellringer.egress.targets import hide_target_secrets
from bellringer.errors import InvalidInput, NotFound
from bellringer.schedule.instants import EPOCH
from bellringer.store import audit
from bellringer.store.audit import AuditFilter, AuditRow
from bellringer.store.connection_pool import Store
from bellringer.wire.audit import AuditEntry, AuditPage, AuditSeal, AuditSeals
from bellringer.wire.decode import instant
from bellringer.wire.routes import Routes

NDJSON: Final = "application/x-ndjson"
ENTRIES_PER_QUERY: Final = 200  # entries in one query of an export
INSTALLATION_ID: Final = 0  # stands for entries of the whole installation
_TARGET: Final = frozenset({"url", "method", "sign"})  # the characters that targets are made of
MAX_VALUE_BYTES: Final = 2048  # bytes of a value that a list shows
MAX_FILTER_LENGTH: Final = 255
_MAX_INT64: Final = (1 << 63) - 1
_MICROSECOND: Final = timedelta(microseconds=1)
_FILTERS: Final[tuple[Query, ...]] = (
    string("who", "only changes by this actor, such as key:deploy or user:ada"),
    string("action", "only this action, such as job.changed"),
    string("kind", "only changes of this kind of object, such as job, run or freeze"),
    string("target", "only changes of this object, by id; calendars, pools and tenants by name"),
    moment("from", "only changes at or after this time"),
    moment("to", "only changes before this time"),
    flag("installation", "changes of the whole installation; for its administrators"),
)


class AuditMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of an entry or a seal."""

    number: BigInt


@operation(Routes.audit, role=Role.ADMIN, query=(LIMIT_PARAMETER, CURSOR_PARAMETER, *_FILTERS))
async def listing(call: RequestContext) -> Response:
    """Lists changes, the newest first: actor, origin and changed fields."""
    query = call.query()
    limit, wanted = call.limit(), _filter(query)
    store, tenant_id = _find_log(call, query)
    of = f"audit {msgspec.json.encode(wanted).decode()} {tenant_id}"
    mark = call.cursor(of, AuditMark)
    look = await audit.newest_before(store, tenant_id, mark.number if mark else _MAX_INT64, wanted, limit)
    following = None if look.stop is None else call.cursor_to(of, AuditMark(look.stop))
    return reply(AuditPage(items=[_shorten_entry(entry) for entry in look.entries], next_cursor=following))


@operation(Routes.audit_export, role=Role.ADMIN, query=_FILTERS, streams=True)
async def export(call: RequestContext) -> Response:
    """Exports all changes, the oldest first, as NDJSON with the values before and after."""
    query = call.query()
    wanted = _filter(query)
    store, tenant_id = _find_log(call, query)
    places = call.service.streams.streams
    places.check(call.tenant_id)
    return stream(counted_stream(places, call.tenant_id, _lines(call, store, tenant_id, wanted)), NDJSON)


async def _lines(call: RequestContext, store: Store, tenant_id: int, wanted: AuditFilter) -> AsyncIterator[bytes]:
    """Yields entries up to the newest at the start of the export; otherwise it might never end."""
    newest = (await audit.newest_before(store, tenant_id, _MAX_INT64, AuditFilter(), 1)).entries
    stop: int | None = 0
    while stop is not None and newest:
        if not await call.is_still_admitted():
            raise AuthenticationFailed(
                AuthFailureReason.KEY
            )  # the connection is aborted, so that the export does not look complete
        look = await audit.oldest_after(store, tenant_id, stop, wanted, ENTRIES_PER_QUERY)
        kept = [entry for entry in look.entries if entry.audit_id <= newest[0].audit_id]
        yield b"".join(msgspec.json.encode(_render_entry(entry)) + b"\n" for entry in kept)
        stop = look.stop if len(kept) == len(look.entries) else None


@operation(Routes.audit_seals, role=Role.ADMIN, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def seals(call: RequestContext) -> Response:
    """Lists the hashes that chain the changes of all tenants, the newest first. A copy kept elsewhere proves that
    nothing was rewritten.
    """
    call.query()
    limit = call.limit()
    mark = call.cursor("seals", AuditMark)
    found = await audit.newest_seals_before(call.reads, mark.number if mark else _MAX_INT64, limit + 1)
    following = call.cursor_to("seals", AuditMark(found[limit - 1].seal_id)) if len(found) > limit else None
    items = [
        AuditSeal(
            seal_id=seal.seal_id,
            entries=seal.count if call.caller.everywhere else None,
            hash=seal.hash.hex(),
            prev_hash=seal.prev_hash.hex(),
            sealed_at=seal.sealed_at,
        )
        for seal in found[:limit]
    ]
    return reply(AuditSeals(items=items, next_cursor=following))


def _find_log(call: RequestContext, query: Mapping[str, str]) -> tuple[Store, int]:
    """Returns the store and the tenant id of the requested entries."""
    shown = query.get("installation", "false")
    if shown not in ("true", "false"):
        raise InvalidInput("installation must be true or false", hint="omit it for false", code="flag_invalid")
    if shown == "false":
        return call.reads, call.tenant_id
    if not call.caller.everywhere:
        raise Refused(403, "forbidden", "only administrators of the whole installation may read these entries")
    return call.service.store, INSTALLATION_ID


def _filter(query: Mapping[str, str]) -> AuditFilter:
    for name in ("who", "action", "kind", "target"):
        if not 0 < len(query.get(name, "-")) <= MAX_FILTER_LENGTH:
            raise InvalidInput(f"{name} must have 1 to {MAX_FILTER_LENGTH} characters", code="limit")
    start, end = instant(query.get("from"), what="from"), instant(query.get("to"), what="to")
    return AuditFilter(
        who=query.get("who"),
        action=query.get("action"),
        kind=query.get("kind"),
        target=_stored_target(query.get("target")),
        start=start,
        end=end,
    )


def _stored_target(text: str | None) -> str | None:
    """Returns a target as it is stored: a run by its key, everything else unchanged."""
    try:
        key = decode_run_id(text or "")
    except NotFound:
        return text
    return f"{key.job_id} {(key.scheduled_for - EPOCH) // _MICROSECOND} {key.slot}"


def _shown_target(entry: AuditRow) -> str:
    if entry.kind != "run":
        return entry.target
    job_id, micros, slot = entry.target.split(" ")
    return RunKey(UUID(job_id), EPOCH + int(micros) * _MICROSECOND, int(slot)).id


def _render_entry(entry: AuditRow) -> AuditEntry:
    before, after = entry.before, entry.after
    changed: Iterable[str] = ()
    if before is not None and after is not None:  # null fields of a job are omitted
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
        before=_hide_secrets(before, _hidden_paths(before, after)),
        after=_hide_secrets(after, _hidden_paths(before, after)),
    )


def _hidden_paths(*sides: Mapping[str, Any] | None) -> list[str]:
    """Returns the `redact` paths of a job before and after a change."""
    return [path for side in sides for path in ((side or {}).get("spec") or {}).get("redact") or ()]


def _hide_secrets(values: Mapping[str, Any] | None, paths: Sequence[str]) -> dict[str, Any] | None:
    """Returns a job's definition with its secrets and the values at the paths hidden, as in other responses."""
    if values is None:
        return None
    spec: Mapping[str, Any] = values.get("spec") or {}
    kwargs = spec.get("kwargs") or {}
    if isinstance(kwargs, Mapping) and kwargs.keys() >= _TARGET:
        shown = hide_target_secrets(kwargs)
        if paths and "body" in shown:
            shown["body"] = redact_document(shown["body"], paths)
        return {**values, "spec": {**spec, "kwargs": shown}}
    if not paths:
        return dict(values)
    args, kwargs = redact_arguments(spec.get("args") or [], kwargs, paths)
    return {**values, "spec": {**spec, "args": args, "kwargs": kwargs}}


def _shorten_entry(entry: AuditRow) -> AuditEntry:
    whole = _render_entry(entry)
    if whole.before is None or whole.after is None:
        wanted = {**(whole.before or {}), **(whole.after or {})}.keys()
    else:
        wanted = dict.fromkeys(whole.changed).keys()
    sides = {
        side: None if values is None else {key: _shorten_value(values.get(key)) for key in wanted}
        for side, values in (("before", whole.before), ("after", whole.after))
    }
    return msgspec.structs.replace(whole, **sides)


def _shorten_value(value: Any) -> Any:
    size = len(msgspec.json.encode(value))
    return value if size <= MAX_VALUE_BYTES else {"bytes": size}
