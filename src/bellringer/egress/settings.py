"""The operator's settings for outgoing calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bellringer.egress.addresses import Network, parse_networks
from bellringer.egress.secret_box import SecretBox, parse_secret_keys
from bellringer.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Egress:
    """The private networks that may be called, and the box that encrypts secrets (None without keys)."""

    allowed: tuple[Network, ...] = ()
    box: SecretBox | None = None

    @classmethod
    def read(cls, allow: Sequence[str], keys: Sequence[str]) -> Egress:
        return cls(parse_networks(allow), parse_secret_keys(keys))

    def need_box(self) -> SecretBox:
        if self.box is None:
            hint = "the operator must set secret_keys=id:base64, with 32 random bytes"
            raise InvalidInput(
                "secrets cannot be stored: no encryption key is configured", hint=hint, code="secrets_off"
            )
        return self.box
