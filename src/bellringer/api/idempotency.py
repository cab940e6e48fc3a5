"""Idempotency-Key: a POST that is sent again has its effect once, and the same answer.

The answer is kept in the transaction of the effect. So after a crash there are both or neither, and whoever is unsure
just asks again. Refusals are not kept: nothing has happened, and the caller may mend its request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs
from starlette.responses import Response

from bellringer.api.calls import Call
from bellringer.api.problems import Refused
from bellringer.store import idempotency
from bellringer.store.idempotency import Answer, Slot
from bellringer.store.scope import ScopedStore
from bellringer.store.wakeups import Held

HEADER: Final = "idempotency-key"
REPLAYED: Final = "Idempotency-Replayed"
_KEY: Final = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")  # printable ASCII
_NOT_KEPT: Final = frozenset({"content-length", "date", "retry-after"})


class _Undone(Exception):
    """An answer that is none of success: what was done for it is taken back."""

    def __init__(self, response: Response) -> None:
        self.response = response


async def answered(call: Call, route: str) -> Response:
    """The handler's answer to a POST, or the one that the same request got before."""
    keys = call.request.headers.getlist(HEADER)
    operation = call.operation
    if not keys or operation.streams or operation.secret or operation.role is None:
        return await operation.handler(call)
    slot = Slot(tenant_id=call.tenant_id, route=route, key=_checked(keys))
    fingerprint = await _fingerprint(call)
    held = Held(call.service.wakeups)
    try:
        response = await _once(structs.replace(call, service=replace(call.service, wakeups=held)), slot, fingerprint)
    except _Undone as undone:
        return undone.response
    await held.release()  # before the commit nobody would find what they are woken for
    return response


async def _once(call: Call, slot: Slot, fingerprint: bytes) -> Response:
    store = call.service.store if call.operation.everywhere else call.store
    assert isinstance(store, ScopedStore)
    async with store.transaction():
        if not await idempotency.lock(store, slot):
            raise Refused(
                409,
                "in_progress",
                "a request with this Idempotency-Key is under way",
                hint="ask again in a moment",
                headers={"Retry-After": "1"},
            )
        if (kept := await idempotency.find(store, slot)) is not None:
            return _replay(kept, fingerprint)
        response = await call.operation.handler(call)
        if response.status_code >= 400:
            raise _Undone(response)
        headers = {name: value for name, value in response.headers.items() if name not in _NOT_KEPT}
        answer = Answer(
            fingerprint=fingerprint, status=response.status_code, headers=headers, body=bytes(response.body)
        )
        await idempotency.keep(store, slot, answer)
    return response


def _replay(kept: Answer, fingerprint: bytes) -> Response:
    if kept.fingerprint != fingerprint:
        raise Refused(
            422,
            "idempotency_key_reused",
            "this Idempotency-Key came with another request before",
            hint="take a new key for a new request",
        )
    headers = {**kept.headers, REPLAYED: "true"}
    return Response(kept.body, status_code=kept.status, headers=headers)


def _checked(keys: Sequence[str]) -> str:
    if len(keys) == 1 and _KEY.fullmatch(keys[0]):
        return keys[0]
    raise Refused(
        400,
        "idempotency_key_invalid",
        "the Idempotency-Key must be 1 to 255 printable ASCII characters, given once",
        hint="a UUID will do",
    )


async def _fingerprint(call: Call) -> bytes:
    """Of all that says what is asked. Each part with its length, so that none runs over into the next."""
    request = call.request
    told = hashlib.sha256()
    parts = (
        request.method.encode(),
        request.scope["path"].encode(),
        request.scope["query_string"],
        request.headers.get("content-type", "").encode(),
        await call.raw(),
    )
    for part in parts:
        told.update(len(part).to_bytes(8, "big"))
        told.update(part)
    return told.digest()
