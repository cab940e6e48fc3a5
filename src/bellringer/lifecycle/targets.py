"""Targets: what an HTTP job calls is checked, and its secret and credentials sealed, before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from uuid_utils.compat import uuid7

from bellringer.egress.headers import is_credential, open_header, seal_header
from bellringer.egress.secrets import Sealed, Unsealable
from bellringer.egress.settings import Egress
from bellringer.egress.signing import check_secret
from bellringer.egress.targets import plain_target, read_target
from bellringer.egress.urls import origin_of, parse_url
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import egress as rows
from bellringer.store.pool import Store


async def prepare(
    store: Store,
    egress: Egress,
    document: Mapping[str, Any],
    *,
    tenant_id: int,
    before: Mapping[str, Any] | None = None,
    needed_until: datetime | None = None,
) -> dict[str, Any]:
    """A target as it is stored. `before` is what the job had: a new secret will replace that one's, see `renew`.

    `needed_until`: it is of a send, and for when; those that bring the same secret again and again keep it once.
    """
    shared = needed_until is not None
    headers = _Headers(egress, tenant_id, (before or {}).get("headers") or {}, is_send=shared)
    document = headers.opened(document)
    target = read_target(document, egress.allowed)
    document = headers.sealed(document, target.url.origin)
    given, had = document.get("secret"), _id_of((before or {}).get("secret"))
    if given is None:
        return plain_target(document, target, None)
    if (known := _id_of(given)) is not None:
        # Who may send, but not change jobs, must not sign as they do: a send brings its own.
        if shared or not await rows.has_secret(store, tenant_id, known):
            hint = "give the secret itself, whsec_…"
            raise InvalidInput(
                "there is no such secret here", hint=hint, pointer="/http/secret/id", code="secret_unknown"
            )
        return plain_target(document, target, known)
    secret = check_secret(given, pointer="/http/secret")
    egress.need_box()
    kept = had or await keep(store, egress, secret, tenant_id=tenant_id, needed_until=needed_until)
    return plain_target(document, target, kept)


async def renew(
    store: Store, egress: Egress, document: Mapping[str, Any], before: Mapping[str, Any], *, tenant_id: int
) -> None:
    """Once a job was changed: the secret that the change brought replaces the one that it had.

    Not sooner, because a change may still be refused, and must then have changed nothing.
    """
    given, had = document.get("secret"), _id_of(before.get("secret"))
    if isinstance(given, str) and had is not None:
        await rotate(store, egress, given, tenant_id=tenant_id, secret_id=had)


def opened(egress: Egress, stored: Mapping[str, Any], *, tenant_id: int) -> dict[str, Any]:
    """A stored target with its credentials, as it is called."""
    headers = stored.get("headers") or {}
    if not any(isinstance(value, Mapping) for value in headers.values()):
        return dict(stored)
    box, origin = egress.need_box(), origin_of(stored["url"])
    plain = {
        name: open_header(box, name, value, tenant_id=tenant_id, origin=origin) if isinstance(value, Mapping) else value
        for name, value in headers.items()
    }
    return {**stored, "headers": plain}


async def keep(
    store: Store, egress: Egress, secret: str, *, tenant_id: int, needed_until: datetime | None = None
) -> str:
    """Keep a new secret, sealed; answers its id."""
    box, secret_id = egress.need_box(), f"sec_{uuid7().hex}"
    sealed = box.seal(secret, tenant_id=tenant_id, secret_id=secret_id)
    mark = box.mark(secret, tenant_id=tenant_id) if needed_until else None
    return await rows.keep_secret(store, tenant_id, secret_id, sealed.key_id, sealed.data, mark, needed_until)


async def rotate(store: Store, egress: Egress, secret: str, *, tenant_id: int, secret_id: str) -> None:
    """Replace a secret; for a day the one before signs along. The same once more changes nothing."""
    if secret in (await secrets_of(store, egress, secret_id, tenant_id=tenant_id))[:1]:
        return
    sealed = egress.need_box().seal(secret, tenant_id=tenant_id, secret_id=secret_id)
    if not await rows.rotate_secret(store, tenant_id, secret_id, sealed.key_id, sealed.data):
        raise NotFound("there is no such secret")


async def secrets_of(store: Store, egress: Egress, secret_id: str, *, tenant_id: int) -> Sequence[str]:
    """What signs with this id: the present secret and, for a while, the one before."""
    kept = await rows.secret(store, tenant_id, secret_id)
    if not kept:
        raise NotFound("the secret is no longer there", hint="set it anew")
    box = egress.need_box()
    return [box.open(Sealed(key_id, data), tenant_id=tenant_id, secret_id=secret_id) for key_id, data in kept]


def _id_of(secret: object) -> str | None:
    """The id in a stored or an answered secret; None where a secret itself is given."""
    if not isinstance(secret, Mapping):
        return None
    if not isinstance(secret.get("id"), str) or set(secret) - {"id", "set"}:
        hint = "give a new secret as text, or leave it as it was answered"
        raise InvalidInput("the secret cannot be read", hint=hint, pointer="/http/secret", code="type")
    return str(secret["id"])


@dataclass(frozen=True, slots=True)
class _Headers:
    """The credentials among the headers of a target; `before` are the headers that its job had."""

    egress: Egress
    tenant_id: int
    before: Mapping[str, Any]
    is_send: bool = False

    def opened(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """With the values of those that were stored, or answered, before."""
        headers = document.get("headers")
        if not isinstance(headers, Mapping) or not any(isinstance(value, Mapping) for value in headers.values()):
            return dict(document)  # whatever is wrong with them is found when they are read
        origin = parse_url(document.get("url"), self.egress.allowed, pointer="/http/url").origin
        return {**document, "headers": {name: self._value(name, value, origin) for name, value in headers.items()}}

    def sealed(self, document: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """As they are stored. One that is the same as before stays as it is, so that nothing seems to have changed."""
        headers = {name.lower(): value for name, value in (document.get("headers") or {}).items()}
        for name, value in headers.items():
            if is_credential(name):
                headers[name] = self._kept(name, value, origin) or self._sealed(name, value, origin)
        return {**document, "headers": headers}

    def _value(self, name: str, value: object, origin: str) -> object:
        if not isinstance(value, Mapping) or not is_credential(name.lower()):
            return value
        stored = value if "sealed" in value else self.before.get(name.lower())
        if self.is_send or set(value) - {"sealed", "set"} or not isinstance(stored, Mapping):
            raise _unknown(name)
        try:
            return self._open(name.lower(), stored, origin)
        except Unsealable:
            raise _unknown(name) from None

    def _kept(self, name: str, value: str, origin: str) -> object:
        stored = self.before.get(name)
        try:
            return stored if isinstance(stored, Mapping) and self._open(name, stored, origin) == value else None
        except Unsealable:
            return None

    def _open(self, name: str, stored: Mapping[str, Any], origin: str) -> str:
        return open_header(self.egress.need_box(), name, stored, tenant_id=self.tenant_id, origin=origin)

    def _sealed(self, name: str, value: str, origin: str) -> dict[str, str]:
        try:
            return seal_header(self.egress.need_box(), name, value, tenant_id=self.tenant_id, origin=origin)
        except InvalidInput as error:
            error.pointer = f"/http/headers/{name}"
            raise


def _unknown(name: str) -> InvalidInput:
    return InvalidInput(
        f"the value of the header {name} is not known here",
        hint="give it anew: it is kept for this job and the host of its url alone",
        pointer=f"/http/headers/{name}",
        code="secret_unknown",
    )
