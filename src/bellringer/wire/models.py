"""Base classes of all request and response models, and the models that several resources share."""

from __future__ import annotations

import msgspec


class RequestModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations are "90s", "1h30m", ISO 8601 or seconds; instants are RFC 3339 with an offset."""


class ResponseModel(msgspec.Struct, frozen=True, kw_only=True):
    """Instants are RFC 3339 in UTC with Z; durations are written like "1h30m"."""


class Empty(RequestModel, frozen=True):
    """An empty object."""


class Count(ResponseModel, frozen=True):
    """A count. With the relation "gte", counting stopped at `value`, and there may be more."""

    value: int
    relation: str


class RequestWarning(ResponseModel, frozen=True):
    """A probable mistake in an accepted request; `pointer` is its position in the body."""

    code: str
    pointer: str
    detail: str
    hint: str = ""
