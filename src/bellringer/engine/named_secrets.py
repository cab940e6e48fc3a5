"""Stores secrets that arguments refer to by name, decrypts them for a run, and re-encrypts them with a new key."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bellringer.core.redaction import MIN_TEXT_LENGTH
from bellringer.core.secret_references import check_secret_name
from bellringer.egress.secret_box import Sealed, SecretBox, Unsealable
from bellringer.egress.settings import Egress
from bellringer.egress.urls import parse_url
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import named_secrets as rows
from bellringer.store.connection_pool import Store
from bellringer.store.named_secrets import KeyUseRow, NamedSecretRow, SealedSecretRow, TargetSecretRow

MAX_SECRET_BYTES: Final = 16 * 1024
MAX_RESTRICTIONS: Final = 50
MAX_NOTE_CHARACTERS: Final = 500
ROTATION_BATCH_ROWS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSpec:
    """A secret to store. `tasks` may use it (none given: all); HTTP targets may send it to `origins` only."""

    name: str
    value: str = field(repr=False)
    tasks: Sequence[str] = ()
    origins: Sequence[str] = ()
    note: str = ""


async def put_secret(store: Store, egress: Egress, spec: SecretSpec, *, tenant_id: int, who: str) -> NamedSecretRow:
    """Creates or replaces a secret. Runs that begin afterwards, also retries, get the new value."""
    _check(spec)
    origins = [parse_url(origin, egress.allowed, pointer="/origins").origin for origin in spec.origins]
    bound_to = sealed_id(spec.name, spec.tasks, origins)
    sealed = egress.need_box().seal(spec.value, tenant_id=tenant_id, secret_id=bound_to)
    stored = await rows.put(
        store,
        tenant_id,
        name=spec.name,
        key_id=sealed.key_id,
        sealed=sealed.data,
        tasks=sorted(set(spec.tasks)),
        origins=sorted(set(origins)),
        note=spec.note,
        who=who,
    )
    if stored is None:
        hint = "delete secrets that nothing uses"
        raise Conflict(f"the tenant has {rows.MAX_SECRETS} secrets already", hint=hint, code="quota_exceeded")
    return stored


def _check(spec: SecretSpec) -> None:
    check_secret_name(spec.name)
    size = len(spec.value.encode("utf-8", "surrogatepass"))
    if size > MAX_SECRET_BYTES:
        message = f"the value has {size:,} bytes; the limit is {MAX_SECRET_BYTES:,}"
        raise InvalidInput(message, pointer="/value", code="limit")
    if len(spec.value) < MIN_TEXT_LENGTH:  # it could not be removed from logs and errors
        message = f"the value of a secret has at least {MIN_TEXT_LENGTH} characters"
        raise InvalidInput(message, pointer="/value", code="limit")
    if "\0" in spec.value or (not spec.value.isascii() and _has_surrogates(spec.value)):
        raise InvalidInput("the value must be text without NUL characters", pointer="/value", code="encoding")
    for name, given in (("tasks", spec.tasks), ("origins", spec.origins)):
        if len(given) > MAX_RESTRICTIONS:
            raise InvalidInput(f"{name} can have at most {MAX_RESTRICTIONS}", pointer=f"/{name}", code="limit")
    if len(spec.note) > MAX_NOTE_CHARACTERS:
        raise InvalidInput(f"note can have at most {MAX_NOTE_CHARACTERS} characters", pointer="/note", code="limit")


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


async def delete_secret(store: Store, name: str, *, tenant_id: int) -> None:
    if not await rows.delete(store, tenant_id, name):
        raise NotFound("there is no such secret", hint="`bellringer secrets list` shows them")


def sealed_id(name: str, tasks: Collection[str], origins: Collection[str]) -> str:
    """Returns what the ciphertext of a secret is bound to, together with its tenant: its name and its restrictions. Who
    changes the restrictions in the database without the key makes the secret unusable.
    """
    restrictions = json.dumps([sorted(set(tasks)), sorted(set(origins))], separators=(",", ":"))
    return f"secret {name} {restrictions}"


def open_sealed(box: SecretBox, row: SealedSecretRow, *, tenant_id: int) -> str:
    """Decrypts a secret. Raises Unsealable."""
    stored = Sealed(row.key_id, row.sealed)
    return box.open(stored, tenant_id=tenant_id, secret_id=_sealed_id_of(row), name=row.name)


def _sealed_id_of(row: SealedSecretRow) -> str:
    return sealed_id(row.name, row.tasks, row.origins)


async def missing_names(store: Store, names: Collection[str], *, tenant_id: int) -> list[str]:
    """Returns the names for which the sealed store has no secret."""
    return sorted(set(names) - await rows.known_names(store, tenant_id, names)) if names else []


# Key rotation


@dataclass(slots=True)
class KeyRotation:
    """The outcome of a rotation: how many values were encrypted again, and which could not be decrypted."""

    key_id: str
    secrets: int = 0
    signing_secrets: int = 0
    failed: list[str] = field(default_factory=list)
    uses: list[KeyUseRow] = field(default_factory=list)


async def rotate_keys(store: Store, box: SecretBox) -> KeyRotation:
    """Encrypts all stored secrets with the newest key, in batches. A call that was interrupted can be repeated:
    values that have the newest key are skipped. Values inside HTTP jobs get the newest key when the job is stored
    again; `uses` counts them.
    """
    done = KeyRotation(box.newest)
    await _rotate_named(store, box, done)
    await _rotate_target_secrets(store, box, done)
    done.uses = await rows.key_uses(store)
    return done


async def _rotate_named(store: Store, box: SecretBox, done: KeyRotation) -> None:
    position = rows.START
    while batch := await rows.outdated(store, box.newest, position, ROTATION_BATCH_ROWS):
        for tenant_id, row in batch:
            try:
                stored = Sealed(row.key_id, row.sealed)
                sealed = box.reseal(stored, tenant_id=tenant_id, secret_id=_sealed_id_of(row), name=row.name)
            except Unsealable as error:
                done.failed.append(f"secret {row.name} of tenant {tenant_id}: {error.message}")
                continue
            done.secrets += await rows.reseal(store, tenant_id, row.name, row.sealed, sealed.key_id, sealed.data)
        position = (batch[-1][0], batch[-1][1].name)


async def _rotate_target_secrets(store: Store, box: SecretBox, done: KeyRotation) -> None:
    position = rows.START
    while batch := await rows.outdated_target_secrets(store, box.newest, position, ROTATION_BATCH_ROWS):
        for row in batch:
            try:
                fresh = _resealed(box, row)
            except Unsealable as error:
                done.failed.append(f"signing secret {row.secret_id} of tenant {row.tenant_id}: {error.message}")
                continue
            done.signing_secrets += await rows.reseal_target_secret(store, row, fresh)
        position = (batch[-1].tenant_id, batch[-1].secret_id)


def _resealed(box: SecretBox, row: TargetSecretRow) -> TargetSecretRow:
    current = box.reseal(Sealed(row.key_id, row.sealed), tenant_id=row.tenant_id, secret_id=row.secret_id)
    fresh = replace(row, key_id=current.key_id, sealed=current.data)
    if row.previous_key_id is None or row.previous is None:
        return fresh
    sealed = Sealed(row.previous_key_id, row.previous)
    previous = box.reseal(sealed, tenant_id=row.tenant_id, secret_id=row.secret_id)
    return replace(fresh, previous_key_id=previous.key_id, previous=previous.data)
