"""Payload codecs: bound to tenant and task, deterministic, with key rotation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.codecs import PayloadUnreadable, aesgcm, decrypt, encrypt_arguments, encrypt_value, load_codec
from bellringer.egress.secret_box import generate_secret_key
from bellringer.errors import ConfigError

OLD, NEW = generate_secret_key("old"), generate_secret_key("new")
CODEC = aesgcm([OLD])
JSON = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)


@given(value=JSON)
def test_a_value_comes_back_and_equal_values_have_equal_ciphertexts(value: Any) -> None:
    sealed = encrypt_value(CODEC, value, tenant="t", task="a")
    assert sealed == encrypt_value(CODEC, value, tenant="t", task="a")
    assert encrypt_value(CODEC, sealed, tenant="t", task="a") == sealed  # it is not encrypted twice
    assert decrypt(CODEC, [{"x": sealed}], tenant="t", task="a") == [{"x": value}]


@pytest.mark.parametrize(("tenant", "task"), [("other", "a"), ("t", "other")])
def test_a_value_is_bound_to_tenant_and_task(tenant: str, task: str) -> None:
    sealed = encrypt_value(CODEC, "secret", tenant="t", task="a")
    with pytest.raises(PayloadUnreadable):
        decrypt(CODEC, sealed, tenant=tenant, task=task)
    forged = {"$encrypted": {**sealed["$encrypted"], "task": task}}
    with pytest.raises(PayloadUnreadable):
        decrypt(CODEC, forged, tenant=tenant if tenant != "t" else "u", task=task)


def test_old_keys_decrypt_and_the_first_one_encrypts() -> None:
    before = encrypt_value(CODEC, "x", tenant="t", task="a")
    both = aesgcm([NEW, OLD])
    assert decrypt(both, before, tenant="t") == "x"
    after = encrypt_value(both, "x", tenant="t", task="a")
    assert after["$encrypted"]["key"] == "new"
    with pytest.raises(PayloadUnreadable, match="'new' is not configured"):
        decrypt(CODEC, after, tenant="t")
    with pytest.raises(PayloadUnreadable, match="'aesgcm' and the key 'new'"):
        decrypt(None, after, tenant="t")


def test_references_and_null_stay_readable() -> None:
    args, kwargs = encrypt_arguments(CODEC, [None], {"k": {"$secret": "x"}, "v": 1}, tenant="t", task="a")
    assert (args, kwargs["k"]) == ([None], {"$secret": "x"})
    assert kwargs["v"].keys() == {"$encrypted"}


@pytest.mark.parametrize(
    "setting", ["nothing", "bellringer.codecs:none", "no.such:thing", "bellringer.codecs:ENCRYPTED_FIELD"]
)
def test_a_codec_that_cannot_be_loaded_is_a_config_error(setting: str) -> None:
    with pytest.raises(ConfigError):
        load_codec(setting, [OLD])
    with pytest.raises(ConfigError):
        load_codec("bellringer.codecs:aesgcm", [])
    assert load_codec(None, []) is None
