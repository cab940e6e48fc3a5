"""Signs and verifies requests as Standard Webhooks does: HMAC-SHA256 over `{id}.{timestamp}.{body}`."""

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

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - not a secret
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64
TIMESTAMP_TOLERANCE: Final = timedelta(minutes=5)
_VERSION_PREFIX: Final = "v1,"


def generate_secret() -> str:
    """Generates a random secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_secret(secret: object, *, pointer: str = "/secret") -> str:
    """Returns the secret if it is valid. Raises InvalidInput; the message does not contain the secret."""
    hint = f"use {SECRET_PREFIX} followed by {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} random bytes in base64"
    if not isinstance(secret, str) or not secret.startswith(SECRET_PREFIX):
        raise InvalidInput(
            f"the secret must begin with {SECRET_PREFIX}", hint=hint, pointer=pointer, code="secret_invalid"
        )
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("the secret is not base64", hint=hint, pointer=pointer, code="secret_invalid") from None
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise InvalidInput(f"the secret has {len(key)} bytes", hint=hint, pointer=pointer, code="secret_invalid")
    return secret


def sign_message(secret: str, message_id: str, at: datetime, body: bytes) -> str:
    """Returns one signature."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    content = b".".join((message_id.encode(), str(_seconds(at)).encode(), body))
    return _VERSION_PREFIX + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def signed_headers(keys: Sequence[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Returns the three signature headers. While a secret is rotated, both secrets sign, and the receiver may verify
    either.
    """
    headers = {"webhook-id": message_id, "webhook-timestamp": str(_seconds(at))}
    if keys:
        headers["webhook-signature"] = " ".join(sign_message(key, message_id, at, body) for key in keys)
    return headers


def verify_signature(secret: str, headers: Mapping[str, str], body: bytes, now: datetime) -> str | None:
    """Verifies a signed request. Returns a description of the problem, or None if it is valid and recent."""
    low = {name.lower(): value for name, value in headers.items()}
    if missing := [name for name in ("webhook-id", "webhook-timestamp", "webhook-signature") if name not in low]:
        return f"the header {missing[0]} is missing"
    written = low["webhook-timestamp"]
    if not (written.isascii() and written.isdigit() and len(written) <= 12):
        return "webhook-timestamp is not a number of seconds"
    at = int(written)
    if abs(_seconds(now) - at) > TIMESTAMP_TOLERANCE.total_seconds():
        return "webhook-timestamp is more than 5 minutes off"
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    content = b".".join((low["webhook-id"].encode(), written.encode(), body))
    wanted = _VERSION_PREFIX.encode() + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest())
    # Compare all of them, each in constant time.
    matches = [hmac.compare_digest(wanted, given.encode()) for given in low["webhook-signature"].split(" ")]
    return None if any(matches) else "no signature matches this secret"


def _seconds(at: datetime) -> int:
    return int(at.timestamp())
