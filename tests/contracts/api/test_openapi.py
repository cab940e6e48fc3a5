"""The OpenAPI document: made from the routes, valid, and with all that a caller must know of each operation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http import openapi
from bellringer.api.http.openapi import document
from bellringer.client import AsyncClient, Client
from bellringer.wire.decode import read
from bellringer.wire.jobs import JobRequest

Json = dict[str, Any]

# What is for people, probes and tools, which do without our client.
WITHOUT_CLIENT = {"/", "/docs", "/docs/style.css", "/openapi.json", "/api/v1/openapi.json", "/healthz", "/metrics"}
WITHOUT_CLIENT |= {"/ping/{token}", "/ping/{token}/{outcome}"}  # called from elsewhere, with curl


@pytest.fixture
async def told(api: httpx2.AsyncClient) -> Json:
    response = await api.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document: Json = response.json()
    return document


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, at in document["paths"].items():
        for method, told in at.items():
            yield method.upper(), path, told


async def test_it_is_valid(told: Json) -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(told).iter_errors()] == []


async def test_it_is_the_same_at_both_places(api: httpx2.AsyncClient, told: Json) -> None:
    assert (await api.get("/api/v1/openapi.json")).json() == told
    assert (await api.get("/openapi.json?x=1")).status_code == 422


async def test_it_has_every_route(told: Json) -> None:
    there = {(method, path) for method, path, _ in operations(told)}
    assert {(method, path) for path, at in ROUTES.items() for method in at} <= there
    assert there >= {("GET", "/metrics"), ("GET", "/"), ("GET", "/openapi.json")}


async def test_each_operation_shows_what_it_does_under_a_name_of_its_own(told: Json) -> None:
    names = [op["operationId"] for _, _, op in operations(told)]
    assert len(names) == len(set(names))
    assert [f"{method} {path}" for method, path, op in operations(told) if not op["summary"]] == []


async def test_the_client_has_a_method_for_each_operation(told: Json) -> None:
    missing = [
        f"{method} {path}: {op['operationId']}"
        for method, path, op in operations(told)
        if path not in WITHOUT_CLIENT
        and not (hasattr(Client, op["operationId"]) and hasattr(AsyncClient, op["operationId"]))
    ]
    assert missing == []


async def test_no_answer_is_left_to_a_default(told: Json) -> None:
    for method, path, op in operations(told):
        assert "default" not in op["responses"], path
        is_public = op["security"] == []
        assert is_public or {"401", "403", "429", "503"} <= op["responses"].keys(), path
        assert not op.get("requestBody") or {"400", "408", "413", "415", "422"} <= op["responses"].keys(), path
        assert "{" not in path or "404" in op["responses"], path
        assert method != "POST" or {"409", "422"} <= op["responses"].keys(), path


async def test_what_is_not_named_is_refused_in_every_request(told: Json) -> None:
    schemas = told["components"]["schemas"]
    bodies = [
        content["schema"]
        for _, _, op in operations(told)
        for content in op.get("requestBody", {}).get("content", {}).values()
    ]
    names = {body["$ref"].rpartition("/")[2] for body in bodies if "$ref" in body}
    assert names >= {"JobRequest", "JobRequestPatch", "ExecuteRequest"}
    assert {name for name in names if schemas[name].get("additionalProperties") is not False} == set()
    assert "name" in schemas["JobRequest"]["required"]
    assert "required" not in schemas["JobRequestPatch"]
    assert {"type": "null"} in schemas["JobRequestPatch"]["properties"]["misfire"]["anyOf"]


async def test_headers_are_reported_where_they_are_heeded(told: Json) -> None:
    def headers(method: str, path: str) -> set[str]:
        return {p["name"] for p in told["paths"][path][method]["parameters"] if p["in"] == "header"}

    assert headers("patch", "/api/v1/jobs/{id}") >= {"If-Match", "X-Tenant"}
    assert headers("get", "/api/v1/jobs/{id}") >= {"If-None-Match"}
    assert headers("post", "/api/v1/jobs") >= {"Idempotency-Key"}
    assert headers("get", "/api/v1/events") >= {"Last-Event-ID"}
    assert headers("get", "/healthz") == set()


async def test_shapes_are_not_named_by_our_modules(told: Json) -> None:
    assert [name for name in told["components"]["schemas"] if not re.fullmatch("[A-Z][A-Za-z]+", name)] == []


async def test_instants_are_reported_as_instants(told: Json) -> None:
    fields = told["components"]["schemas"]["Run"]["properties"]
    assert fields["scheduled_for"].items() >= {"type": "string", "format": "date-time"}.items()
    assert {"type": "string", "format": "date-time"} in fields["started_at"]["anyOf"]


@pytest.mark.parametrize("shape", openapi.REQUEST_EXAMPLES, ids=lambda shape: shape.__name__)
def test_each_example_can_be_read(shape: type[msgspec.Struct]) -> None:
    assert isinstance(read(shape, openapi.REQUEST_EXAMPLES[shape]), shape)


async def test_the_examples_of_jobs_do_what_they_say(api: httpx2.AsyncClient) -> None:
    made = await api.post("/api/v1/jobs", json=openapi.REQUEST_EXAMPLES[JobRequest])
    assert (made.status_code, made.json()["name"]) == (202, "nightly report")
    changed = await api.patch("/api/v1/jobs/nightly report", json=openapi.PATCH_EXAMPLES[JobRequest])
    assert (changed.json()["priority"], changed.json()["timeout"]) == (7, None)


async def test_a_whole_number_may_be_written_with_a_point(api: httpx2.AsyncClient) -> None:
    """JSON Schema says that 7.0 is an integer."""
    made = await api.post(
        "/api/v1/jobs",
        content=b'{"name": "a", "task": "demo", "priority": 7.0, "args": [7.0]}',
        headers={"Content-Type": "application/json"},
    )
    assert (made.status_code, made.json()["priority"]) == (202, 7)
    refused = await api.post("/api/v1/jobs", json={"name": "b", "task": "demo", "priority": 7.5})
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "type")


def test_the_table_of_the_docs_has_every_route() -> None:
    """Written out, or shortened to its last words (`…/pause`, `/pause`) in a row that has what stands before them."""
    rows = (Path(__file__).parents[3] / "docs" / "api.md").read_text().splitlines()
    assert [path for path in ROUTES if not any(_is_told(path, row) for row in rows)] == []


def _is_told(path: str, row: str) -> bool:
    words = path.split("/")
    cuts = [("/".join(words[:n]), "/" + "/".join(words[n:])) for n in range(1, len(words))]
    return any(above in row and re.search(rf"(?:…|`| ){re.escape(last)}(?![\w{{/-])", row) for above, last in cuts)


def test_building_it_needs_no_database() -> None:
    assert document(ROUTES, "1")["info"]["version"] == "1"
