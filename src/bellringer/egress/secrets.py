"""Secrets at rest: sealed with AES-GCM by keys that the database never sees, each bound to its tenant and row."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bellringer.errors import BellringerError, ConfigError

_NONCE: Final = 12
_SIZES: Final = (16, 24, 32)
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Unsealable(BellringerError):
    """A secret that no key of this process opens."""

    code = "secret_unsealable"


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is stored: which key closed it, and the closed bytes."""

    key_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Box:
    """Seals with the first key, opens with all: a new key goes in front, and the old one stays while it is needed."""

    keys: Mapping[str, bytes] = field(repr=False)

    @property
    def newest(self) -> str:
        return next(iter(self.keys))

    def seal(self, secret: str, *, tenant_id: int, secret_id: str) -> Sealed:
        nonce = os.urandom(_NONCE)
        key_id = self.newest
        closed = AESGCM(self.keys[key_id]).encrypt(nonce, secret.encode(), _bound_to(tenant_id, secret_id))
        return Sealed(key_id, nonce + closed)

    def mark(self, secret: str, *, tenant_id: int) -> bytes:
        """The same for the same secret of a tenant; without the key it tells nothing."""
        told = f"mark:{tenant_id}:{secret}".encode()
        return hmac.new(self.keys[self.newest], told, hashlib.sha256).digest()

    def open(self, sealed: Sealed, *, tenant_id: int, secret_id: str) -> str:
        key = self.keys.get(sealed.key_id)
        if key is None:
            raise Unsealable(f"the key {sealed.key_id!r} is not known here", hint="add it to secret_keys")
        nonce, closed = sealed.data[:_NONCE], sealed.data[_NONCE:]
        try:
            return AESGCM(key).decrypt(nonce, closed, _bound_to(tenant_id, secret_id)).decode()
        except (InvalidTag, ValueError):
            raise Unsealable(
                f"the secret {secret_id} was not sealed by this key for this tenant", hint="set it anew"
            ) from None


def read_box(written: Sequence[str]) -> Box | None:
    """The keys as the operator wrote them, `id:base64`, newest first; None where there are none."""
    keys: dict[str, bytes] = {}
    for place, text in enumerate(written):
        name, colon, encoded = text.strip().partition(":")
        hint = "write id:base64 with 32 random bytes, as `openssl rand -base64 32` makes them"
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        # The text itself is never shown: it may be a key with a slip in it.
        if not colon or not _KEY_ID.fullmatch(name) or len(key) not in _SIZES:
            raise ConfigError(f"secret_keys has an entry that is no key, at place {place + 1}", hint=hint)
        if name in keys:
            raise ConfigError(f"secret_keys has two keys named {name!r}", hint="give each an id of its own")
        keys[name] = key
    return Box(keys) if keys else None


def make_key(name: str) -> str:
    """A new key in the form that `read_box` takes."""
    return f"{name}:{base64.b64encode(os.urandom(32)).decode()}"


def _bound_to(tenant_id: int, secret_id: str) -> bytes:
    return f"{tenant_id}:{secret_id}".encode()
