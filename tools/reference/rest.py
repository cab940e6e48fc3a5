"""The reference of the REST API, from the table of operations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http.openapi import document
from tools.reference.markdown import code, page, table

INTRODUCTION = (
    "Every operation of the API, generated from the same table as `/openapi.json` and the interactive page `/docs` of a"
    " server. [The REST API](../api.md) explains authentication, errors, paging, idempotency and limits."
)


def render_rest() -> str:
    """Returns the page with one section per path."""
    spec = document(ROUTES, metadata.version("bellringer"))
    sections = [_path(path, methods) for path, methods in sorted(spec["paths"].items())]
    return page("REST operations", INTRODUCTION, *sections)


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
    shapes = {_type(content.get("schema", {})) for content in body.values()}
    statuses = ", ".join(sorted(operation.get("responses", {})))
    parts.append((f"Body: {', '.join(sorted(shapes))}. " if shapes else "") + f"Responses: {statuses}.")
    return "\n\n".join(part for part in parts if part)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(code(str(value)) for value in schema["enum"])
    return str(schema.get("type", "any"))
