"""Tokens and key sets with unexpected values are refused without an internal error."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from bellringer.access.jwt_tokens import SharedSecret, TokenRules, TokenVerifier, parse_jwks
from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

API: Final = "/api/v1"


SECRET: Final = "s" * 40


@pytest.mark.parametrize(
    "claim",
    [{"sub": "a\0b"}, {"sub": "\ud800"}, {"tenant": "\ud800"}, {"exp": 10**400}, {"nbf": -(10**400)}],
    ids=["NUL", "surrogate", "tenant", "exp", "nbf"],
)
async def test_no_claim_of_a_token_is_a_mistake_of_ours(
    store: Store, catalog: Catalog, tenants: Store, claim: dict[str, Any]
) -> None:
    tokens = TokenVerifier(TokenRules(issuer="i", audience="a"), SharedSecret(SECRET), SystemClock())
    authenticator = Authenticator(store, catalog, AuthSettings(tokens=tokens))
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), authenticator=authenticator)
    claims: dict[str, Any] = {"iss": "i", "aud": "a", "sub": "s", "tenant": "default", "role": "admin"}
    claims |= {"exp": datetime.now(UTC).timestamp() + 100, **claim}
    headers = {"Authorization": f"Bearer {jwt.encode(claims, SECRET, algorithm='HS256')}"}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://t", timeout=20) as api:
        answer = await api.post(f"{API}/jobs", json={"name": "j", "task": "demo"}, headers=headers)
    assert answer.status_code < 500, answer.text


@pytest.mark.parametrize("odd", [7, {"kty": "EC", "crv": "P-256", "kid": []}, {"kty": [], "kid": "x"}])
def test_one_odd_entry_of_a_jwks_does_not_spoil_the_others(odd: Any) -> None:
    good = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    found = parse_jwks(json.dumps({"keys": [odd, {**good, "kid": "good"}]}).encode())
    assert "good" in found
