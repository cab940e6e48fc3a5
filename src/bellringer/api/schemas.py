"""Shapes as JSON Schema, under the names that the document refers to them by."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect as types

Schema = dict[str, Any]

WHERE: Final = "#/components/schemas/"


class Schemas:
    """The schemas of some shapes, and of all that these hold."""

    def __init__(self, shapes: Sequence[type[Any]]) -> None:
        made = msgspec.json.schema_components(shapes, ref_template=WHERE + "{name}")
        refs, components = _named([list(made[0]), made[1]])
        self._refs: dict[type[Any], Schema] = dict(zip(shapes, refs, strict=True))
        self.components: dict[str, Schema] = {name: _cleaned(made) for name, made in components.items()}
        for struct in _structs(types.multi_type_info(shapes)):
            self._mark_instants(struct)

    def of(self, shape: type[Any]) -> Schema:
        """How a shape is referred to."""
        return self._refs[shape]

    def request(self, shape: type[Any]) -> Schema:
        """A shape that callers send: what it does not name is refused."""
        self._held(shape)["additionalProperties"] = False
        return self.of(shape)

    def patch(self, shape: type[Any]) -> Schema:
        """A merge patch (RFC 7396) of a shape: anything may be left out, and null goes back to the default."""
        whole = self._held(shape)
        given = self.of(shape)["$ref"].removeprefix(WHERE)
        name = given.removesuffix("Patch") + "Patch"
        if name != given:
            fields = {field: _or_null(made) for field, made in whole["properties"].items()}
            about = "What is left out stays as it is; null goes back to what it is where nobody says."
            self.components[name] = {
                "title": name,
                "description": about,
                "type": "object",
                "properties": fields,
                "additionalProperties": False,
            }
        return {"$ref": WHERE + name}

    def _held(self, shape: type[Any]) -> Schema:
        return self.components[self.of(shape)["$ref"].removeprefix(WHERE)]

    def _mark_instants(self, struct: types.StructType) -> None:
        """msgspec says `string` of an instant; ours are always RFC 3339."""
        called = struct.cls.__name__
        whole = self.components.get(called) or self.components.get(_plain(f"{struct.cls.__module__}.{called}"), {})
        held = whole.get("properties", {})
        for field in struct.fields:
            if field.encode_name in held and any(isinstance(t, types.DateTimeType) for t in _inner(field.type)):
                held[field.encode_name] = _dated(held[field.encode_name])


def fields_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Schema, bool]]:
    """The fields of an object: name, schema, and whether it must be there."""
    needed = schema.get("required", ())
    for name, made in schema.get("properties", {}).items():
        yield name, made, name in needed


def _plain(name: str) -> str:
    """Two shapes of one name come with their modules' names; for callers these are a word before it."""
    *modules, last = name.split(".")
    return modules[-1].title().replace("_", "") + last if modules else last


def _named(value: Any) -> Any:
    """The same with plain names, wherever it names a shape."""
    if isinstance(value, list):
        return [_named(item) for item in value]
    if isinstance(value, dict):
        return {_plain(key) if key.startswith("bellringer.") else key: _named(item) for key, item in value.items()}
    is_name = isinstance(value, str) and value.startswith(WHERE)
    return WHERE + _plain(value.removeprefix(WHERE)) if is_name else value


def _cleaned(component: Schema) -> Schema:
    if "description" in component:
        component["description"] = inspect.cleandoc(component["description"])
    return component


def _or_null(schema: Schema) -> Schema:
    bare = {key: value for key, value in schema.items() if key != "default"}
    if {"type": "null"} in bare.get("anyOf", ()):
        return bare
    return {"anyOf": [bare, {"type": "null"}]}


def _dated(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return {**schema, "anyOf": [_dated(option) for option in schema["anyOf"]]}
    return {**schema, "format": "date-time"} if schema.get("type") == "string" else schema


def _inner(told: types.Type) -> Sequence[types.Type]:
    return told.types if isinstance(told, types.UnionType) else (told,)


def _structs(infos: Sequence[types.Type], seen: set[type] | None = None) -> Iterator[types.StructType]:
    """Every struct that can be reached from these."""
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
