"""The door's settings belong together, and what a server refuses comes back as the error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellringer.config import Config, load_config
from bellringer.errors import BellringerError, ConfigError, Forbidden, QuotaExceeded, Unauthenticated, Unavailable
from bellringer.wire.problems import Problem, to_error


def read(folder: Path, **environ: str) -> Config:
    return load_config(environ={f"BELLRINGER_{name.upper()}": value for name, value in environ.items()}, folder=folder)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"root_key": "short"}, "root_key has fewer than 32 characters"),
        ({"jwt_secret": "s" * 40}, "JWT authentication needs jwt_issuer and jwt_audience"),
        ({"jwt_jwks": "keys.json", "jwt_issuer": "i"}, "JWT authentication needs jwt_issuer and jwt_audience"),
        (
            {"jwt_jwks": "keys.json", "jwt_secret": "s" * 40, "jwt_issuer": "i", "jwt_audience": "a"},
            "jwt_secret and jwt_jwks are both given",
        ),
        ({"auth": "maybe"}, "BELLRINGER_AUTH cannot be 'maybe'"),
        ({"trusted_proxies": "10.0.0.1, proxy.local"}, "trusted_proxies cannot be 'proxy.local'"),
        ({"connections_per_address": "0"}, "BELLRINGER_CONNECTIONS_PER_ADDRESS cannot be 0"),
    ],
)
def test_half_a_door_is_refused(tmp_path: Path, environ: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        read(tmp_path, **environ)
    assert caught.value.hint
    assert "s" * 40 not in str(caught.value)


def test_a_whole_door_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        auth="none",
        root_key="r" * 32,
        jwt_jwks="https://id.example/keys",
        jwt_issuer="https://id.example",
        jwt_audience="bell",
        trusted_proxies="10.0.0.1, 10.1.0.0/16",
        key="br_x",
    )
    assert (config.auth, config.trusted_proxies) == ("none", ("10.0.0.1", "10.1.0.0/16"))
    assert (config.jwt_tenant_claim, config.jwt_role_claim) == ("tenant", "role")
    assert read(tmp_path).auth is None


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "unauthenticated", Unauthenticated),
        (403, "forbidden", Forbidden),
        (403, "tenant_suspended", Forbidden),
        (429, "quota_exceeded", QuotaExceeded),
        (429, "rate_limited", Unavailable),
        (429, "too_many_attempts", Unavailable),
    ],
)
def test_what_a_refusal_means_to_a_client(status: int, code: str, kind: type[BellringerError]) -> None:
    error = to_error(Problem(status=status, code=code, detail="no", hint="do this"))
    assert type(error) is kind
    assert (error.code, error.message, error.hint) == (code, "no", "do this")
