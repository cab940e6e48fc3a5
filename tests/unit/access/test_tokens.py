"""Tokens that are signed for real, by each kind of key, and all the ways in which one may be wrong."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bellringer.access import Role
from bellringer.access.jwt_tokens import (
    MAX_JWKS_BYTES,
    Bearer,
    PublicKeys,
    SharedSecret,
    TokenRules,
    TokenVerifier,
    parse_jwks,
)
from bellringer.errors import ConfigError

NOW: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)
RULES: Final = TokenRules(issuer="https://id.example", audience="bellringer")
SECRET: Final = "s" * 64
RSA: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC: Final = ec.generate_private_key(ec.SECP256R1())


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def claims(**other: Any) -> dict[str, Any]:
    said = {
        "iss": "https://id.example",
        "aud": "bellringer",
        "sub": "ada",
        "exp": NOW.timestamp() + 60,
        "tenant": "acme",
        "role": "editor",
        **other,
    }
    return {name: value for name, value in said.items() if value is not None}


def jwks(**keys: Any) -> bytes:
    entries = []
    for kid, key in keys.items():
        kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        entries.append({**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
    return json.dumps({"keys": entries}).encode()


def hs(said: Mapping[str, Any], **headers: Any) -> str:
    return jwt.encode(dict(said), SECRET, "HS256", headers=headers or None)


async def read(token: str, ring: Any = None) -> Bearer | None:
    return await TokenVerifier(RULES, ring or SharedSecret(SECRET), Clock()).read(token)


async def test_a_good_token_says_who_for_whom_and_as_what() -> None:
    assert await read(hs(claims())) == Bearer(subject="ada", tenant="acme", role=Role.EDITOR)
    assert await read(hs(claims(aud=["other", "bellringer"]))) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"iss": "https://elsewhere.example"},
        {"iss": None},
        {"aud": "another service"},
        {"aud": None},
        {"exp": None},
        {"exp": NOW.timestamp() - 31},
        {"exp": float("nan")},
        {"exp": "tomorrow"},
        {"exp": True},
        {"nbf": NOW.timestamp() + 31},
        {"sub": None},
        {"sub": ""},
        {"tenant": None},
        {"tenant": 7},
        {"role": None},
        {"role": "ADMIN"},
        {"role": "owner"},
        {"role": ["admin"]},
        {"exp": float("inf")},
        {"exp": 10**400},
        {"nbf": -(10**400)},
        {"sub": "a" * 201},
        {"sub": "a\0b"},
        {"sub": "a\u202eb"},
        {"sub": "\ud800"},
        {"tenant": "\ud800"},
    ],
)
async def test_a_token_that_says_something_else_is_not_taken(other: dict[str, Any]) -> None:
    said = base64.urlsafe_b64encode(json.dumps(claims(**other)).encode()).rstrip(b"=").decode()
    assert await read(_signed(said)) is None


def _signed(payload: str) -> str:
    """By hand: the library would not sign some of what is tried."""
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=").decode()
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = algorithm.sign(f"{header}.{payload}".encode(), SECRET.encode())
    return f"{header}.{payload}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_clocks_may_differ_by_half_a_minute() -> None:
    assert await read(hs(claims(exp=NOW.timestamp() - 29))) is not None
    assert await read(hs(claims(nbf=NOW.timestamp() + 29))) is not None


async def test_the_token_does_not_choose_its_algorithm(tmp_path: Path) -> None:
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(one=RSA))
    ring = PublicKeys(str(path), Clock())
    unsigned = jwt.encode(claims(), "", "none", headers={"kid": "one"})
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').rstrip(b"=").decode()
    payload = base64.urlsafe_b64encode(json.dumps(claims()).encode()).rstrip(b"=").decode()
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = base64.urlsafe_b64encode(algorithm.sign(f"{header}.{payload}".encode(), pem)).rstrip(b"=").decode()
    assert await read(unsigned, ring) is None
    assert await read(jwt.encode(claims(), "", "none")) is None
    assert await read(f"{header}.{payload}.{signature}", ring) is None  # the public key passed off as a secret
    assert await read(jwt.encode(claims(), RSA, "RS512", headers={"kid": "one"}), ring) is None
    assert await read(jwt.encode(claims(), SECRET, "HS512")) is None
    assert await read(hs(claims(), crit=["x"], x=1)) is None
    assert await read(jwt.encode(claims(), RSA, "RS256", headers={"kid": "one"}), ring) is not None


@pytest.mark.parametrize("token", ["", "..", "a.b.c", "é.é.é", "e30.e30.", "[.[.[", "x" * 9000])
async def test_an_invalid_token_is_rejected(token: str) -> None:
    assert await read(token) is None


async def test_a_file_of_public_keys_serves_both_kinds(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(r=RSA, e=EC))
    ring = PublicKeys(str(path), Clock())
    assert await read(jwt.encode(claims(), RSA, "RS256", headers={"kid": "r"}), ring) is not None
    assert await read(jwt.encode(claims(), EC, "ES256", headers={"kid": "e"}), ring) is not None
    assert await read(jwt.encode(claims(), EC, "ES256", headers={"kid": "r"}), ring) is None
    assert await read(jwt.encode(claims(), EC, "ES256"), ring) is None  # which of the two?


async def test_an_unknown_key_is_looked_for_at_most_once_a_minute() -> None:
    served, asked = {"document": jwks(old=RSA)}, []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(200, content=served["document"])

    clock = Clock()
    ring = PublicKeys("https://id.example/keys", clock, httpx2.MockTransport(answer))
    old, new = (
        jwt.encode(claims(), key, alg, headers={"kid": kid})
        for key, alg, kid in ((RSA, "RS256", "old"), (EC, "ES256", "new"))
    )
    assert await read(old, ring) is not None
    served["document"] = jwks(new=EC)
    for _ in range(5):
        assert await read(new, ring) is None
    assert len(asked) == 1
    clock.at = 61
    assert await read(new, ring) is not None
    assert await read(old, ring) is None  # the issuer no longer names it
    assert len(asked) == 2


async def test_an_issuer_that_is_away_leaves_the_known_keys_standing() -> None:
    answers = [httpx2.Response(200, content=jwks(a=RSA)), httpx2.Response(500), httpx2.Response(200, content=b"<html>")]
    clock = Clock()
    ring = PublicKeys("https://id.example/keys", clock, httpx2.MockTransport(lambda _: answers.pop(0)))
    good = jwt.encode(claims(), RSA, "RS256", headers={"kid": "a"})
    assert await read(good, ring) is not None
    for later in (61, 122):
        clock.at = later
        assert await read(jwt.encode(claims(), RSA, "RS256", headers={"kid": "b"}), ring) is None
        assert await read(good, ring) is not None
    assert answers == []


async def test_keys_are_read_again_after_ten_minutes_and_taken_unread_for_an_hour() -> None:
    served: list[httpx2.Response] = [httpx2.Response(200, content=jwks(a=RSA, b=EC))]
    clock = Clock()
    ring = PublicKeys("https://id.example/keys", clock, httpx2.MockTransport(lambda _: served[0]))
    a, b = (
        jwt.encode(claims(), key, alg, headers={"kid": kid})
        for key, alg, kid in ((RSA, "RS256", "a"), (EC, "ES256", "b"))
    )
    assert await read(a, ring) is not None
    served[0] = httpx2.Response(200, content=jwks(b=EC))
    clock.at = 599
    assert await read(a, ring) is not None
    clock.at = 600
    assert await read(a, ring) is None  # withdrawn
    assert await read(b, ring) is not None
    served[0] = httpx2.Response(500)
    clock.at = 600 + 3600
    assert await read(b, ring) is not None
    clock.at += 1
    assert await read(b, ring) is None  # nobody knows whether it was
    served[0] = httpx2.Response(200, content=jwks(b=EC))
    clock.at += 60
    assert await read(b, ring) is not None


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, content=jwks(a=RSA) + b" " * MAX_JWKS_BYTES),
        httpx2.Response(200, content=gzip.compress(jwks(a=RSA)), headers={"Content-Encoding": "gzip"}),
        httpx2.Response(200, content=b'{"keys": 7}'),
        httpx2.Response(200, content=b"{}"),
        httpx2.Response(302, headers={"Location": "https://elsewhere.example/"}),
    ],
    ids=["large", "packed", "no list", "no keys", "elsewhere"],
)
async def test_an_answer_that_is_not_a_list_of_keys_is_not_taken(answer: httpx2.Response) -> None:
    ring = PublicKeys("https://id.example/keys", Clock(), httpx2.MockTransport(lambda _: answer))
    assert await read(jwt.encode(claims(), RSA, "RS256", headers={"kid": "a"}), ring) is None


async def test_an_answer_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    monkeypatch.setattr("bellringer.access.jwt_tokens.JWKS_TIMEOUT_SECONDS", 0.2)
    answer = httpx2.Response(200, content=trickle())
    ring = PublicKeys("https://id.example/keys", Clock(), httpx2.MockTransport(lambda _: answer))
    assert await read(jwt.encode(claims(), RSA, "RS256", headers={"kid": "a"}), ring) is None


def test_keys_are_not_fetched_in_the_clear_but_from_this_machine() -> None:
    with pytest.raises(ConfigError, match="plain http"):
        PublicKeys("http://id.example/keys", Clock())
    for where in ("http://localhost:9/keys", "http://127.0.0.1:9/keys", "http://[::1]:9/keys"):
        PublicKeys(where, Clock())


def test_only_keys_that_are_meant_for_signatures_of_ours_are_read() -> None:
    entries = json.loads(jwks(a=RSA))["keys"]
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    others = [
        {**entries[0], "kid": "b", "use": "enc"},
        {**entries[0], "kid": "c", "alg": "RS512"},
        {"kty": "RSA", "kid": "d"},
    ]
    assert list(parse_jwks(json.dumps({"keys": [secret, *others, *entries]}).encode())) == ["a"]


def test_a_secret_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than 32 bytes"):
        SharedSecret("short")
