"""Redaction: paths in documents, and values in texts."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.core.redaction import (
    TextRedactor,
    check_paths,
    find_texts,
    redact_arguments,
    redact_document,
    restore_masked,
)
from bellringer.core.secret_references import (
    escape_references,
    find_references,
    parse_reference,
    parse_source,
    substitute,
)
from bellringer.errors import ConfigError, InvalidInput
from bellringer.worker.results import clip

DOCUMENT = {"a": {"b": 1, "c": None}, "list": [{"t": "x", "u": 2}, {"t": "y"}], "other": [1, 2]}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", {**DOCUMENT, "a": {"b": "***", "c": None}}),
        ("a.*", {**DOCUMENT, "a": {"b": "***", "c": None}}),
        ("a", {**DOCUMENT, "a": "***"}),
        ("list[].t", {**DOCUMENT, "list": [{"t": "***", "u": 2}, {"t": "***"}]}),
        ("list[1].t", {**DOCUMENT, "list": [{"t": "x", "u": 2}, {"t": "***"}]}),
        ("other[0]", {**DOCUMENT, "other": ["***", 2]}),
        ("missing.x", DOCUMENT),
        ("other.x", DOCUMENT),
    ],
)
def test_paths_hide_values_and_only_these(path: str, expected: Any) -> None:
    assert redact_document(DOCUMENT, check_paths([path])) == expected
    assert restore_masked(redact_document(DOCUMENT, [path]), DOCUMENT, [path]) == DOCUMENT


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "[0]", "a[x]", "a[", "a]b", "x" * 201, 5])
def test_other_texts_are_no_paths(path: Any) -> None:
    with pytest.raises(InvalidInput):
        check_paths([path])


def test_positional_arguments_are_hidden_by_number() -> None:
    args, kwargs = redact_arguments(["ada", {"pin": 1234}], {"card": 5}, ["args[0]", "args[1].pin", "card"])
    assert (args, kwargs) == (["***", {"pin": "***"}], {"card": "***"})
    assert list(find_texts(["ada", {"pin": 1234}], {"card": 5}, ["args[1]", "card"])) == ["1234", "5"]


SECRETS = st.text(min_size=8, max_size=60).filter(lambda text: len(text.strip()) >= 8 and "\0" not in text)


@given(secret=SECRETS, before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_value_is_found_in_every_form(secret: str, before: str, after: str) -> None:
    redactor = TextRedactor([secret])
    for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="", errors="replace")):
        assert form not in redactor.text(f"{before}{form}{after}") or form in "***"
    shown = redactor.document({"x": [secret, {secret: f"<{secret}>"}]})
    assert secret not in json.dumps(shown, ensure_ascii=False)


@given(position=st.integers(0, 9000))
def test_a_value_that_was_cut_in_two_leaves_no_half(position: int) -> None:
    secret = "Q7w-E5r_T3y+U1i/O9p.A8s"
    text = clip("-" * position + secret + "-" * (9000 - position), 4096)
    shown = TextRedactor([secret]).text(text)
    assert not any(secret[start : start + 4] in shown for start in range(len(secret) - 3))


def test_lines_of_a_key_file_are_found_one_by_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----"
    redactor = TextRedactor([key])
    assert all(redactor.text(f"> {line}") == "> ***" for line in key.splitlines())
    assert redactor.text("abc") == "abc"


NAMES = st.sampled_from(["$secret", "$literal", "a", "name"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
    max_leaves=12,
)


@given(value=JSON)
def test_escaped_data_has_no_references_and_arrives_unchanged(value: Any) -> None:
    escaped = escape_references(value)
    assert list(find_references(escaped)) == []
    assert substitute(escaped, {}) == value


def test_references_have_a_short_and_a_long_form() -> None:
    for value in ({"$secret": "a.b-c"}, {"$secret": {"name": "a.b-c"}}):
        found = parse_reference(value)
        assert found is not None
        assert found.name == "a.b-c"
    assert parse_reference({"$secret": "x"}, short=False) is None
    others: list[Any] = [
        {"$secret": "../x"},
        {"$secret": ""},
        {"$secret": "x", "y": 1},
        {"$secret": {"set": True}},
        "x",
    ]
    for other in others:
        assert parse_reference(other) is None
    assert substitute([{"$secret": {"name": "k", "prefix": "Bearer "}}], {"k": "v"}) == ["Bearer v"]


@pytest.mark.parametrize("text", ["", "vault:x", "env:", "env:BELL", "env:BELLRINGER_", "env:BELLRINGER_ROOT_", "file"])
def test_sources_that_are_unknown_or_cover_settings_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_source(text)
