"""How a task is declared, and what becomes of its arguments."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.tasks import Discard, Registry, Snooze, Task, make_task
from bellringer.errors import Conflict, InvalidInput, PayloadTooLarge

if TYPE_CHECKING:
    from bellringer.worker.context import Context


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclass
class Order:
    id: UUID
    points: list[Point]


class Colour(StrEnum):
    RED = "red"


class Model:
    """Behaves as a pydantic model does."""

    def __init__(self, size: int) -> None:
        self.size = size

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        return {"size": self.size}

    @classmethod
    def model_validate(cls, document: Any) -> Model:
        if not isinstance(document, dict) or "size" not in document:
            raise ValueError("a model has a size")
        return cls(document["size"])


def charge(invoice: int, amount: Decimal = Decimal(1), *, note: str = "") -> None:
    """Charge a customer.

    Twice is once too often.
    """


# --- declaring --------------------------------------------------------------------------------------------


def test_a_bare_function_is_a_task_with_sensible_defaults() -> None:
    task = make_task(charge)
    assert task.name.endswith("test_tasks.charge")
    assert task.doc == "Charge a customer.\n\nTwice is once too often."
    assert (task.pool, task.priority, task.timeout, task.heartbeat) == (None, 5, None, None)
    assert (task.retry, task.delivery, task.isolation, task.tags) == (Retry(), "at_least_once", "auto", ())
    assert not task.is_async
    assert not task.wants_context


def test_every_option_is_read_into_its_own_type() -> None:
    async def nightly(ctx: Any, day: str) -> Any: ...

    task = make_task(
        nightly,
        name="reports.nightly",
        pool="long",
        priority=9,
        timeout="10m",
        heartbeat=30,
        retry=5,
        delivery="at_most_once",
        isolation="process",
        tags=["billing", "eu-1"],
    )
    assert task.name == "reports.nightly"
    assert (task.timeout, task.heartbeat) == (timedelta(minutes=10), timedelta(seconds=30))
    assert task.retry == Retry(5)
    assert task.delivery is Delivery.AT_MOST_ONCE
    assert task.tags == ("billing", "eu-1")
    assert task.is_async
    assert task.wants_context


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"name": "no spaces"}, "/name"),
        ({"name": "9lives"}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"name": ""}, "/name"),
        ({"pool": "a\0b"}, "/pool"),
        ({"pool": ""}, "/pool"),
        ({"priority": 10}, "/priority"),
        ({"priority": -1}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"priority": "high"}, "/priority"),
        ({"timeout": "soon"}, "/timeout"),
        ({"timeout": 0}, "/timeout"),
        ({"timeout": -1}, "/timeout"),
        ({"heartbeat": "30s"}, "/heartbeat"),
        ({"retry": 0}, "/retry/attempts"),
        ({"delivery": "exactly_once"}, "/delivery"),
        ({"isolation": "proces"}, "/isolation"),
        ({"tags": "billing"}, "/tags"),
        ({"tags": [" edge"]}, "/tags"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: Any, pointer: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        make_task(charge, **options)
    assert refusal.value.pointer == pointer


def test_a_near_miss_is_answered_with_a_suggestion() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'process'"):
        make_task(charge, isolation="proces")  # type: ignore[arg-type]


def test_an_invalid_function_is_refused() -> None:
    def counts() -> Any:
        yield 1

    async def streams() -> Any:
        yield 1

    for wrong in (7, Point, counts, streams):
        with pytest.raises(InvalidInput):
            make_task(wrong)  # type: ignore[arg-type]


def test_what_has_no_name_needs_one() -> None:
    for nameless in (lambda: None, functools.partial(charge, 7)):
        with pytest.raises(InvalidInput, match="name"):
            make_task(nameless)
        assert make_task(nameless, name="named").name == "named"


def test_a_nested_function_is_named_after_where_it_stands() -> None:
    def inner() -> Any: ...

    name = "test_tasks.test_a_nested_function_is_named_after_where_it_stands.inner"
    assert make_task(inner).name.endswith(name)


def test_a_script_is_named_as_its_file_so_that_a_worker_finds_it(tmp_path: Any) -> None:
    script = tmp_path / "my_app.py"
    script.write_text("from bellringer.core.tasks import make_task\ndef hello(): ...\nprint(make_task(hello).name)\n")
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert said.stdout == "my_app.hello\n"


def test_callable_objects_and_partials_of_coroutines_are_known_as_asynchronous() -> None:
    class Handler:
        async def __call__(self, n: int) -> None: ...

    async def work(n: int) -> None: ...

    assert make_task(Handler(), name="a").is_async
    assert make_task(functools.partial(work, 1), name="b").is_async
    assert make_task(Handler(), name="a").bind([7], {}) == ([7], {})


# --- the context ------------------------------------------------------------------------------------------


def test_the_context_is_known_by_annotation_or_name_in_first_place_only() -> None:
    def by_text(c: Context, n: int) -> Any: ...
    def by_quoted_text(c: "Context", n: int) -> Any: ...  # noqa: UP037
    def by_name(ctx: Any, n: int) -> Any: ...
    def second(n: int, ctx: Any = None) -> Any: ...
    def other(context: int, n: int) -> Any: ...

    assert [make_task(f).wants_context for f in (by_text, by_quoted_text, by_name, second, other)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_the_real_context_class_is_known_by_any_parameter_name() -> None:
    from bellringer.worker.context import Context as Real

    def handler(c: Any, n: int) -> Any: ...

    handler.__annotations__["c"] = Real
    task = make_task(handler)
    assert task.wants_context
    assert task.bind([], {"n": 1}) == ([], {"n": 1})


def test_the_context_is_not_an_argument() -> None:
    def handler(ctx: Any, n: int) -> Any: ...

    task = make_task(handler)
    assert task.bind([1], {}) == ([1], {})
    assert list(task.schema["properties"]) == ["n"]
    with pytest.raises(InvalidInput) as refusal:
        task.bind([1], {"ctx": 2})
    assert refusal.value.code == "unexpected_argument"


# --- binding ----------------------------------------------------------------------------------------------


def test_arguments_are_stored_as_they_were_given_but_in_plain_json() -> None:
    task = make_task(charge)
    assert task.bind((7,), {"amount": Decimal("1.10"), "note": "x"}) == ([7], {"amount": "1.10", "note": "x"})
    assert task.bind([], {"invoice": 7}) == ([], {"invoice": 7})


@pytest.mark.parametrize(
    ("args", "kwargs", "code", "says"),
    [
        ([], {}, "missing_argument", "is missing the argument 'invoice'"),
        ([1, 2, 3], {}, "too_many_arguments", "at most 2"),
        ([1], {"invoce": 2}, "unexpected_argument", "did you mean 'invoice'"),
        ([1], {"zzz": 2}, "unexpected_argument", "its arguments are: invoice, amount, note"),
        ([1], {"invoice": 2}, "argument_twice", "'invoice' twice"),
        (["abc"], {}, "type", "'invoice': Expected `int`, got `str`"),
        ([1], {"amount": "lots"}, "type", "'amount'"),
        ([1], {"note": 5}, "type", "'note': Expected `str`, got `int`"),
        ([1], {"note": "a\0b"}, "nul_character", "argument 'note'"),
        ([{1, 2}], {}, "type", "argument 'invoice'"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(args: Any, kwargs: Any, code: Any, says: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        make_task(charge).bind(args, kwargs)
    assert refusal.value.code == code
    assert says in str(refusal.value)
    assert refusal.value.pointer.startswith(("/args", "/kwargs"))


def test_arguments_too_large_only_together_are_refused_too() -> None:
    def two(a: str, b: str) -> Any: ...

    with pytest.raises(PayloadTooLarge):
        make_task(two).bind(["x" * 200_000], {"b": "x" * 200_000})


def test_open_ended_signatures_take_what_comes_and_check_its_type() -> None:
    def many(first: int, *rest: int, flag: bool = False, **others: float) -> Any: ...

    task = make_task(many)
    assert task.bind([1, 2, 3], {"flag": True, "x": 1.5}) == ([1, 2, 3], {"flag": True, "x": 1.5})
    for args, kwargs in (([1, "x"], {}), ([1], {"x": "y"})):
        with pytest.raises(InvalidInput):
            task.bind(args, kwargs)
    assert task.schema["additionalProperties"] is True


def test_positional_only_arguments_cannot_be_named() -> None:
    def handler(n: int, /) -> Any: ...

    with pytest.raises(InvalidInput):
        make_task(handler).bind([], {"n": 1})


# --- converting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (int, 7),
        (datetime, datetime(2026, 3, 1, tzinfo=UTC)),
        (date, date(2026, 3, 1)),
        (timedelta, timedelta(minutes=5)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Point, Point(1, 2)),
        (Order, Order(UUID(int=1), [Point(3)])),
        (list[Order], [Order(UUID(int=1), [])]),
        (dict[str, Point], {"a": Point(1)}),
        (tuple[int, str], (1, "a")),
        (int | None, None),
        (int | str, "7"),
        (str | None, "null"),
        (Literal["a", "b"], "b"),
        (Annotated[int, msgspec.Meta(gt=0)], 5),
        (Any, {"x": [1]}),
    ],
)
def test_what_was_sent_is_what_the_handler_gets(annotation: Any, given: Any) -> None:
    def handler(value: Any) -> Any: ...

    handler.__annotations__["value"] = annotation
    task = make_task(handler)
    args, kwargs = task.convert(*task.bind([given], {}))
    assert args == [given]
    assert type(args[0]) is type(given)
    assert task.convert(*task.bind([], {"value": given})) == ([], {"value": given})
    assert kwargs == {}


def test_text_may_stand_for_a_number_where_only_a_number_fits() -> None:
    assert make_task(charge).convert(["7"], {}) == ([7], {})


def test_a_pydantic_model_reads_itself() -> None:
    def handler(models: list[Model]) -> Any: ...

    task = make_task(handler)
    args, _ = task.convert(*task.bind([[Model(3)]], {}))
    assert args[0][0].size == 3
    with pytest.raises(InvalidInput, match="a model has a size"):
        task.convert([[{}]], {})


def test_an_annotation_that_means_nothing_to_json_leaves_its_argument_alone() -> None:
    def handler(a: Nonsense, b: object, c: functools.partial, d: int) -> Any: ...  # type: ignore[name-defined,type-arg]  # noqa: F821

    task = make_task(handler)
    assert task.convert([1, "x", [2], 3], {}) == ([1, "x", [2], 3], {})
    with pytest.raises(InvalidInput, match="'d'"):
        task.convert([1, 2, 3, "x"], {})
    assert task.schema["properties"] == {"a": {}, "b": {}, "c": {}, "d": {"type": "integer"}}


def test_a_run_older_than_the_signature_fails_by_the_name_of_what_is_missing() -> None:
    with pytest.raises(InvalidInput, match="is missing the argument 'invoice'"):
        make_task(charge).convert([], {})


# --- the schema -------------------------------------------------------------------------------------------


def test_the_schema_shows_types_defaults_and_what_is_required() -> None:
    assert make_task(charge).schema == {
        "type": "object",
        "properties": {
            "invoice": {"type": "integer"},
            "amount": {"type": "string", "format": "decimal", "default": "1"},
            "note": {"type": "string", "default": ""},
        },
        "required": ["invoice"],
        "additionalProperties": False,
    }


def test_the_schema_shares_the_definitions_of_records() -> None:
    def handler(order: Order, spare: Order | None = None) -> Any: ...

    schema = make_task(handler).schema
    assert schema["properties"]["order"] == {"$ref": "#/$defs/Order"}
    assert set(schema["$defs"]) == {"Order", "Point"}


# --- the registry -----------------------------------------------------------------------------------------


def named(name: str) -> Task:
    return make_task(charge, name=name)


def test_the_registry_knows_its_tasks_by_name() -> None:
    registry = Registry()
    task = registry.add(named("b.charge"))
    registry.add(named("a.charge"))
    assert registry.get("b.charge") is task
    assert registry.get("c.charge") is None
    assert registry.names() == ["a.charge", "b.charge"]


def test_two_functions_cannot_share_a_name_but_one_may_be_declared_again() -> None:
    registry = Registry()
    registry.add(named("charge"))
    again = registry.add(make_task(charge, name="charge", priority=9))
    assert registry.get("charge") is again
    with pytest.raises(Conflict, match="two tasks named 'charge'"):
        registry.add(make_task(lambda: None, name="charge"))


def test_an_unknown_name_is_answered_with_those_that_may_be_meant() -> None:
    registry = Registry()
    for name in ("billing.charge", "billing.refund", "reports.nightly"):
        registry.add(named(name))
    assert registry.closest("biling.chrage")[0] == "billing.charge"
    assert registry.closest("old_module.refund") == ["billing.refund"]
    assert registry.closest("zzz") == []


def test_answers_of_a_handler_are_frozen_values() -> None:
    assert Snooze("30s") == Snooze(30) == Snooze(timedelta(seconds=30))
    assert Snooze("30s").delay == timedelta(seconds=30)
    assert Discard("gone").reason == "gone"
    with pytest.raises(InvalidInput):
        Snooze("later")
    with pytest.raises(AttributeError):
        Snooze(1).delay = timedelta(0)  # type: ignore[misc]
