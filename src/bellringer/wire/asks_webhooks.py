"""The calls of the API about webhooks and HTTP targets; as those of `wire.asks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from bellringer.wire import answers
from bellringer.wire.asks import PREFIX, Ask, Document
from bellringer.wire.webhooks import Delivery, DeliveryPage, Webhook, WebhookPage

_ENDPOINTS = f"{PREFIX}/webhook-endpoints"


def webhooks(*, limit: int | None = None, cursor: str | None = None) -> Ask[WebhookPage]:
    """Webhook endpoints, in the order in which they were made."""
    return Ask(method="GET", path=_ENDPOINTS, shape=WebhookPage, query=_given(limit=limit, cursor=cursor))


def webhook(endpoint_id: str) -> Ask[Webhook]:
    return Ask(method="GET", path=_at(endpoint_id), shape=Webhook)


def create_webhook(
    url: str, *, kinds: Sequence[str] = (), description: str = "", secret: str | None = None
) -> Ask[Webhook]:
    """Send events to a URL; without a secret one is made, and this answer alone has it."""
    body = _given(url=url, kinds=list(kinds), description=description, secret=secret)
    return Ask(method="POST", path=_ENDPOINTS, shape=Webhook, body=body)


def patch_webhook(endpoint_id: str, patch: Document) -> Ask[Webhook]:
    """Give an endpoint another url, kinds or description, or switch it on or off."""
    headers = {"Content-Type": "application/merge-patch+json"}
    return Ask(method="PATCH", path=_at(endpoint_id), shape=Webhook, body=patch, headers=headers)


def delete_webhook(endpoint_id: str) -> Ask[None]:
    return Ask(method="DELETE", path=_at(endpoint_id), shape=type(None))


def rotate_webhook(endpoint_id: str, *, secret: str | None = None) -> Ask[Webhook]:
    """Replace an endpoint's secret; for a day the one before signs along."""
    path = _at(endpoint_id, "rotate-secret")
    return Ask(method="POST", path=path, shape=Webhook, body=_given(secret=secret))


def test_webhook(endpoint_id: str) -> Ask[Delivery]:
    """Send an endpoint something harmless."""
    return Ask(method="POST", path=_at(endpoint_id, "test"), shape=Delivery, body={})


def deliveries(endpoint_id: str, *, limit: int | None = None, cursor: str | None = None) -> Ask[DeliveryPage]:
    """What was sent to an endpoint, the newest first."""
    query = _given(limit=limit, cursor=cursor)
    return Ask(method="GET", path=_at(endpoint_id, "deliveries"), shape=DeliveryPage, query=query)


def replay_delivery(delivery_id: str) -> Ask[Delivery]:
    """Send once more what was sent."""
    path = f"{PREFIX}/deliveries/{quote(delivery_id, safe='')}/replay"
    return Ask(method="POST", path=path, shape=Delivery, body={})


def execute_http(http: Document, **options: Any) -> Ask[answers.Run]:
    """Call a URL without a job; options are those of `execute`."""
    body = {"http": http, **_given(**options)}
    return Ask(method="POST", path=f"{PREFIX}/jobs/execute", shape=answers.Run, body=body)


def _at(endpoint_id: str, *more: str) -> str:
    return "/".join((_ENDPOINTS, quote(endpoint_id, safe=""), *more))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
