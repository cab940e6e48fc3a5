"""Codecs encrypt payloads at the edge: arguments before they are stored, and results before they are reported.

The setting `payload_codec` names a codec, such as `bellringer.codecs:aesgcm`, and `payload_keys` its keys. A stored
value has the form `{"$encrypted": {"codec": …, "key": …, "task": …, "data": …}}`. Only processes with the keys can read
it; the database and an API server without keys cannot.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from bellringer.core.secret_references import parse_reference
from bellringer.errors import BellringerError, ConfigError

ENCRYPTED_FIELD: Final = "$encrypted"
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = (16, 24, 32)
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class PayloadUnreadable(BellringerError):
    """An encrypted value that this process cannot decrypt."""

    code = "payload_unreadable"


class EncodedPayload(NamedTuple):
    """The output of a codec: the id of the key that was used, and the encrypted bytes."""

    key: str
    data: bytes


class PayloadCodec(Protocol):
    """Encrypts and decrypts bytes. `bound_to` names the tenant and the task: `decode` must fail for other ones.

    `encode` should return equal bytes for equal input. Otherwise each start of an app stores its jobs again, and a
    repeated request with the same `Idempotency-Key` counts as another one.
    """

    @property
    def name(self) -> str:
        """The name of the codec, which is stored with each value."""

    def encode(self, data: bytes, *, bound_to: bytes) -> EncodedPayload: ...

    def decode(self, encoded: EncodedPayload, *, bound_to: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class AesGcmCodec:
    """AES-GCM. The first key encrypts, all keys decrypt: to rotate, add a key in front.

    The nonce is a keyed hash of tenant, task and value, so equal values of a task have equal ciphertexts.
    """

    keys: Mapping[str, bytes] = field(repr=False)
    name: str = "aesgcm"

    def encode(self, data: bytes, *, bound_to: bytes) -> EncodedPayload:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - a slow import

        key_id, key = next(iter(self.keys.items()))
        nonce_key = hmac.digest(key, b"bellringer payload nonce", hashlib.sha256)
        message = len(bound_to).to_bytes(4, "big") + bound_to + data
        nonce = hmac.digest(nonce_key, message, hashlib.sha256)[:_NONCE_BYTES]
        return EncodedPayload(key_id, nonce + AESGCM(key).encrypt(nonce, data, bound_to))

    def decode(self, encoded: EncodedPayload, *, bound_to: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        key = self.keys.get(encoded.key)
        if key is None:
            hint = "add the key to payload_keys"
            raise PayloadUnreadable(f"the payload key {encoded.key!r} is not configured here", hint=hint)
        nonce, data = encoded.data[:_NONCE_BYTES], encoded.data[_NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, data, bound_to)
        except (InvalidTag, ValueError):
            hint = "it was encrypted for another tenant or task, or with another key of this id"
            raise PayloadUnreadable("an encrypted value cannot be decrypted", hint=hint) from None


def aesgcm(keys: Sequence[str]) -> AesGcmCodec:
    """Returns the built-in codec for the setting `payload_keys` (`id:base64`, newest first). Raises ConfigError."""
    parsed: dict[str, bytes] = {}
    for place, text in enumerate(keys):
        name, colon, encoded = text.strip().partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        # The error does not contain the text: it may be a real key with a typing error.
        if not colon or not _KEY_ID.fullmatch(name) or len(key) not in _KEY_BYTES or name in parsed:
            hint = "use id:base64 with 32 random bytes, for example from `openssl rand -base64 32`"
            raise ConfigError(f"entry {place + 1} of payload_keys is not a valid key", hint=hint)
        parsed[name] = key
    if not parsed:
        raise ConfigError("payload_codec is set, but payload_keys is empty", hint="add a key: id:base64")
    return AesGcmCodec(parsed)


def load_codec(setting: str | None, keys: Sequence[str]) -> PayloadCodec | None:
    """Returns the codec that `payload_codec` names as module:object; None without the setting. Raises ConfigError.

    A function or a class is called with the keys; another object is the codec itself.
    """
    if not setting:
        return None
    module, _, name = setting.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "give module:object, such as bellringer.codecs:aesgcm"
        raise ConfigError(f"payload_codec cannot be loaded: {error}", hint=hint) from None
    codec: PayloadCodec = found(keys) if callable(found) else found
    if not all(hasattr(codec, part) for part in ("name", "encode", "decode")):
        raise ConfigError("payload_codec names an object without name, encode and decode", hint="see docs/secrets.md")
    return codec


class Envelope(msgspec.Struct, frozen=True):
    """The content of `$encrypted`: `data` is base64; `task` is the task for which the value was encrypted."""

    codec: str
    key: str
    task: str
    data: str


def is_encrypted(value: object) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get(ENCRYPTED_FIELD), Mapping)


def encrypt_value(codec: PayloadCodec, value: Any, *, tenant: str, task: str) -> Any:
    """Returns a JSON value as an envelope. None, envelopes and references to secrets stay as they are."""
    if value is None or is_encrypted(value) or parse_reference(value) is not None:
        return value
    encoded = codec.encode(msgspec.json.encode(value, order="sorted"), bound_to=_binding(tenant, task))
    data = base64.b64encode(encoded.data).decode()
    return {ENCRYPTED_FIELD: {"codec": codec.name, "key": encoded.key, "task": task, "data": data}}


def encrypt_arguments(
    codec: PayloadCodec, args: Sequence[Any], kwargs: Mapping[str, Any], *, tenant: str, task: str
) -> tuple[list[Any], dict[str, Any]]:
    """Encrypts the values of arguments; their names stay readable."""
    return (
        [encrypt_value(codec, value, tenant=tenant, task=task) for value in args],
        {name: encrypt_value(codec, value, tenant=tenant, task=task) for name, value in kwargs.items()},
    )


def decrypt(codec: PayloadCodec | None, value: Any, *, tenant: str, task: str | None = None) -> Any:
    """Returns a JSON value with all envelopes in it decrypted. Raises PayloadUnreadable.

    With `task`, only values that were encrypted for this task are accepted.
    """
    if isinstance(value, Mapping):
        if is_encrypted(value):
            return _open(codec, value[ENCRYPTED_FIELD], tenant, task)
        return {name: decrypt(codec, inner, tenant=tenant, task=task) for name, inner in value.items()}
    if isinstance(value, list):
        return [decrypt(codec, inner, tenant=tenant, task=task) for inner in value]
    return value


def _open(codec: PayloadCodec | None, document: Any, tenant: str, task: str | None) -> Any:
    try:
        envelope = msgspec.convert(document, Envelope)
        data = base64.b64decode(envelope.data, validate=True)
    except (msgspec.ValidationError, ValueError):
        raise PayloadUnreadable("an encrypted value is damaged", hint="send the value again") from None
    if codec is None or codec.name != envelope.codec:
        message = f"a value is encrypted with the codec {envelope.codec!r} and the key {envelope.key!r}"
        raise PayloadUnreadable(message, hint="set payload_codec and payload_keys in this process")
    if task is not None and envelope.task != task:
        raise PayloadUnreadable(f"a value was encrypted for the task {envelope.task!r}", hint="send the value again")
    plain = codec.decode(EncodedPayload(envelope.key, data), bound_to=_binding(tenant, envelope.task))
    return msgspec.json.decode(plain)


def _binding(tenant: str, task: str) -> bytes:
    return msgspec.json.encode([tenant, task])
