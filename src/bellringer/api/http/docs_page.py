"""The documentation page at /docs: the OpenAPI document as plain HTML, rendered on the server without scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from http import HTTPStatus
from importlib import resources
from typing import Any, Final

from starlette.responses import Response

from bellringer.api.http import openapi
from bellringer.api.http.openapi import Table
from bellringer.api.http.operation import Endpoint, operation, string
from bellringer.api.http.request import RequestContext
from bellringer.api.http.schemas import SCHEMA_PREFIX, fields_of
from bellringer.wire.routes import Route

Json = Mapping[str, Any]

PATH: Final = "/docs"
STYLE: Final = "/docs/style.css"
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_MAX_SEARCH_LENGTH: Final = 100  # characters of a search term


def pages(table: Table, version: str) -> Mapping[str, Mapping[str, Endpoint]]:
    """Returns the page and its style sheet by path."""

    @cache
    def document() -> Json:
        return openapi.document(table, version)

    @cache
    def whole() -> bytes:
        return _page(document(), "").encode()  # rendered once; all readers share these bytes

    @operation(
        Route("service", "GET", PATH, str, responses={200: "text/html"}, prefix=""),
        role=None,
        query=(string("q", "only operations that contain all of these words", maxLength=_MAX_SEARCH_LENGTH),),
    )
    async def docs(call: RequestContext) -> Response:
        """Returns this documentation as an HTML page."""
        wanted = call.query().get("q", "")[:_MAX_SEARCH_LENGTH]
        html = _page(document(), wanted) if wanted.strip() else whole()
        return Response(html, media_type="text/html", headers=_PAGE_HEADERS)

    @operation(Route("service", "GET", STYLE, str, responses={200: "text/css"}, prefix=""), role=None)
    async def style(_call: RequestContext) -> Response:
        """Returns the style sheet of the documentation."""
        return Response(_style(), media_type="text/css", headers=_PAGE_HEADERS)

    return {PATH: {"GET": docs}, STYLE: {"GET": style}}


@cache
def _style() -> str:
    return resources.files(__package__).joinpath("static", "docs.css").read_text()


def _page(document: Json, wanted: str) -> str:
    words = wanted.lower().split()
    by_tag = {
        tag["name"]: [op for op in _operations(document) if op["tags"] == [tag["name"]] and _has(op, words)]
        for tag in document["tags"]
    }
    shown = {tag: found for tag, found in by_tag.items() if found}
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>Bellringer API</title><link rel="stylesheet" href="{STYLE}"></head><body>',
            _head(document, wanted),
            f"<nav>{''.join(_menu(tag, found) for tag, found in shown.items())}</nav><main>",
            "" if shown else "<p>No operation matches the search.</p>",
            *(_section(tag, found, document, is_open=bool(words)) for tag, found in shown.items()),
            "" if words else _shapes(document),
            "</main></body></html>",
        ]
    )


def _operations(document: Json) -> Iterator[dict[str, Any]]:
    for path, at in document["paths"].items():
        for method, described in at.items():
            yield {**described, "method": method.upper(), "path": path}


def _has(op: Json, words: list[str]) -> bool:
    text = " ".join([op["method"], op["path"], op["operationId"], op["summary"], op["description"], *op["tags"]])
    return all(word in text.lower() for word in words)


def _head(document: Json, wanted: str) -> str:
    info = document["info"]
    about = "".join(f"<p>{_prose(part)}</p>" for part in info["description"].split("\n\n"))
    return (
        f"<header><h1>Bellringer API <small>{escape(info['version'])}</small></h1>{about}"
        f'<p>The same for programs: <a href="/openapi.json">openapi.json</a> (OpenAPI {document["openapi"]}).</p>'
        f'<form action="{PATH}" role="search"><label for="q">Find operations</label>'
        f'<input id="q" name="q" type="search" maxlength="{_MAX_SEARCH_LENGTH}" '
        f'value="{escape(wanted)}" placeholder="pause job">'
        "<button>Find</button>" + (f' <a href="{PATH}">all</a>' if wanted else "") + "</form></header>"
    )


def _menu(tag: str, found: list[dict[str, Any]]) -> str:
    rows = "".join(
        f'<li><a href="#{op["operationId"]}">{_verb(op)} <span>{escape(_short(op["path"]))}</span></a></li>'
        for op in found
    )
    return f'<h2><a href="#{_anchor(tag)}">{escape(tag)}</a></h2><ul>{rows}</ul>'


def _section(tag: str, found: list[dict[str, Any]], document: Json, *, is_open: bool) -> str:
    inner = "".join(_operation(op, document, is_open=is_open) for op in found)
    return f'<section id="{_anchor(tag)}"><h2>{escape(tag)}</h2>{inner}</section>'


def _operation(op: Json, document: Json, *, is_open: bool) -> str:
    """Renders one operation. The anchor is inside the details element, so that a link to it opens the element."""
    more = "".join(f"<p>{_prose(part)}</p>" for part in op["description"].split("\n\n"))
    return (
        f'<details class="operation"{" open" if is_open else ""}>'
        f"<summary>{_verb(op)} <code>{escape(op['path'])}</code> <span>{_prose(op['summary'])}</span></summary>"
        f'<div id="{op["operationId"]}"><p class="name">In Python: <code>client.{op["operationId"]}</code></p>{more}'
        f"{_parameters(op)}{_body(op, document)}"
        f"<h4>Try it</h4><pre>{escape(curl(op, document))}</pre>{_answers(op, document)}</div></details>"
    )


def _parameters(op: Json) -> str:
    rows = [
        (f"<code>{escape(p['name'])}</code>", p["in"], _kind(p["schema"]), _prose(p.get("description", "")))
        for p in op["parameters"]
    ]
    return _table("Parameters", ("name", "in", "is", "means"), rows)


def _body(op: Json, document: Json) -> str:
    if "requestBody" not in op:
        return ""
    content = op["requestBody"]["content"]
    kinds = " or ".join(f"<code>{escape(media)}</code>" for media in content)
    need = "" if op["requestBody"]["required"] else ", may be left out"
    schema = next(iter(content.values()))["schema"]
    return f"<h4>Body</h4><p>{kinds}{need}: {_kind(schema)}</p>" + _fields(_resolved(schema, document))


def _fields(schema: Json) -> str:
    rows = [
        (
            f"<code>{escape(name)}</code>",
            _kind(made),
            _default(made, is_needed=needed),
            _prose(made.get("description", "")),
        )
        for name, made, needed in fields_of(schema)
    ]
    return _table("", ("field", "is", "default", "means"), rows)


def _default(schema: Json, *, is_needed: bool) -> str:
    if is_needed:
        return "<strong>needed</strong>"
    return f"<code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else ""


def _answers(op: Json, document: Json) -> str:
    rows = []
    for status, described in op["responses"].items():
        answer = _resolved(described, document)
        kinds = " or ".join(
            _kind(content["schema"]) if media.endswith("json") else f"<code>{escape(media)}</code>"
            for media, content in answer.get("content", {}).items()
        )
        rows.append((f"{status} {HTTPStatus(int(status)).phrase}", _prose(answer["description"]), kinds))
    return _table("Answers", ("status", "means", "body"), rows)


def _shapes(document: Json) -> str:
    inner = "".join(
        f'<details class="shape"><summary><code>{escape(name)}</code></summary><div id="shape-{escape(name)}">'
        f"<p>{_prose(made.get('description', ''))}</p>{_fields(made)}</div></details>"
        for name, made in sorted(document["components"]["schemas"].items())
    )
    return f'<section id="shapes"><h2>shapes</h2>{inner}</section>'


def curl(op: Json, document: Json) -> str:
    """Returns a curl command for the operation."""
    path = re.sub(r"{(\w+)}", lambda part: f"${part[1].upper()}", op["path"])
    words = ["curl" if op["method"] == "GET" else f"curl -X {op['method']}", f'"$BELLRINGER_URL{path}"']
    if op["security"]:
        words.append('-H "Authorization: Bearer $BELLRINGER_KEY"')
    if "requestBody" in op:
        media, content = next(iter(op["requestBody"]["content"].items()))
        body = content.get("example") or _sample(content["schema"], document)
        text = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
        words += [f'-H "Content-Type: {media}"', f"-d '{text}'"]
    return " \\\n  ".join(words)


def _sample(schema: Json, document: Json) -> Any:
    """Returns the smallest value that a schema accepts."""
    schema = _resolved(schema, document)
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], document)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: _sample(made, document) for name, made, needed in fields_of(schema) if needed}
    return {"array": [], "integer": 1, "number": 1, "boolean": True, "null": None}.get(schema.get("type", ""), "…")


# Text


def _kind(schema: Json) -> str:
    """Describes a schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMA_PREFIX)
        return f'<a href="{PATH}#shape-{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(word))}</code>" for word in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_kind(schema['additionalProperties'])}"
    bounds = [f"{schema[key]}" for key in ("minimum", "maximum") if key in schema]
    more = [schema[key] for key in ("format",) if key in schema] + (["–".join(bounds)] if bounds else [])
    return escape(" ".join([str(kind), *more]))


def _resolved(schema: Json, document: Json) -> Json:
    if "$ref" not in schema:
        return schema
    _, *steps = schema["$ref"].split("/")
    found: Any = document
    for step in steps:
        found = found[step]
    return dict(found)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Renders a table of cells that are already HTML."""
    if not rows:
        return ""
    top = "".join(f"<th>{word}</th>" for word in head)
    inner = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<h4>{title}</h4>" if title else ""
    ) + f"<table><thead><tr>{top}</tr></thead><tbody>{inner}</tbody></table>"


def _prose(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _verb(op: Json) -> str:
    return f'<b class="{op["method"].lower()}">{op["method"]}</b>'


def _short(path: str) -> str:
    return path.removeprefix("/api/v1")


def _anchor(tag: str) -> str:
    return "tag-" + re.sub(r"\W+", "-", tag)
