"""Cursors: where a page ended, signed, so that nobody can make one up or use another's."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, TypeVar

import msgspec

from bellringer.api.problems import Refused

S = TypeVar("S", bound=msgspec.Struct)

_SIGNED: Final = 16  # bytes of the signature
_LONGEST: Final = 2048


def write(of: str, mark: msgspec.Struct, *, tenant_id: int, seal: bytes) -> str:
    """A cursor of one list of one tenant; `of` names the list and its filter."""
    data = msgspec.json.encode(mark)
    return base64.urlsafe_b64encode(_sign(data, of, tenant_id, seal) + data).rstrip(b"=").decode()


def read(text: str, of: str, shape: type[S], *, tenant_id: int, seal: bytes) -> S:
    """Where the page ended; a cursor that is not ours, or of another list or tenant, is refused."""
    try:
        data = base64.b64decode(
            text[:_LONGEST].encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, UnicodeError):
        raise _forged() from None
    signature, data = data[:_SIGNED], data[_SIGNED:]
    if not hmac.compare_digest(signature, _sign(data, of, tenant_id, seal)):
        raise _forged()
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.DecodeError:  # one of an earlier version
        raise _forged() from None


def _sign(data: bytes, of: str, tenant_id: int, seal: bytes) -> bytes:
    told = b"cursor\0" + msgspec.json.encode((tenant_id, of)) + b"\0" + data
    return hmac.new(seal, told, hashlib.sha256).digest()[:_SIGNED]


def _forged() -> Refused:
    return Refused(400, "cursor_invalid", "the cursor is not one of this list", hint="start again without a cursor")
