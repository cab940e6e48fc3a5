"""Secrets that arguments refer to by name. No response contains a value."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET, UnsetType, field

from bellringer.errors import NotFound
from bellringer.wire.models import RequestModel, ResponseModel


class SecretRequest(RequestModel, frozen=True):
    """A secret to create or replace. The value can never be read again.

    `tasks` are the tasks whose runs may use it; without any, all tasks may. `origins` are the origins, such as
    https://api.example.com, to which HTTP targets may send it; without any, none may. If omitted, they are kept.
    """

    value: str
    tasks: list[str] | UnsetType = UNSET
    origins: list[str] | UnsetType = UNSET
    note: str | UnsetType = UNSET


class Secret(ResponseModel, frozen=True):
    """A secret without its value. `version` grows when the value is replaced; `key` is the id of its encryption key."""

    name: str
    version: int
    key: str
    tasks: list[str]
    origins: list[str]
    note: str
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


class SecretPage(ResponseModel, frozen=True):
    """A page of secrets by name, without their values."""

    items: list[Secret] = field(default_factory=list)
    next_cursor: str | None = None


def no_secret() -> NotFound:
    return NotFound("there is no such secret", hint="`bellringer secrets list` shows them")
