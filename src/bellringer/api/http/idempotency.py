"""Idempotency-Key: a POST that is repeated with the same key has one effect, and gets the same response.

The response is stored in the transaction of the effect, so after a crash both exist or neither does. Error responses
are not stored: nothing has happened, and the caller may correct its request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs
from starlette.responses import Response

from bellringer.api.http.error_responses import Refused
from bellringer.api.http.request import RequestContext
from bellringer.store import idempotency
from bellringer.store.idempotency import IdempotencyKey, StoredResponse
from bellringer.store.tenant_scope import ScopedStore
from bellringer.store.wakeups import DeferredWakeups

IDEMPOTENCY_HEADER: Final = "idempotency-key"
REPLAYED_HEADER: Final = "Idempotency-Replayed"
_KEY: Final = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")  # printable ASCII
_UNSTORED_HEADERS: Final = frozenset({"content-length", "date", "retry-after"})


class _RolledBack(Exception):
    """Carries an error response out of the transaction, which is then rolled back."""

    def __init__(self, response: Response) -> None:
        self.response = response


async def respond_once(call: RequestContext, route: str) -> Response:
    """Returns the handler's response to a POST, or the stored response of an earlier request with the same key."""
    keys = call.request.headers.getlist(IDEMPOTENCY_HEADER)
    operation = call.operation
    if not keys or operation.streams or operation.secret or operation.role is None:
        return await operation.handler(call)
    slot = IdempotencyKey(tenant_id=call.tenant_id, route=route, key=_check_key(keys))
    fingerprint = await _fingerprint(call)
    held = DeferredWakeups(call.service.wakeups)
    try:
        response = await _store_response(
            structs.replace(call, service=replace(call.service, wakeups=held)), slot, fingerprint
        )
    except _RolledBack as undone:
        return undone.response
    await held.release()  # after the commit: before it, the receivers would find nothing
    return response


async def _store_response(call: RequestContext, slot: IdempotencyKey, fingerprint: bytes) -> Response:
    store = call.service.store if call.operation.everywhere else call.store
    assert isinstance(store, ScopedStore)
    refusal = await call.service.idempotency_quota.refusal(
        slot.tenant_id
    )  # keys that are stored already are replayed all the same
    async with store.transaction():
        if not await idempotency.lock(store, slot):
            raise Refused(
                409,
                "in_progress",
                "another request with this Idempotency-Key is in progress",
                hint="retry in a moment",
                headers={"Retry-After": "1"},
            )
        if (kept := await idempotency.find(store, slot)) is not None:
            return _replay(kept, fingerprint)
        if refusal is not None:
            raise refusal
        response = await call.operation.handler(call)
        if response.status_code >= 400:
            raise _RolledBack(response)
        headers = {name: value for name, value in response.headers.items() if name not in _UNSTORED_HEADERS}
        answer = StoredResponse(
            fingerprint=fingerprint, status=response.status_code, headers=headers, body=bytes(response.body)
        )
        await idempotency.save(store, slot, answer)
    call.service.idempotency_quota.spent(slot.tenant_id, answer.body)
    return response


def _replay(kept: StoredResponse, fingerprint: bytes) -> Response:
    if kept.fingerprint != fingerprint:
        raise Refused(
            422,
            "idempotency_key_reused",
            "this Idempotency-Key was used for another request",
            hint="use a new key for a new request",
        )
    headers = {**kept.headers, REPLAYED_HEADER: "true"}
    return Response(kept.body, status_code=kept.status, headers=headers)


def _check_key(keys: Sequence[str]) -> str:
    if len(keys) == 1 and _KEY.fullmatch(keys[0]):
        return keys[0]
    raise Refused(
        400,
        "idempotency_key_invalid",
        "the Idempotency-Key must be 1 to 255 printable ASCII characters, given once",
        hint="use a UUID",
    )


async def _fingerprint(call: RequestContext) -> bytes:
    """Returns a hash of method, path, query, media type and body. Each part is preceded by its length."""
    request = call.request
    shown = hashlib.sha256()
    parts = (
        request.method.encode(),
        request.scope["path"].encode(),
        request.scope["query_string"],
        request.headers.get("content-type", "").encode(),
        await call.raw(),
    )
    for part in parts:
        shown.update(len(part).to_bytes(8, "big"))
        shown.update(part)
    return shown.digest()
