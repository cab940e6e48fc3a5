"""Webhook endpoints and deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.errors import NotFound
from bellringer.wire.models import RequestModel, ResponseModel

_LARGEST = (1 << 63) - 1


class WebhookRequest(RequestModel, frozen=True):
    """An endpoint that receives events. Empty `kinds` means all.

    Without a `secret`, the server creates one; only the response to this request contains it.
    """

    url: str
    kinds: list[str] = field(default_factory=list)
    description: str = ""
    secret: str | None = None


class WebhookPatch(RequestModel, frozen=True):
    """Omitted fields are not changed."""

    url: str | UnsetType = UNSET
    kinds: list[str] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class RotateRequest(RequestModel, frozen=True):
    """The new secret. If omitted, the server creates one; only the response to this request contains it."""

    secret: str | None = None


class Webhook(ResponseModel, frozen=True):
    """A webhook endpoint. Only the response to the request that created the secret contains `new_secret`."""

    endpoint_id: str
    url: str
    kinds: list[str]
    description: str
    enabled: bool
    disabled_reason: str | None
    secret: dict[str, Any]
    created_at: datetime
    created_by: str
    changed_at: datetime
    new_secret: str | UnsetType = UNSET


class WebhookPage(ResponseModel, frozen=True):
    """Webhook endpoints, oldest first."""

    items: list[Webhook]
    next_cursor: str | None = None


class WebhookDelivery(ResponseModel, frozen=True):
    """An event sent to an endpoint; `run_id` is the run that sends it.

    A test has no `event_id`. `payload` is the body that is sent. `status`, `seconds` and `response` are those of the
    last attempt; `status` and `response` are null if the receiver did not respond. All of these and `state` are null if
    the run is past its retention.
    """

    delivery_id: str
    endpoint_id: str
    event_id: int | None
    kind: str
    run_id: str
    state: str | None
    attempt: int | None
    error: str | None
    status: int | None
    seconds: float | None
    response: str | None
    next_attempt_at: datetime | None
    payload: dict[str, Any] | None
    made_at: datetime
    replay_of: str | None


class DeliveryPage(ResponseModel, frozen=True):
    """Deliveries, newest first."""

    items: list[WebhookDelivery]
    next_cursor: str | None = None


def encode_endpoint(number: int) -> str:
    return f"whe_{number}"


def decode_endpoint(text: str) -> int:
    number = _decode(text, "whe_")
    if number is None:
        raise no_endpoint()
    return number


def encode_delivery(number: int) -> str:
    return f"whd_{number}"


def decode_delivery(text: str) -> int:
    number = _decode(text, "whd_")
    if number is None:
        raise no_delivery()
    return number


def no_endpoint() -> NotFound:
    return NotFound("there is no such webhook endpoint")


def no_delivery() -> NotFound:
    return NotFound("there is no such delivery")


def _decode(text: str, prefix: str) -> int | None:
    digits = text.removeprefix(prefix)
    if text.startswith(prefix) and digits.isascii() and digits.isdecimal() and len(digits) <= 19:
        number = int(digits)
        if str(number) == digits and number <= _LARGEST:
            return number
    return None
