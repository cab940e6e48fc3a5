"""Webhooks: endpoints that receive events, their deliveries, and replays."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import BigInt, RequestContext, reply
from bellringer.core.runs import RunKey, State
from bellringer.egress.target_secrets import mask_url
from bellringer.egress.urls import parse_url
from bellringer.egress.webhook_signatures import check_secret, generate_secret
from bellringer.engine import http_targets
from bellringer.engine import webhooks as announce
from bellringer.errors import Conflict, InvalidInput
from bellringer.store import egress, runs, webhooks
from bellringer.store.events import EventKind
from bellringer.store.wakeups import WORK_CHANNEL
from bellringer.wire.models import Empty
from bellringer.wire.routes import PREFIX, Routes
from bellringer.wire.webhooks import (
    DeliveryPage,
    RotateRequest,
    Webhook,
    WebhookDelivery,
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

MAX_DESCRIPTION_LENGTH: Final = 500  # characters
MAX_RESPONSE_LENGTH: Final = 2000  # characters of a response that a delivery shows


class EndpointMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of an endpoint in a list."""

    endpoint_id: BigInt


class DeliveryMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a delivery in a list."""

    delivery_id: BigInt


@operation(Routes.create_webhook, role=Role.EDITOR, problems=(409,), secret=True)
async def create(call: RequestContext) -> Response:
    """Creates a webhook endpoint. A generated secret is contained in this response only."""
    request = await call.body(WebhookRequest)
    url, kinds = _url(call, request.url), _kinds(request.kinds)
    description = _description(request.description)
    secret = generate_secret() if request.secret is None else check_secret(request.secret)
    kept = await http_targets.store_secret(call.store, call.service.egress, secret, tenant_id=call.tenant_id)
    number = await webhooks.add(call.store, call.tenant_id, url, kinds, description, kept, call.who)
    if number is None:
        await egress.drop_secret(call.store, call.tenant_id, kept)
        raise Conflict(f"there are {webhooks.MAX_ENDPOINTS} webhook endpoints already", hint="delete one", code="limit")
    shown = _webhook(call, await _stored(call, number), secret if request.secret is None else None)
    return reply(shown, 201, Location=f"{PREFIX}/webhook-endpoints/{shown.endpoint_id}")


@operation(Routes.webhooks, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists webhook endpoints in the order of their creation."""
    call.query()
    limit = call.limit()
    mark = call.cursor("webhooks", EndpointMark)
    found = await webhooks.list_page(call.store, call.tenant_id, mark.endpoint_id if mark else 0, limit + 1)
    more = len(found) > limit
    following = call.cursor_to("webhooks", EndpointMark(found[limit - 1].endpoint_id)) if more else None
    return reply(WebhookPage(items=[_webhook(call, e) for e in found[:limit]], next_cursor=following))


@operation(Routes.webhook, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns a webhook endpoint without its secret."""
    call.query()
    return reply(_webhook(call, await _endpoint(call)))


@operation(Routes.patch_webhook, role=Role.EDITOR)
async def change(call: RequestContext) -> Response:
    """Changes the URL or the kinds of an endpoint, or switches it on or off; an endpoint gets events from the time it
    is on.
    """
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
    return reply(_webhook(call, await _stored(call, stored.endpoint_id)))


@operation(Routes.delete_webhook, role=Role.EDITOR)
async def delete(call: RequestContext) -> Response:
    """Deletes an endpoint; pending deliveries are dropped."""
    number = decode_endpoint(call.part("id"))
    secret_id = await webhooks.delete(call.store, call.tenant_id, number)
    if secret_id is None:
        raise no_endpoint()
    await egress.drop_secret(call.store, call.tenant_id, secret_id)
    return Response(status_code=204)


@operation(Routes.rotate_webhook, role=Role.EDITOR, secret=True)
async def rotate(call: RequestContext) -> Response:
    """Replaces the secret; for a day, deliveries are signed with the old one too."""
    request = await call.body(RotateRequest)
    secret = generate_secret() if request.secret is None else check_secret(request.secret)
    stored = await _endpoint(call)
    await http_targets.rotate_secret(
        call.store, call.service.egress, secret, tenant_id=call.tenant_id, secret_id=stored.secret_id
    )
    return reply(_webhook(call, stored, secret if request.secret is None else None))


@operation(Routes.test_webhook, role=Role.OPERATOR, problems=(409,))
async def test(call: RequestContext) -> Response:
    """Sends a test event."""
    await call.body(Empty)
    stored = await _endpoint(call)
    if not stored.enabled:
        raise Conflict("the endpoint is disabled", hint="enable it first", code="endpoint_disabled")
    number, key = await announce.send_test(call.store, call.catalog, stored, await call.store.now())
    return await _sent(call, number, key)


@operation(Routes.deliveries, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def deliveries(call: RequestContext) -> Response:
    """Lists the deliveries of an endpoint, the newest first."""
    call.query()
    limit, stored = call.limit(), await _endpoint(call)
    of = f"deliveries of {stored.endpoint_id}"
    mark = call.cursor(of, DeliveryMark)
    before = mark.delivery_id if mark else None
    found = await webhooks.list_deliveries(call.store, call.tenant_id, stored.endpoint_id, before, limit + 1)
    following = call.cursor_to(of, DeliveryMark(found[limit - 1].delivery_id)) if len(found) > limit else None
    return reply(DeliveryPage(items=[await _delivery(call, d) for d in found[:limit]], next_cursor=following))


@operation(Routes.replay_delivery, role=Role.OPERATOR, problems=(409,))
async def replay(call: RequestContext) -> Response:
    """Sends a delivery again, to the endpoint's current URL."""
    await call.body(Empty)
    found = await webhooks.get_delivery(call.store, call.tenant_id, decode_delivery(call.part("id")))
    if found is None:
        raise no_delivery()
    number, key = await announce.replay_delivery(call.store, call.catalog, found, tenant_id=call.tenant_id)
    return await _sent(call, number, key)


async def _sent(call: RequestContext, number: int, key: RunKey) -> Response:
    await call.service.wake(WORK_CHANNEL, key.scheduled_for.isoformat())
    made = await webhooks.get_delivery(call.store, call.tenant_id, number)
    if made is None:
        raise no_delivery()
    return reply(await _delivery(call, made), 202, Location=f"{PREFIX}/runs/{key.id}")


async def _endpoint(call: RequestContext) -> webhooks.EndpointRow:
    return await _stored(call, decode_endpoint(call.part("id")))


async def _stored(call: RequestContext, number: int) -> webhooks.EndpointRow:
    stored = await webhooks.get(call.store, call.tenant_id, number)
    if stored is None:
        raise no_endpoint()
    return stored


def _url(call: RequestContext, url: str) -> str:
    return str(parse_url(url, call.service.egress.allowed))


def _kinds(kinds: list[str]) -> list[str]:
    for place, kind in enumerate(kinds):
        if kind not in list(EventKind):
            near = get_close_matches(kind[:40], list(EventKind), n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(EventKind)}"
            pointer = f"/kinds/{place}"
            raise InvalidInput(f"there is no event kind {kind[:40]!r}", hint=hint, pointer=pointer, code="kind_unknown")
    return sorted(set(kinds))


def _description(text: str) -> str:
    if len(text) > MAX_DESCRIPTION_LENGTH:
        message = f"description has {len(text)} characters, more than {MAX_DESCRIPTION_LENGTH}"
        raise InvalidInput(message, pointer="/description", code="limit")
    return text


def _webhook(call: RequestContext, stored: webhooks.EndpointRow, new_secret: str | None = None) -> Webhook:
    """Renders an endpoint; callers that may not change it do not see the secrets in its URL."""
    is_theirs = call.caller.role >= Role.EDITOR
    return Webhook(
        endpoint_id=encode_endpoint(stored.endpoint_id),
        url=stored.url if is_theirs else mask_url(stored.url, "", whole=False),
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


async def _delivery(call: RequestContext, stored: webhooks.DeliveryRow) -> WebhookDelivery:
    found = await runs.get_with_attempts(call.reads, stored.key, call.tenant_id)
    run = found.run if found is not None else None
    last = found.attempts[-1] if found is not None and found.attempts else None
    error = run.error if run is not None and isinstance(run.error, dict) else {}
    called = next((one for one in (last.result, last.error) if isinstance(one, dict)), {}) if last is not None else {}
    spec = run.spec if run is not None else None
    return WebhookDelivery(
        delivery_id=encode_delivery(stored.delivery_id),
        endpoint_id=encode_endpoint(stored.endpoint_id),
        event_id=stored.event_id,
        kind=stored.kind,
        run_id=stored.key.id,
        state=run.state.value if run is not None else None,
        attempt=run.attempt if run is not None else None,
        error=error.get("message"),
        status=called.get("status"),
        seconds=called["ms"] / 1000 if "ms" in called else None,
        response=called["body"][:MAX_RESPONSE_LENGTH] if isinstance(called.get("body"), str) else None,
        next_attempt_at=run.available_at if run is not None and run.state == State.RETRYING else None,
        payload=spec.kwargs.get("body") if spec is not None else None,
        made_at=stored.made_at,
        replay_of=None if stored.replay_of is None else encode_delivery(stored.replay_of),
    )
