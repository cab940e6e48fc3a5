"""The reference of the REST API: operations from the table of routes, objects from the models of their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from typing import Any, Final

from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http.openapi import document
from tools.reference.markdown import code, page, table

OPERATIONS: Final = (
    "Every operation of the API, generated from the same table as `/openapi.json` and the interactive page `/docs` of a"
    " server. [The REST API](../api.md) explains authentication, errors, paging, idempotency and limits;"
    " [REST objects](rest-objects.md) has the fields of all bodies. Errors are problem documents"
    " ([Problem](rest-objects.md#problem)); [error codes](errors.md) lists their codes."
)
OBJECTS: Final = """\
The JSON objects of [REST operations](rest.md), with their fields. In requests, unknown fields are refused. Instants are
RFC 3339, in responses always in UTC; a field whose type ends with `null` may be null. A field without a default is
left out of a response if it has nothing to say.

A list of the API is a page: an object with `items` and `next_cursor`. Pages without further fields are not listed
here."""
OBJECTS_PAGE: Final = "rest-objects.md"


@cache
def specification() -> Mapping[str, Any]:
    return document(ROUTES, metadata.version("bellringer"))


def render_rest() -> str:
    """Returns the page with one section per path."""
    paths = sorted(specification()["paths"].items())
    return page("REST operations", OPERATIONS, *(_path(path, methods) for path, methods in paths))


def render_objects() -> str:
    """Returns the page with one section per object, in the order of their names."""
    return page("REST objects", OBJECTS, *(_object(name, schema) for name, schema in objects()))


def objects() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields all objects that have a section of their own."""
    for name, schema in sorted(specification()["components"]["schemas"].items()):
        if _page_of(schema) is None:
            yield name, schema


def fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields name, type, whether it is required, default and meaning of each field."""
    for name, made in schema.get("properties", {}).items():
        required = "yes" if name in schema.get("required", ()) else "no"
        yield code(name), _type(made), required, _default(made), made.get("description", "")


def _path(path: str, methods: Mapping[str, Any]) -> str:
    return "\n\n".join([f"## {path}", *(_operation(m, op) for m, op in methods.items() if m != "parameters")])


def _operation(method: str, operation: Mapping[str, Any]) -> str:
    text = re.sub(r"\n+", " ", operation.get("description", "")).strip()
    parts = [f"**{method.upper()}**: {operation.get('summary', '').strip()}".rstrip(": "), text]
    queries = [q for q in operation.get("parameters", ()) if q.get("in") == "query"]
    if queries:
        rows = [(code(q["name"]), _type(q.get("schema", {})), q.get("description", "")) for q in queries]
        parts.append(table(("parameter", "type", "meaning"), rows))
    body = operation.get("requestBody", {}).get("content", {})
    shapes = dict.fromkeys(f"{_type(content.get('schema', {}))} as {code(media)}" for media, content in body.items())
    if shapes:
        parts.append(f"Body: {', or '.join(shapes)}.")
    parts.append(_responses(operation.get("responses", {})))
    return "\n\n".join(part for part in parts if part)


def _responses(responses: Mapping[str, Any]) -> str:
    successes, errors = [], []
    for status, response in sorted(responses.items()):
        if "$ref" in response:
            errors.append(status)
            continue
        shown = dict.fromkeys(
            _type(content["schema"]) if media == "application/json" else code(media)
            for media, content in response.get("content", {}).items()
        )
        successes.append(f"{status} with {' or '.join(shown)}" if shown else f"{status} without a body")
    return f"Responses: {'; '.join(successes)}." + (f" Errors: {', '.join(errors)}." if errors else "")


def _object(name: str, schema: Mapping[str, Any]) -> str:
    paragraphs = schema.get("description", "").strip().split("\n\n")
    about = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    parts = [f"## {name}", about]
    whole = name.removesuffix("Patch")
    if whole != name and whole in specification()["components"]["schemas"]:
        return "\n\n".join([*parts, f"The fields are those of [{whole}](#{whole.lower()}), all optional."])
    if rows := list(fields(schema)):
        parts.append(table(("field", "type", "required", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def _type(schema: Mapping[str, Any]) -> str:
    """Returns a type in words, with links to objects."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found = specification()["components"]["schemas"].get(name, {})
        if item := _page_of(found):
            return f"a page of {_type(item)}"
        return f"[{name}]({OBJECTS_PAGE}#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(code(str(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return "instant" if schema.get("format") == "date-time" else str(schema.get("type", "any"))


def _page_of(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the schema of the items, if the object is a page without further fields."""
    properties = schema.get("properties", {})
    if set(properties) != {"items", "next_cursor"}:
        return None
    return properties["items"].get("items")  # type: ignore[no-any-return]


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return "–"
    value = schema["default"]
    if value is None:
        return "null"
    return (
        code({True: "true", False: "false"}.get(value, str(value)))
        if isinstance(value, bool)
        else code(str(value)) or '""'
    )
