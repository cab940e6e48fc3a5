"""Jobs that are alike are read once; each is stored as if it had come alone."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Mapping
from typing import Any, cast

import httpx2
import pytest

from bellringer.api import moulds
from bellringer.store.pool import Store
from bellringer.wire import definitions

ALIKE: dict[str, Any] = {
    "task": "demo",
    "schedule": {"cron": "H 3 * * *", "tz": "Europe/Paris"},
    "retry": {"attempts": 5},
    "tags": ["a"],
    "timeout": "10m",
}


@pytest.fixture
def read_in_full(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the jobs that were read in full."""
    seen: list[str] = []
    reading = definitions.to_definition

    def counted(request: Any, **terms: Any) -> Any:
        seen.append(request.name)
        return reading(request, **terms)

    monkeypatch.setattr(moulds, "to_definition", counted)
    return seen


async def _create(api: httpx2.AsyncClient, **document: Any) -> httpx2.Response:
    return await api.post("/api/v1/jobs", json=document)


async def test_one_that_is_like_another_is_what_it_would_be_alone(
    api: httpx2.AsyncClient, read_in_full: list[str]
) -> None:
    first = await _create(api, name="first", kwargs={"n": 1}, **ALIKE)
    second = await _create(api, name="second", kwargs={"n": [2]}, **ALIKE)
    third = await _create(api, name="third", payload={"n": 3}, args=[1], **ALIKE)
    other = await _create(api, name="other", kwargs={"n": 4}, **{**ALIKE, "tags": ["b"]})
    assert [a.status_code for a in (first, second, third, other)] == [202] * 4
    assert read_in_full == ["first", "other"]
    assert [a.json()["kwargs"] for a in (first, second, third, other)] == [{"n": 1}, {"n": [2]}, {"n": 3}, {"n": 4}]
    assert (third.json()["args"], second.json()["args"]) == ([1], [])
    assert (second.json()["tags"], other.json()["tags"]) == (["a"], ["b"])
    seeds = {a.json()["next_at"] for a in (first, second, third, other)}
    assert len(seeds) > 1, "H is spread by the name"
    for answer in (first, second, third):
        alone = dict(answer.json())
        again = (await api.get(answer.headers["location"])).json()
        assert again == alone


@pytest.mark.parametrize(
    ("document", "pointer", "code"),
    [
        ({"name": 7}, "/name", "type"),
        ({}, "/name", "missing_field"),
        ({"name": "bulk"}, "/name", "name_reserved"),
        ({"name": ""}, "/name", None),
        ({"name": "x", "args": {}}, "/args", "type"),
        ({"name": "x", "kwargs": []}, "/kwargs", "type"),
        ({"name": "x", "kwargs": {}, "payload": {}}, None, None),
        ({"name": "x", "kwargs": {"a": "b" * 300_000}}, None, None),
    ],
)
async def test_what_is_wrong_with_one_is_told_as_if_it_came_alone(
    api: httpx2.AsyncClient, document: dict[str, Any], pointer: str | None, code: str | None
) -> None:
    alone = await _create(api, **{**ALIKE, "tags": ["lonely"]}, **document)
    await _create(api, name="the mould", **ALIKE)
    answer = await _create(api, **ALIKE, **document)

    def told(answer: httpx2.Response) -> Any:
        return {k: v for k, v in answer.json().items() if k not in ("request_id", "instance")}

    assert answer.status_code == alone.status_code >= 400
    assert told(answer) == told(alone)
    if code is not None:
        first = answer.json()["errors"][0]
        assert (first["pointer"], first["code"]) == (pointer, code)


class _Desk:
    """A desk that knows of no defaults."""

    def defaults_at_hand(self, _task: str) -> Mapping[str, Any]:
        return {}

    async def task_defaults(self, _task: str) -> Mapping[str, Any]:
        return {}


class _Arguments(dict[str, Any]):
    """Arguments of which it can be told when nobody holds them any more."""


async def test_a_mould_keeps_nothing_of_the_job_that_it_was_made_from() -> None:
    kept = moulds.Moulds(cast(Any, _Desk()))
    arguments = _Arguments(secret="s")
    definition = await kept.definition({"name": "first", "kwargs": {"a": arguments}, **ALIKE})
    seen = weakref.ref(arguments)
    del definition, arguments
    gc.collect()
    assert seen() is None


async def test_a_thousand_kinds_are_kept_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moulds, "MOST", 3)
    kept = moulds.Moulds(cast(Any, _Desk()))

    def kind(n: int) -> dict[str, Any]:
        return {"name": f"job {n}", "task": "demo", "priority": n}

    for n in (0, 1, 2, 0, 3):  # that the first is read anew does not make it newer than it is, nor empty the rest
        await kept.definition(kind(n))
    assert [moulds.Reading(kept).again(kind(n)) is not None for n in range(4)] == [False, True, True, True]
    reading = moulds.Reading(kept)
    for n in range(6):
        assert reading.again(kind(n)) or await reading.first(kind(n))
    assert all(reading.again(kind(n)) for n in range(6)), "one request has a mould for each of its kinds"


async def test_a_mould_heeds_what_its_task_wants_now(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch, read_in_full: list[str]
) -> None:
    monkeypatch.setattr("bellringer.api.reads.FRESH", 0.0)  # defaults are asked for each time

    async def told(defaults: dict[str, Any]) -> None:
        await store.pool.execute(
            "insert into tasks (name, defaults) values ('shifty', $1) on conflict (name) do update set defaults = $1",
            json.dumps(defaults),
        )

    await told({"timeout": 60.0})
    await _create(api, name="before", task="shifty")
    await told({"timeout": 120.0})
    after = await _create(api, name="after", task="shifty")
    assert after.json()["timeout"] in ("2m", 120, 120.0)
    assert read_in_full == ["before", "after"]
