"""Webhooks: who is told of events, what was sent to them, and how to send it once more."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.bodies import JSON, MERGE_PATCH
from bellringer.api.calls import BigInt, Call, reply
from bellringer.api.operations import CURSOR, LIMIT, operation
from bellringer.egress.signing import check_secret, make_secret
from bellringer.egress.urls import parse_url
from bellringer.errors import Conflict, InvalidInput
from bellringer.lifecycle import announce, targets
from bellringer.runs import RunKey
from bellringer.store import egress, runs, webhooks
from bellringer.store.events import Kind
from bellringer.store.wakeups import WORK
from bellringer.wire import Empty
from bellringer.wire.asks import PREFIX
from bellringer.wire.webhooks import (
    Delivery,
    DeliveryPage,
    RotateRequest,
    Webhook,
    WebhookPage,
    WebhookPatch,
    WebhookRequest,
    decode_delivery,
    decode_endpoint,
    encode_delivery,
    encode_endpoint,
    no_delivery,
    no_endpoint,
)

LONGEST: Final = 500  # signs of a description


class EndpointMark(msgspec.Struct, frozen=True, array_like=True):
    """The last endpoint of a page."""

    endpoint_id: BigInt


class DeliveryMark(msgspec.Struct, frozen=True, array_like=True):
    """The last delivery of a page."""

    delivery_id: BigInt


@operation("webhooks", role=Role.EDITOR, answers={201: Webhook}, body=WebhookRequest, problems=(409,), secret=True)
async def create(call: Call) -> Response:
    """Send events to a URL. A secret that is made here is shown in this answer alone."""
    request = await call.body(WebhookRequest)
    url, kinds = _url(call, request.url), _kinds(request.kinds)
    description = _description(request.description)
    secret = make_secret() if request.secret is None else check_secret(request.secret)
    kept = await targets.keep(call.store, call.service.egress, secret, tenant_id=call.tenant_id)
    number = await webhooks.add(call.store, call.tenant_id, url, kinds, description, kept, call.who)
    if number is None:
        await egress.drop_secret(call.store, call.tenant_id, kept)
        raise Conflict(f"there are {webhooks.MOST} webhook endpoints already", hint="delete one", code="limit")
    shown = _webhook(await _stored(call, number), secret if request.secret is None else None)
    return reply(shown, 201, Location=f"{PREFIX}/webhook-endpoints/{shown.endpoint_id}")


@operation("webhooks", role=Role.VIEWER, answers={200: WebhookPage}, query=(LIMIT, CURSOR))
async def listing(call: Call) -> Response:
    """Webhook endpoints, in the order in which they were made."""
    call.query()
    limit = call.limit()
    mark = call.cursor("webhooks", EndpointMark)
    found = await webhooks.listing(call.store, call.tenant_id, mark.endpoint_id if mark else 0, limit + 1)
    more = len(found) > limit
    following = call.cursor_to("webhooks", EndpointMark(found[limit - 1].endpoint_id)) if more else None
    return reply(WebhookPage(items=[_webhook(e) for e in found[:limit]], next_cursor=following))


@operation("webhooks", role=Role.VIEWER, answers={200: Webhook})
async def get(call: Call) -> Response:
    """One webhook endpoint; its secret is never shown."""
    call.query()
    return reply(_webhook(await _endpoint(call)))


@operation("webhooks", role=Role.EDITOR, answers={200: Webhook}, body=WebhookPatch, media=(MERGE_PATCH, JSON))
async def change(call: Call) -> Response:
    """Another url, other kinds, or on and off; one that is switched on is told of what happens from then on."""
    patch = await call.body(WebhookPatch)
    stored = await _endpoint(call)
    changed = replace(
        stored,
        url=stored.url if patch.url is UNSET else _url(call, patch.url),
        kinds=stored.kinds if patch.kinds is UNSET else _kinds(patch.kinds),
        description=stored.description if patch.description is UNSET else _description(patch.description),
        enabled=stored.enabled if patch.enabled is UNSET else patch.enabled,
    )
    if not await webhooks.change(call.store, changed):
        raise no_endpoint()
    return reply(_webhook(await _stored(call, stored.endpoint_id)))


@operation("webhooks", role=Role.EDITOR, answers={204: None})
async def delete(call: Call) -> Response:
    """Tell it nothing more; what is still on its way to it is given up."""
    number = decode_endpoint(call.part("id"))
    secret_id = await webhooks.delete(call.store, call.tenant_id, number)
    if secret_id is None:
        raise no_endpoint()
    await egress.drop_secret(call.store, call.tenant_id, secret_id)
    return Response(status_code=204)


@operation("webhooks", role=Role.EDITOR, answers={200: Webhook}, body=RotateRequest, optional=True, secret=True)
async def rotate(call: Call) -> Response:
    """Replace the secret; for a day the one before signs along."""
    request = await call.body(RotateRequest)
    secret = make_secret() if request.secret is None else check_secret(request.secret)
    stored = await _endpoint(call)
    await targets.rotate(call.store, call.service.egress, secret, tenant_id=call.tenant_id, secret_id=stored.secret_id)
    return reply(_webhook(stored, secret if request.secret is None else None))


@operation("webhooks", role=Role.OPERATOR, answers={202: Delivery}, body=Empty, optional=True, problems=(409,))
async def test(call: Call) -> Response:
    """Send it something harmless, to see whether it arrives."""
    await call.body(Empty)
    stored = await _endpoint(call)
    if not stored.enabled:
        raise Conflict("the endpoint is switched off", hint="switch it on first", code="endpoint_disabled")
    number, key = await announce.test(call.store, call.names, stored, await call.store.now())
    return await _sent(call, number, key)


@operation("webhooks", role=Role.VIEWER, answers={200: DeliveryPage}, query=(LIMIT, CURSOR))
async def deliveries(call: Call) -> Response:
    """What was sent to it, the newest first."""
    call.query()
    limit, stored = call.limit(), await _endpoint(call)
    of = f"deliveries of {stored.endpoint_id}"
    mark = call.cursor(of, DeliveryMark)
    before = mark.delivery_id if mark else None
    found = await webhooks.deliveries(call.store, call.tenant_id, stored.endpoint_id, before, limit + 1)
    following = call.cursor_to(of, DeliveryMark(found[limit - 1].delivery_id)) if len(found) > limit else None
    return reply(DeliveryPage(items=[await _delivery(call, d) for d in found[:limit]], next_cursor=following))


@operation("webhooks", role=Role.OPERATOR, answers={202: Delivery}, body=Empty, optional=True, problems=(409,))
async def replay(call: Call) -> Response:
    """Send once more what was sent, to where its endpoint is now."""
    await call.body(Empty)
    found = await webhooks.delivery(call.store, call.tenant_id, decode_delivery(call.part("id")))
    if found is None:
        raise no_delivery()
    number, key = await announce.replay(call.store, call.names, found, tenant_id=call.tenant_id)
    return await _sent(call, number, key)


async def _sent(call: Call, number: int, key: RunKey) -> Response:
    await call.service.wake(WORK, key.scheduled_for.isoformat())
    made = await webhooks.delivery(call.store, call.tenant_id, number)
    if made is None:
        raise no_delivery()
    return reply(await _delivery(call, made), 202, Location=f"{PREFIX}/runs/{key.id}")


async def _endpoint(call: Call) -> webhooks.Endpoint:
    return await _stored(call, decode_endpoint(call.part("id")))


async def _stored(call: Call, number: int) -> webhooks.Endpoint:
    stored = await webhooks.get(call.store, call.tenant_id, number)
    if stored is None:
        raise no_endpoint()
    return stored


def _url(call: Call, url: str) -> str:
    return str(parse_url(url, call.service.egress.allowed))


def _kinds(kinds: list[str]) -> list[str]:
    for place, kind in enumerate(kinds):
        if kind not in list(Kind):
            near = get_close_matches(kind[:40], list(Kind), n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(Kind)}"
            pointer = f"/kinds/{place}"
            raise InvalidInput(f"there is no kind {kind[:40]!r}", hint=hint, pointer=pointer, code="kind_unknown")
    return sorted(set(kinds))


def _description(text: str) -> str:
    if len(text) > LONGEST:
        message = f"description has {len(text)} characters, more than {LONGEST}"
        raise InvalidInput(message, pointer="/description", code="limit")
    return text


def _webhook(stored: webhooks.Endpoint, new_secret: str | None = None) -> Webhook:
    return Webhook(
        endpoint_id=encode_endpoint(stored.endpoint_id),
        url=stored.url,
        kinds=list(stored.kinds),
        description=stored.description,
        enabled=stored.enabled,
        disabled_reason=stored.disabled_reason,
        secret={"id": stored.secret_id, "set": True},
        created_at=stored.created_at,
        created_by=stored.created_by,
        changed_at=stored.changed_at,
        new_secret=UNSET if new_secret is None else new_secret,
    )


async def _delivery(call: Call, stored: webhooks.Delivery) -> Delivery:
    run = await runs.get(call.reads, stored.key, call.tenant_id)
    error = run.error if run is not None and isinstance(run.error, dict) else {}
    return Delivery(
        delivery_id=encode_delivery(stored.delivery_id),
        endpoint_id=encode_endpoint(stored.endpoint_id),
        event_id=stored.event_id,
        kind=stored.kind,
        run_id=stored.key.id,
        state=run.state.value if run is not None else None,
        attempt=run.attempt if run is not None else None,
        error=error.get("message"),
        made_at=stored.made_at,
        replay_of=None if stored.replay_of is None else encode_delivery(stored.replay_of),
    )
