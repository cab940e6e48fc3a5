"""What may travel as JSON, and how the rest is refused."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple
from unittest.mock import Mock
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bellringer.core.payload import (
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOAD_DEPTH,
    check_payload,
    decode,
    encode_parsed,
    scrub,
    to_plain,
)
from bellringer.errors import InvalidInput, PayloadTooLarge

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=30,
)


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Word(StrEnum):
    BELL = "bell"


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


@dataclass
class Order:
    id: UUID
    placed: datetime
    points: list[Point]


class Pair(NamedTuple):
    left: int
    right: str


class Model:
    """Behaves as a pydantic model does."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        return {"mode": mode}


@given(plain)
def test_plain_json_comes_back_as_it_went_in(value: Any) -> None:
    assert decode(check_payload(value)) == value
    assert json.loads(check_payload(value)) == value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 3, 1, 12, tzinfo=UTC), "2026-03-01T12:00:00Z"),
        (datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))), "2026-03-01T12:00:00+02:00"),
        (date(2026, 3, 1), "2026-03-01"),
        (timedelta(seconds=90), "PT90S"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
        (Word.BELL, "bell"),
        (Point(1, 2.5), {"x": 1, "y": 2.5}),
        ((1, (2, 3)), [1, [2, 3]]),
        (Pair(1, "a"), [1, "a"]),
        (OrderedDict(b=1, a=[Colour.RED]), {"b": 1, "a": ["red"]}),
        (Model(), {"mode": "json"}),
        (2**100, 2**100),
        ("a \\u0000 that is only a backslash", "a \\u0000 that is only a backslash"),
    ],
)
def test_values_beyond_json_are_written_in_its_terms(value: Any, written: Any) -> None:
    assert to_plain(value) == written
    assert to_plain({"deep": [value]}) == {"deep": [written]}


def test_records_are_written_with_all_that_they_hold() -> None:
    order = Order(UUID(int=1), datetime(2026, 1, 1, tzinfo=UTC), [Point(1)])
    assert to_plain(order) == {
        "id": str(UUID(int=1)),
        "placed": "2026-01-01T00:00:00Z",
        "points": [{"x": 1, "y": 0.0}],
    }


@pytest.mark.parametrize(
    ("value", "code", "pointer"),
    [
        ({"a": [1, {2, 3}]}, "type", "/a/1"),
        ({"a": object()}, "type", "/a"),
        ({"a": b"raw"}, "type", "/a"),
        ({"a": Order}, "type", "/a"),
        ({"a": Mock()}, "type", "/a"),
        ({1: "a"}, "type", ""),
        ({"a": [float("nan")]}, "number_invalid", "/a/0"),
        (float("-inf"), "number_invalid", ""),
        (Decimal("NaN"), "number_invalid", ""),
        ([10**5000], "number_invalid", "/0"),
        ({"a": ["x\0y"]}, "nul_character", "/a/0"),
        ({"k\0": 1}, "nul_character", "/k\\x00"),
        ({"a": "\ud800"}, "encoding", "/a"),
        ({"\udfff": 1}, "encoding", "/\\udfff"),
        ({"a/b": {"c~d": {1}}}, "type", "/a~1b/c~0d"),
        (datetime(2026, 1, 1), "offset_required", ""),  # noqa: DTZ001 - the point of it
        (Order(UUID(int=1), datetime(2026, 1, 1), []), "offset_required", "/placed"),  # noqa: DTZ001
        (Point(1, float("inf")), "number_invalid", "/y"),
    ],
)
def test_what_the_database_cannot_hold_is_refused_with_its_place(value: Any, code: Any, pointer: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_payload(value)
    assert (refusal.value.code, refusal.value.pointer) == (code, pointer)


def test_a_refusal_names_what_it_is_about() -> None:
    with pytest.raises(InvalidInput, match=r"argument 'days' \(/kwargs/days\) is of type set; pass a list"):
        check_payload({1}, pointer="/kwargs/days", what="argument 'days'")


def nested(depth: int, innermost: object) -> object:
    for _ in range(depth):
        innermost = [innermost]
    return innermost


@pytest.mark.parametrize("innermost", [1, 1.5, "x", [], {}, Colour.RED])
def test_depth_is_bounded_whatever_is_innermost(innermost: Any) -> None:
    room = MAX_PAYLOAD_DEPTH - (1 if isinstance(innermost, list | dict) else 0)
    check_payload(nested(room, innermost))
    with pytest.raises(InvalidInput) as refusal:
        check_payload(nested(room + 1, innermost))
    assert refusal.value.code == "json_too_deep"


def test_a_cycle_is_refused_as_too_deep() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidInput) as refusal:
        check_payload(cycle)
    assert refusal.value.code == "json_too_deep"


def test_a_small_object_that_writes_as_a_huge_one_is_refused_at_once() -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(30):
        laughs = [laughs, laughs]
    with pytest.raises(PayloadTooLarge):
        check_payload(laughs)


def test_the_limit_is_on_the_bytes_written() -> None:
    assert len(check_payload("x" * 98, limit=100)) == 100
    with pytest.raises(PayloadTooLarge, match=r"takes 101 bytes as JSON, and the limit is 100; pass a reference"):
        check_payload("x" * 99, limit=100)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'"\xff"', "encoding"),
        ("[" * 100_000, "json_too_deep"),
        (b"1e999", "number_invalid"),
        (b"9" * 5000, "number_invalid"),
        (b"NaN", "json_invalid"),
        (b"[1,", "json_invalid"),
        (b'"\\ud800"', "json_invalid"),
    ],
)
def test_json_that_cannot_be_read_is_refused_with_a_stable_code(data: Any, code: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        decode(data)
    assert refusal.value.code == code


@given(st.text())
def test_scrubbed_text_can_always_be_stored(text: Any) -> None:
    check_payload(scrub(text))


def test_scrubbing_leaves_good_text_alone() -> None:
    assert scrub("Zürich ⏰") == "Zürich ⏰"
    assert scrub("a\0b\ud800") == "a\\x00b\\ud800"


@given(plain | st.text(), st.sampled_from([5, 40, MAX_PAYLOAD_BYTES]))
@example("a\0b", MAX_PAYLOAD_BYTES)
@example({"a\0": 1}, MAX_PAYLOAD_BYTES)
@example("\\u0000", MAX_PAYLOAD_BYTES)
@example(10**4000, MAX_PAYLOAD_BYTES)
def test_what_was_read_from_json_is_written_as_if_it_were_checked_in_full(value: object, limit: int) -> None:
    def told(write: Callable[..., bytes]) -> tuple[object, ...]:
        try:
            return ("written", write({"args": [value]}, limit=limit))
        except InvalidInput as error:
            return (error.code, error.pointer, error.message)

    assert told(encode_parsed) == told(check_payload)
