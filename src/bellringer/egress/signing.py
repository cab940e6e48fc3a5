"""Signatures as Standard Webhooks has them: HMAC-SHA256 over `{id}.{timestamp}.{body}`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from bellringer.errors import InvalidInput

PREFIX: Final = "whsec_"
SHORTEST: Final = 24
LONGEST: Final = 64
TOLERANCE: Final = timedelta(minutes=5)
_VERSION: Final = "v1,"


def make_secret() -> str:
    """A new secret, from the system's own randomness."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_secret(secret: object, *, pointer: str = "/secret") -> str:
    """A secret as it was given, if it can sign; it is never shown again, here least of all."""
    hint = f"write {PREFIX} and then {SHORTEST} to {LONGEST} random bytes in base64"
    if not isinstance(secret, str) or not secret.startswith(PREFIX):
        raise InvalidInput(f"the secret must begin with {PREFIX}", hint=hint, pointer=pointer, code="secret_invalid")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("the secret is not base64", hint=hint, pointer=pointer, code="secret_invalid") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise InvalidInput(f"the secret has {len(key)} bytes", hint=hint, pointer=pointer, code="secret_invalid")
    return secret


def sign(secret: str, message_id: str, at: datetime, body: bytes) -> str:
    """One signature."""
    key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    content = b".".join((message_id.encode(), str(_seconds(at)).encode(), body))
    return _VERSION + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def signed_headers(keys: Sequence[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The three headers; while a secret is replaced, both sign, and the receiver may know either."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(_seconds(at))}
    if keys:
        headers["webhook-signature"] = " ".join(sign(key, message_id, at, body) for key in keys)
    return headers


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: datetime) -> str | None:
    """What is wrong with a signed request; None: it is genuine, and of these minutes."""
    low = {name.lower(): value for name, value in headers.items()}
    if missing := [name for name in ("webhook-id", "webhook-timestamp", "webhook-signature") if name not in low]:
        return f"the header {missing[0]} is missing"
    written = low["webhook-timestamp"]
    if not (written.isascii() and written.isdigit() and len(written) <= 12):
        return "webhook-timestamp is no number of seconds"
    at = int(written)
    if abs(_seconds(now) - at) > TOLERANCE.total_seconds():
        return "webhook-timestamp is more than 5 minutes away"
    key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    content = b".".join((low["webhook-id"].encode(), written.encode(), body))
    wanted = _VERSION.encode() + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest())
    # All are compared, each in constant time.
    matches = [hmac.compare_digest(wanted, given.encode()) for given in low["webhook-signature"].split(" ")]
    return None if any(matches) else "no signature was made with this secret"


def _seconds(at: datetime) -> int:
    return int(at.timestamp())
