"""Encrypts secrets at rest with AES-GCM.

The keys never reach the database. Each ciphertext is bound to its tenant and to the place where it is stored.
"""

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

_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = (16, 24, 32)
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Unsealable(BellringerError):
    """A secret that no configured key can decrypt."""

    code = "secret_unsealable"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A stored ciphertext and the id of its key."""

    key_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SecretBox:
    """Encrypts with the first key and decrypts with all. To rotate, add a new key in front and keep the old one
    while it is needed.
    """

    keys: Mapping[str, bytes] = field(repr=False)

    @property
    def newest(self) -> str:
        return next(iter(self.keys))

    def seal(self, secret: str, *, tenant_id: int, secret_id: str) -> Sealed:
        nonce = os.urandom(_NONCE_BYTES)
        key_id = self.newest
        closed = AESGCM(self.keys[key_id]).encrypt(nonce, secret.encode(), _associated_data(tenant_id, secret_id))
        return Sealed(key_id, nonce + closed)

    def keyed_hash(self, secret: str, *, tenant_id: int) -> bytes:
        """Returns a fingerprint that is equal for equal secrets of a tenant and reveals nothing without the key."""
        message = f"mark:{tenant_id}:{secret}".encode()
        return hmac.new(self.keys[self.newest], message, hashlib.sha256).digest()

    def open(self, sealed: Sealed, *, tenant_id: int, secret_id: str, name: str | None = None) -> str:
        """Decrypts a secret; errors call it by `name`, or else by its id. Raises Unsealable."""
        key = self.keys.get(sealed.key_id)
        if key is None:
            raise Unsealable(f"the encryption key {sealed.key_id!r} is not configured", hint="add it to secret_keys")
        nonce, closed = sealed.data[:_NONCE_BYTES], sealed.data[_NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, closed, _associated_data(tenant_id, secret_id)).decode()
        except (InvalidTag, ValueError):
            raise Unsealable(
                f"the secret {name or secret_id} cannot be decrypted for this tenant", hint="set the secret again"
            ) from None

    def reseal(self, sealed: Sealed, *, tenant_id: int, secret_id: str, name: str | None = None) -> Sealed:
        """Encrypts a stored secret with the newest key. Raises Unsealable."""
        secret = self.open(sealed, tenant_id=tenant_id, secret_id=secret_id, name=name)
        return self.seal(secret, tenant_id=tenant_id, secret_id=secret_id)


def parse_secret_keys(written: Sequence[str]) -> SecretBox | None:
    """Parses the setting secret_keys (`id:base64`, newest first). None if it is empty. Raises ConfigError."""
    keys: dict[str, bytes] = {}
    for place, text in enumerate(written):
        name, colon, encoded = text.strip().partition(":")
        hint = "use id:base64 with 32 random bytes, for example from `openssl rand -base64 32`"
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        # The error does not contain the text: it may be a real key with a typing error.
        if not colon or not _KEY_ID.fullmatch(name) or len(key) not in _KEY_BYTES:
            raise ConfigError(f"entry {place + 1} of secret_keys is not a valid key", hint=hint)
        if name in keys:
            raise ConfigError(f"secret_keys has two keys with the id {name!r}", hint="use a different id for each")
        keys[name] = key
    return SecretBox(keys) if keys else None


def generate_secret_key(name: str) -> str:
    """Generates a key in the form that `parse_secret_keys` accepts."""
    return f"{name}:{base64.b64encode(os.urandom(32)).decode()}"


def _associated_data(tenant_id: int, secret_id: str) -> bytes:
    return f"{tenant_id}:{secret_id}".encode()
