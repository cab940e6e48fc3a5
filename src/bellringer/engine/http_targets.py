"""Validates the targets of HTTP jobs and encrypts their secrets before a job or a run is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from uuid_utils.compat import uuid7

from bellringer.egress.secret_box import Sealed
from bellringer.egress.settings import Egress
from bellringer.egress.target_secrets import TargetSecrets
from bellringer.egress.targets import encode_target, parse_target
from bellringer.egress.webhook_signatures import check_secret
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import egress as rows
from bellringer.store.connection_pool import Store


async def prepare_target(
    store: Store,
    egress: Egress,
    document: Mapping[str, Any],
    *,
    tenant_id: int,
    before: Mapping[str, Any] | None = None,
    needed_until: datetime | None = None,
) -> dict[str, Any]:
    """Returns a target in its stored form. `before` is the job's present target; `rotate_changed_secret` replaces
    its secret.

    `needed_until` marks the target of a single send: sends that bring the same secret share one stored copy.
    """
    shared = needed_until is not None
    secrets = TargetSecrets(egress, tenant_id, before or {}, is_send=shared)
    document = secrets.decrypt(document)
    target = parse_target(document, egress.allowed)
    document = secrets.encrypt(document, str(target.url))
    given, had = document.get("secret"), _secret_id((before or {}).get("secret"))
    if given is None:
        return encode_target(document, target, None)
    if (known := _secret_id(given)) is not None:
        # A caller who may send but not edit jobs must not sign with the secret of a job.
        if shared or not await rows.has_secret(store, tenant_id, known):
            hint = "pass the secret itself, whsec_…"
            raise InvalidInput("there is no such secret", hint=hint, pointer="/http/secret/id", code="secret_unknown")
        return encode_target(document, target, known)
    secret = check_secret(given, pointer="/http/secret")
    egress.need_box()
    kept = had or await store_secret(store, egress, secret, tenant_id=tenant_id, needed_until=needed_until)
    return encode_target(document, target, kept)


async def rotate_changed_secret(
    store: Store, egress: Egress, document: Mapping[str, Any], before: Mapping[str, Any], *, tenant_id: int
) -> None:
    """Replaces the secret of a job after the job was changed.

    The secret is not replaced earlier, because a change that is refused must leave everything as it was.
    """
    given, had = document.get("secret"), _secret_id(before.get("secret"))
    if isinstance(given, str) and had is not None:
        await rotate_secret(store, egress, given, tenant_id=tenant_id, secret_id=had)


async def store_secret(
    store: Store, egress: Egress, secret: str, *, tenant_id: int, needed_until: datetime | None = None
) -> str:
    """Encrypts and stores a new secret; returns its id."""
    box, secret_id = egress.need_box(), f"sec_{uuid7().hex}"
    sealed = box.seal(secret, tenant_id=tenant_id, secret_id=secret_id)
    keyed_hash = box.keyed_hash(secret, tenant_id=tenant_id) if needed_until else None
    return await rows.add_secret(store, tenant_id, secret_id, sealed.key_id, sealed.data, keyed_hash, needed_until)


async def rotate_secret(store: Store, egress: Egress, secret: str, *, tenant_id: int, secret_id: str) -> None:
    """Replaces a secret. The previous secret also signs for a day. Does nothing if the secret is unchanged."""
    if secret in (await open_secrets(store, egress, secret_id, tenant_id=tenant_id))[:1]:
        return
    sealed = egress.need_box().seal(secret, tenant_id=tenant_id, secret_id=secret_id)
    if not await rows.rotate_secret(store, tenant_id, secret_id, sealed.key_id, sealed.data):
        raise NotFound("there is no such secret")


async def open_secrets(store: Store, egress: Egress, secret_id: str, *, tenant_id: int) -> Sequence[str]:
    """Returns the decrypted secrets that sign under this id: the present one and, for a day, the previous one."""
    kept = await rows.load_secret(store, tenant_id, secret_id)
    if not kept:
        raise NotFound("the secret was deleted", hint="set it again")
    box = egress.need_box()
    return [box.open(Sealed(key_id, data), tenant_id=tenant_id, secret_id=secret_id) for key_id, data in kept]


def _secret_id(secret: object) -> str | None:
    """Returns the id in a stored secret reference, or None if the value is a secret itself."""
    if not isinstance(secret, Mapping):
        return None
    if not isinstance(secret.get("id"), str) or set(secret) - {"id", "set"}:
        hint = "pass a new secret as text, or the unchanged secret object from a response"
        raise InvalidInput("the secret has an unknown form", hint=hint, pointer="/http/secret", code="type")
    return str(secret["id"])
