"""API keys of the form `br_<id>_<secret>`. The id may be logged; only a hash of the secret is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from typing import Final

_ID_ALPHABET: Final = string.ascii_lowercase + string.digits
_KEY_PATTERN: Final = re.compile(r"br_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyCredential:
    """An API key in plain text, as its holder has it."""

    key_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        return f"br_{self.key_id}_{self.secret}"

    @property
    def hash(self) -> bytes:
        """The hash that is stored. The secret has 256 random bits, so a slow password hash is not needed."""
        return hashlib.sha256(self.secret.encode()).digest()

    def fits(self, kept: bytes) -> bool:
        """Whether this key has the stored hash. Compares in constant time."""
        return hmac.compare_digest(self.hash, kept)


def generate_api_key() -> ApiKeyCredential:
    """Generates a new key. Its secret is shown only once."""
    return ApiKeyCredential(
        key_id="".join(secrets.choice(_ID_ALPHABET) for _ in range(8)), secret=secrets.token_urlsafe(32)
    )


def parse_api_key(text: str) -> ApiKeyCredential | None:
    """Returns the key if the text has the form of one, else None."""
    found = _KEY_PATTERN.fullmatch(text)
    return ApiKeyCredential(key_id=found[1], secret=found[2]) if found else None
