"""Webhook endpoints and deliveries, as callers write them and as the API tells them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.errors import NotFound
from bellringer.wire.answers import Answer
from bellringer.wire.requests import Request

_LARGEST = (1 << 63) - 1


class WebhookRequest(Request, frozen=True):
    """Where events go. No `kinds` means all; without a `secret` one is made, and shown in the answer to this alone."""

    url: str
    kinds: list[str] = field(default_factory=list)
    description: str = ""
    secret: str | None = None


class WebhookPatch(Request, frozen=True):
    """What is left out stays as it is."""

    url: str | UnsetType = UNSET
    kinds: list[str] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class RotateRequest(Request, frozen=True):
    """The new secret; without one it is made, and shown in the answer to this alone."""

    secret: str | None = None


class Webhook(Answer, frozen=True):
    """Who is told of events. `new_secret` is there once: in the answer to the request that had one made."""

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


class WebhookPage(Answer, frozen=True):
    """Webhook endpoints, in the order in which they were made."""

    items: list[Webhook]
    next_cursor: str | None = None


class Delivery(Answer, frozen=True):
    """What was sent to an endpoint, and what became of it; `run_id` is the run that carries it.

    A test has no `event_id`. Of a run that is past retention the state is unknown.
    """

    delivery_id: str
    endpoint_id: str
    event_id: int | None
    kind: str
    run_id: str
    state: str | None
    attempt: int | None
    error: str | None
    made_at: datetime
    replay_of: str | None


class DeliveryPage(Answer, frozen=True):
    """Deliveries, the newest first."""

    items: list[Delivery]
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
