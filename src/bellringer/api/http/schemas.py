"""Converts request and response models to JSON Schema, under the names that the OpenAPI document uses."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from bellringer.wire.field_meanings import field_meaning

Schema = dict[str, Any]

SCHEMA_PREFIX: Final = "#/components/schemas/"


class Schemas:
    """The schemas of some models, and of all models that they contain."""

    def __init__(self, shapes: Sequence[type[Any]]) -> None:
        made = msgspec.json.schema_components(shapes, ref_template=SCHEMA_PREFIX + "{name}")
        refs, components = _rename_references([list(made[0]), made[1]])
        self._refs: dict[type[Any], Schema] = dict(zip(shapes, refs, strict=True))
        self.components: dict[str, Schema] = {name: _clean_schema(made) for name, made in components.items()}
        for struct in _structs(types.multi_type_info(shapes)):
            self._mark_instants(struct)
        for name, component in self.components.items():
            _describe_fields(name, component)

    def of(self, shape: type[Any]) -> Schema:
        """Returns the reference to a model's schema."""
        return self._refs[shape]

    def request(self, shape: type[Any]) -> Schema:
        """Returns the schema of a request: unknown fields are not allowed."""
        self._held(shape)["additionalProperties"] = False
        return self.of(shape)

    def patch(self, shape: type[Any]) -> Schema:
        """Returns the schema of a merge patch (RFC 7396): every field is optional, and null restores the default."""
        whole = self._held(shape)
        given = self.of(shape)["$ref"].removeprefix(SCHEMA_PREFIX)
        name = given.removesuffix("Patch") + "Patch"
        if name != given:
            fields = {field: _or_null(made) for field, made in whole["properties"].items()}
            about = "Omitted fields stay unchanged; null restores the default."
            self.components[name] = {
                "title": name,
                "description": about,
                "type": "object",
                "properties": fields,
                "additionalProperties": False,
            }
        return {"$ref": SCHEMA_PREFIX + name}

    def _held(self, shape: type[Any]) -> Schema:
        return self.components[self.of(shape)["$ref"].removeprefix(SCHEMA_PREFIX)]

    def _mark_instants(self, struct: types.StructType) -> None:
        """Marks instants: msgspec describes them as plain strings, and ours are always RFC 3339."""
        called = struct.cls.__name__
        whole = self.components.get(called) or self.components.get(_plain_name(f"{struct.cls.__module__}.{called}"), {})
        held = whole.get("properties", {})
        for field in struct.fields:
            if field.encode_name in held and any(isinstance(t, types.DateTimeType) for t in _inner(field.type)):
                held[field.encode_name] = _is_instant(held[field.encode_name])


def fields_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Schema, bool]]:
    """Returns the fields of an object: name, schema, and whether the field is required."""
    needed = schema.get("required", ())
    for name, made in schema.get("properties", {}).items():
        yield name, made, name in needed


def _plain_name(name: str) -> str:
    """Returns a plain name. Two models of the same name come with their modules' names, which become a prefix."""
    *modules, last = name.split(".")
    return modules[-1].title().replace("_", "") + last if modules else last


def _rename_references(value: Any) -> Any:
    """Returns a schema with plain names in all references."""
    if isinstance(value, list):
        return [_rename_references(item) for item in value]
    if isinstance(value, dict):
        return {
            _plain_name(key) if key.startswith("bellringer.") else key: _rename_references(item)
            for key, item in value.items()
        }
    is_name = isinstance(value, str) and value.startswith(SCHEMA_PREFIX)
    return SCHEMA_PREFIX + _plain_name(value.removeprefix(SCHEMA_PREFIX)) if is_name else value


def _describe_fields(model: str, component: Schema) -> None:
    for field, made in component.get("properties", {}).items():
        if meaning := field_meaning(model, field):
            made["description"] = meaning


def _clean_schema(component: Schema) -> Schema:
    if "description" in component:
        component["description"] = inspect.cleandoc(component["description"])
    return component


def _or_null(schema: Schema) -> Schema:
    bare = {key: value for key, value in schema.items() if key not in {"default", "description"}}
    about = {key: value for key, value in schema.items() if key == "description"}
    if {"type": "null"} in bare.get("anyOf", ()):
        return bare | about
    return {"anyOf": [bare, {"type": "null"}]} | about


def _is_instant(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return {**schema, "anyOf": [_is_instant(option) for option in schema["anyOf"]]}
    return {**schema, "format": "date-time"} if schema.get("type") == "string" else schema


def _inner(shown: types.Type) -> Sequence[types.Type]:
    return shown.types if isinstance(shown, types.UnionType) else (shown,)


def _structs(infos: Sequence[types.Type], seen: set[type] | None = None) -> Iterator[types.StructType]:
    """Returns all structs that can be reached from these."""
    seen = set() if seen is None else seen
    for info in infos:
        if isinstance(info, types.UnionType):
            yield from _structs(info.types, seen)
        elif isinstance(info, types.ListType | types.VarTupleType | types.SetType):
            yield from _structs([info.item_type], seen)
        elif isinstance(info, types.DictType):
            yield from _structs([info.value_type], seen)
        elif isinstance(info, types.StructType) and info.cls not in seen:
            seen.add(info.cls)
            yield info
            yield from _structs([field.type for field in info.fields], seen)
