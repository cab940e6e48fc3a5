"""API keys: `br_<id>_<secret>`. The id may be seen and logged; of the secret only a hash is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from typing import Final

_SIGNS: Final = string.ascii_lowercase + string.digits
_FORM: Final = re.compile(r"br_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as its holder has it."""

    key_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        return f"br_{self.key_id}_{self.secret}"

    @property
    def hash(self) -> bytes:
        """What is kept of it. The secret has 256 random bits, so no slow hash is needed to guard it."""
        return hashlib.sha256(self.secret.encode()).digest()

    def fits(self, kept: bytes) -> bool:
        """Whether this is the key that was kept, in the same time whatever the answer."""
        return hmac.compare_digest(self.hash, kept)


def make_key() -> Key:
    """A new key; nobody sees its secret again after it was given out."""
    return Key(key_id="".join(secrets.choice(_SIGNS) for _ in range(8)), secret=secrets.token_urlsafe(32))


def read_key(text: str) -> Key | None:
    """The key that a text is, if it has the form of one."""
    found = _FORM.fullmatch(text)
    return Key(key_id=found[1], secret=found[2]) if found else None
