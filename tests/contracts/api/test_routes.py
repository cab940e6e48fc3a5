"""The table of routes, the endpoints of the server and the methods of the client agree."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest

from bellringer.api.endpoint_table import ROUTES
from bellringer.client import AsyncClient, Client
from bellringer.client.admin_calls import audit_export, verify
from bellringer.client.calls import Call
from bellringer.wire.decode import fields_of
from bellringer.wire.routes import all_routes

CALLS = {
    name: declared for part in Client.__mro__ for name, declared in vars(part).items() if isinstance(declared, Call)
}
LINES: dict[str, Call[..., Any]] = {
    "audit_export": audit_export,
    "verify": verify,
}  # methods that read a value from each line
ALL: dict[str, Call[..., Any]] = {**CALLS, **LINES}
WHOLE_BODIES = {"document", "patch"}
HEADERS = {"create_only", "idempotency_key"}


def test_every_endpoint_has_a_route() -> None:
    declared = {(route.method, route.path) for route in all_routes()}
    assert {(method, path) for path, at in ROUTES.items() for method in at} == declared
    assert len(declared) == len([*all_routes()])
    assert all(endpoint.route.path == path for path, at in ROUTES.items() for endpoint in at.values())


def _sent_names(declared: Call[..., Any]) -> Iterator[str]:
    """The names under which a method sends its arguments, except those of the path and of headers."""
    parameters = [*declared.signature.parameters.values()][len(declared.route.path_parameters) :]
    for parameter in parameters:
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in {declared.if_match, *HEADERS}:
            yield declared.renamed.get(parameter.name, parameter.name)
    yield from declared.fixed


@pytest.mark.parametrize("name", ALL)
def test_the_server_accepts_every_argument_of_a_method(name: str) -> None:
    declared = ALL[name]
    endpoint = ROUTES[declared.route.path][declared.route.method]
    names = set(_sent_names(declared))
    queries = {query.name for query in endpoint.query}
    if declared.route.body is not None and not names & WHOLE_BODIES:
        assert names <= {field.encode_name for field in fields_of(declared.route.body)}
    else:
        assert names - WHOLE_BODIES <= queries


@pytest.mark.parametrize("name", ALL)
def test_a_method_returns_one_of_the_responses_of_its_route(name: str) -> None:
    declared = ALL[name]
    returned = get_type_hints(declared.declaration)["return"]
    assert returned is declared.route.response
    if name not in LINES:
        assert returned in set(_types(declared.route.responses.values()))


def _types(responses: Any) -> Iterator[type[Any]]:
    for response in responses:
        if isinstance(response, tuple):
            yield from _types(response)
        elif isinstance(response, UnionType):
            yield from get_args(response)
        else:
            yield type(None) if response is None else response


def test_methods_show_their_own_signature_and_documentation() -> None:
    client = AsyncClient("http://127.0.0.1:1")
    assert [*inspect.signature(client.pause).parameters] == ["job", "reason", "until"]
    assert (client.pause.__doc__ or "").startswith("Pause a job")
    assert [name for name, declared in CALLS.items() if not declared.declaration.__doc__] == []


def test_arguments_become_path_query_body_and_headers() -> None:
    request = CALLS["put_job"].request("a/b c", {"task": "demo"}, revision=3, create_only=True)
    assert request.path == "/api/v1/jobs/a%2Fb%20c"
    assert request.body == {"task": "demo"}
    assert request.headers == {"If-Match": '"3"', "If-None-Match": "*"}
    request = CALLS["runs"].request(state=["ready", "running"], start="2026-01-01T00:00:00Z", limit=None)
    assert request.query == {"state": "ready,running", "from": "2026-01-01T00:00:00Z"}
    assert request.body is None
    request = CALLS["dry_run"].request("a", {"priority": 1}, days=2)
    assert (request.query, request.body) == ({"days": 2, "dry_run": "true"}, {"priority": 1})
    assert CALLS["execute"].request("demo", args=[1], key="k").body == {"task": "demo", "args": [1], "key": "k"}
    assert CALLS["retry"].request("run_1").body == {}
    assert CALLS["strips"].request([]).query == {}
    with pytest.raises(TypeError, match="job"):
        CALLS["pause"].request()
