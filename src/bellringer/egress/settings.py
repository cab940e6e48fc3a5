"""What the operator has set for calls to the outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bellringer.egress.addresses import Network, read_networks
from bellringer.egress.secrets import Box, read_box
from bellringer.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Egress:
    """The private networks that may be called, and the box that keeps secrets; without keys there is none."""

    allowed: tuple[Network, ...] = ()
    box: Box | None = None

    @classmethod
    def read(cls, allow: Sequence[str], keys: Sequence[str]) -> Egress:
        return cls(read_networks(allow), read_box(keys))

    def need_box(self) -> Box:
        if self.box is None:
            hint = "an operator sets secret_keys=id:base64, with 32 random bytes"
            raise InvalidInput("no key is set here that could seal a secret", hint=hint, code="secrets_off")
        return self.box
