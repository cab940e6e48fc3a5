from __future__ import annotations

import re

import pytest

from bellringer.access.api_keys import generate_api_key, parse_api_key


def test_a_key_is_read_as_it_was_made_and_fits_only_its_own_hash() -> None:
    key, other = generate_api_key(), generate_api_key()
    assert re.fullmatch(r"br_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", key.text)
    assert parse_api_key(key.text) == key
    assert key.fits(key.hash)
    assert not key.fits(other.hash)
    assert key.secret not in repr(key)


@pytest.mark.parametrize(
    "text", ["", "br_", "br_abcdefgh_" + "x" * 42, "BR_abcdefgh_" + "x" * 43, "br_abc!efgh_" + "x" * 43]
)
def test_what_has_not_the_form_of_a_key_is_none(text: str) -> None:
    assert parse_api_key(text) is None
    assert parse_api_key(generate_api_key().text + "\n") is None
