"""Looks up the secrets to which arguments refer: in the sealed store, in environment variables, or in files.

The setting `secret_sources` lists the sources in the order of precedence: `store`, `env:PREFIX` and `file:FOLDER`.
Variables and files belong to the process, not to a tenant, so such a source serves one tenant: `default`, or the one in
`env@acme:PREFIX`. A folder may contain `{tenant}`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from bellringer.core.redaction import MIN_TEXT_LENGTH
from bellringer.core.secret_references import parse_source
from bellringer.egress.secret_box import SecretBox, Unsealable
from bellringer.engine.named_secrets import MAX_SECRET_BYTES, open_sealed
from bellringer.errors import BellringerError
from bellringer.store import named_secrets
from bellringer.store.connection_pool import Store

DEFAULT_SOURCES: Final = ("store",)
DEFAULT_TENANT: Final = "default"
TENANT_PLACEHOLDER: Final = "{tenant}"
_SETTINGS: Final = ("BELLRINGER_SECRET_KEYS", "BELLRINGER_SECRET_SOURCES")  # never secrets of runs, nor their files
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_NOT_IN_VARIABLES: Final = re.compile(r"[^A-Za-z0-9_]")


class SecretProblem(BellringerError):
    """A secret that an attempt needs and cannot get. `is_final`: another attempt would fail in the same way."""

    code = "secret_missing"

    def __init__(self, message: str, *, hint: str = "", code: str = "secret_missing", is_final: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class FoundSecret:
    """A value, the tasks that may use it (empty: all), and the origins to which it may be sent (None: all)."""

    value: str = field(repr=False)
    tasks: frozenset[str] = frozenset()
    origins: frozenset[str] | None = None


class SecretSource(Protocol):
    async def load(self, names: Collection[str], *, tenant_id: int, tenant: str | None) -> Mapping[str, FoundSecret]:
        """Return the secrets that this source has. `tenant` is None if the name of the tenant is not known."""


@dataclass(frozen=True, slots=True)
class SealedSource:
    """The sealed store in the database. Needs the keys of `secret_keys`."""

    store: Store
    box: SecretBox | None

    async def load(self, names: Collection[str], *, tenant_id: int, tenant: str | None) -> Mapping[str, FoundSecret]:
        del tenant  # rows belong to the id
        found = {}
        for name, row in (await named_secrets.load_sealed(self.store, tenant_id, names)).items():
            if self.box is None:
                hint = "set secret_keys in this process"
                message = f"the secret {name!r} cannot be decrypted: no encryption key is configured here"
                raise SecretProblem(message, hint=hint, code="secret_unsealable", is_final=False)
            try:
                value = open_sealed(self.box, row, tenant_id=tenant_id)
            except Unsealable as error:
                message = f"the secret {name!r} cannot be decrypted: {error.message}"
                raise SecretProblem(message, hint=error.hint, code="secret_unsealable", is_final=False) from None
            found[name] = FoundSecret(value, row.tasks, row.origins)
        return found


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """Variables PREFIX + NAME in capitals; other characters than letters and digits become underscores."""

    prefix: str
    tenant: str = DEFAULT_TENANT
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    async def load(self, names: Collection[str], *, tenant_id: int, tenant: str | None) -> Mapping[str, FoundSecret]:
        del tenant_id
        if tenant != self.tenant:
            return {}
        variables = {name: self.prefix + _NOT_IN_VARIABLES.sub("_", name).upper() for name in names}
        return {
            name: FoundSecret(self.environ[variable])
            for name, variable in variables.items()
            if variable in self.environ and not variable.startswith(_SETTINGS)
        }


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files in a folder, as Docker and Kubernetes mount secrets. One line break at the end of a file is removed."""

    folder: str
    tenant: str = DEFAULT_TENANT

    async def load(self, names: Collection[str], *, tenant_id: int, tenant: str | None) -> Mapping[str, FoundSecret]:
        del tenant_id
        folder = self._folder_of(tenant)
        if folder is None:
            return {}
        found = await asyncio.to_thread(lambda: {name: _read_file(folder / name) for name in names})
        return {name: FoundSecret(value) for name, value in found.items() if value is not None}

    def _folder_of(self, tenant: str | None) -> Path | None:
        if TENANT_PLACEHOLDER in self.folder:
            safe = tenant is not None and _FOLDER_NAME.fullmatch(tenant)
            return Path(self.folder.replace(TENANT_PLACEHOLDER, str(tenant))) if safe else None
        return Path(self.folder) if tenant == self.tenant else None


def _read_file(path: Path) -> str | None:
    """Returns the content; None if there is no such file. The name contains no slash, so it cannot leave the folder."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_SECRET_BYTES:
            message = f"the file of the secret {path.name!r} has more than {MAX_SECRET_BYTES:,} bytes"
            raise SecretProblem(message, code="secret_invalid")
        return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the file of the secret {path.name!r} cannot be read: {type(error).__name__}"
        raise SecretProblem(message, code="secret_invalid", is_final=False) from None


def open_sources(settings: Sequence[str], store: Store, box: SecretBox | None) -> list[SecretSource]:
    """Returns the sources of the setting, in the order of precedence."""
    sources: list[SecretSource] = []
    for text in settings:
        kind, tenant, place = parse_source(text)
        if kind == "store":
            sources.append(SealedSource(store, box))
        elif kind == "env":
            sources.append(EnvironmentSource(place, tenant or DEFAULT_TENANT))
        else:
            sources.append(FileSource(place, tenant or DEFAULT_TENANT))
    return sources


def variable_prefixes(settings: Sequence[str]) -> tuple[str, ...]:
    """Returns the prefixes of environment variables with secrets, which child processes do not get."""
    return tuple(place for kind, _, place in map(parse_source, settings) if kind == "env")


async def find_secrets(
    sources: Sequence[SecretSource],
    names: Collection[str],
    *,
    tenant_id: int,
    tenant: str | None,
    task: str,
    origin: str | None = None,
) -> dict[str, str]:
    """Returns the values of secrets. Raises SecretProblem if one is missing or may not be used.

    `origin` is the origin that an HTTP target calls.
    """
    found: dict[str, FoundSecret] = {}
    for source in sources:
        if lacking := [name for name in names if name not in found]:
            found.update(await source.load(lacking, tenant_id=tenant_id, tenant=tenant))
    for name in sorted(names):
        secret = found.get(name)
        if secret is None:
            hint = "set it with `bellringer secrets set`, then redrive the run"
            raise SecretProblem(f"the secret {name!r} does not exist", hint=hint)
        _check_use(name, secret, task, origin)
    return {name: secret.value for name, secret in found.items()}


def _check_use(name: str, secret: FoundSecret, task: str, origin: str | None) -> None:
    if secret.tasks and task not in secret.tasks:
        message = f"the task {task} may not use the secret {name!r}"
        raise SecretProblem(message, hint="allow it with `bellringer secrets set … --task`", code="secret_forbidden")
    if origin is not None and secret.origins is not None and origin not in secret.origins:
        message = f"the secret {name!r} may not be sent to {origin}"
        raise SecretProblem(message, hint="allow it with `bellringer secrets set … --origin`", code="secret_forbidden")
    if len(secret.value) < MIN_TEXT_LENGTH:
        message = f"the secret {name!r} has fewer than {MIN_TEXT_LENGTH} characters"
        raise SecretProblem(message, hint="it could not be removed from logs", code="secret_invalid")
