"""References to secrets in arguments: `{"$secret": "name"}` stands for a value that the worker looks up.

The stored arguments keep the reference; a worker replaces it right before it calls the handler. `{"$literal": value}`
stands for the value itself and is not searched for references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bellringer.errors import ConfigError, InvalidInput

SECRET_FIELD: Final = "$secret"  # noqa: S105 - a field's name
LITERAL_FIELD: Final = "$literal"
MARKER_PREFIX: Final = '"$'  # encoded arguments without this text contain no marker of any kind
MAX_SECRET_NAME_LENGTH: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# No other variables of this program can be secrets of runs.
SECRET_VARIABLE_PREFIX: Final = "BELLRINGER_SECRET_"  # noqa: S105 - a prefix of names
_SETTING_PREFIX: Final = "BELLRINGER_"
_SOURCE: Final = re.compile(r"(env|file)(?:@([^:]+))?:(.+)", re.DOTALL)
_REFERENCE_FIELDS: Final = frozenset({"name", "prefix"})


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A reference to a secret; the value that replaces it begins with `prefix`, such as "Bearer "."""

    name: str
    prefix: str = ""


def check_secret_name(name: object, *, pointer: str = "/name") -> str:
    """Returns the name; raises InvalidInput unless it can be the name of a file and of an environment variable."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            "the name of a secret has 1 to 128 letters, digits, '_', '-' or '.', and begins with none of the last two",
            pointer=pointer,
            code="name_charset",
        )
    return name


def make_reference(name: str, *, prefix: str = "") -> dict[str, Any]:
    """Returns a reference in the long form, which is valid in arguments and in HTTP targets."""
    check_secret_name(name)
    return {SECRET_FIELD: {"name": name, "prefix": prefix} if prefix else {"name": name}}


def parse_reference(value: object, *, short: bool = True) -> SecretReference | None:
    """Returns the reference that a value is; None for any other value. HTTP targets have no short form: in them,
    `{"$secret": "text"}` is a secret itself, which is sealed when the job is stored.
    """
    if not isinstance(value, Mapping) or len(value) != 1 or SECRET_FIELD not in value:
        return None
    given = value[SECRET_FIELD]
    if isinstance(given, str):
        return SecretReference(given) if short and _NAME.fullmatch(given) else None
    if not isinstance(given, Mapping) or "name" not in given or not given.keys() <= _REFERENCE_FIELDS:
        return None
    name, prefix = given["name"], given.get("prefix", "")
    if not isinstance(name, str) or not isinstance(prefix, str) or not _NAME.fullmatch(name):
        return None
    return SecretReference(name, prefix)


def find_references(value: object, *, short: bool = True) -> Iterator[SecretReference]:
    """Returns the references in a JSON value."""
    if isinstance(value, Mapping):
        if (reference := parse_reference(value, short=short)) is not None:
            yield reference
        elif not _is_literal(value):
            for inner in value.values():
                yield from find_references(inner, short=short)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from find_references(inner, short=short)


def substitute(value: Any, values: Mapping[str, str], *, short: bool = True) -> Any:
    """Returns the JSON value with references replaced by `values`, and literals by their content."""
    if isinstance(value, Mapping):
        if (reference := parse_reference(value, short=short)) is not None:
            return reference.prefix + values[reference.name]
        if _is_literal(value):
            return value[LITERAL_FIELD]
        return {name: substitute(inner, values, short=short) for name, inner in value.items()}
    if isinstance(value, list):
        return [substitute(inner, values, short=short) for inner in value]
    return value


def escape_references(value: Any) -> Any:
    """Returns the JSON value with its references marked as literals.

    The result of a workflow node becomes an argument of others: data must not be able to ask for a secret.
    """
    if isinstance(value, Mapping):
        if parse_reference(value) is not None or _is_literal(value):
            return {LITERAL_FIELD: value}
        return {name: escape_references(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [escape_references(inner) for inner in value]
    return value


def has_reference(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments contain a reference."""
    return any(True for value in (*args, *kwargs.values()) for _ in find_references(value))


def _is_literal(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and LITERAL_FIELD in value


def parse_source(text: str) -> tuple[str, str | None, str]:
    """Returns kind, tenant and place of an entry of `secret_sources`. Raises ConfigError.

    The place of `env` is a prefix of variables. It must not cover the settings of this program.
    """
    if text == "store":
        return "store", None, ""
    if (found := _SOURCE.fullmatch(text)) is None:
        hint = "use store, env:PREFIX or file:FOLDER"
        raise ConfigError(f"secret_sources cannot contain {text!r}", hint=hint)
    kind, tenant, place = found.groups()
    covers_settings = _SETTING_PREFIX.startswith(place) or place.startswith(_SETTING_PREFIX)
    if kind == "env" and covers_settings and not place.startswith(SECRET_VARIABLE_PREFIX):
        hint = f"use a prefix of your own, or {SECRET_VARIABLE_PREFIX}"
        raise ConfigError(f"secret_sources cannot contain {text!r}: the settings would be secrets too", hint=hint)
    return kind, tenant, place
