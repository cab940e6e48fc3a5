"""Declaring jobs again, or by several nodes at once, changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.errors import Conflict, InvalidInput
from bellringer.schedule import every

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def test_two_nodes_that_declare_the_same_jobs_at_once_both_succeed(harness: EngineHarness) -> None:
    wanted = [harness.definition(f"job {n}", every("1h")) for n in range(20)]
    await asyncio.gather(*(harness.declare(*wanted) for _ in range(3)))
    wanted = [replace(d, priority=7) for d in wanted]
    await asyncio.gather(*(harness.declare(*wanted) for _ in range(3)))
    assert await harness.value("select array_agg(distinct revision) from jobs") == [2]


async def test_declaring_arguments_with_a_tuple_again_changes_nothing(harness: EngineHarness) -> None:
    wanted = harness.definition("job", every("1h"), args=[(1, 2)], kwargs={"since": timedelta(hours=1)})
    await harness.declare(wanted)
    assert await harness.declare(wanted) == []


async def test_declaring_a_name_in_another_unicode_form_again_changes_nothing(harness: EngineHarness) -> None:
    wanted = harness.definition("cafe\N{COMBINING ACUTE ACCENT}", every("1h"))
    await harness.declare(wanted)
    assert await harness.declare(wanted) == []


async def test_declaring_a_name_twice_in_one_call_says_so(harness: EngineHarness) -> None:
    await harness.declare(harness.definition("job"))
    with pytest.raises((InvalidInput, Conflict)):
        await harness.declare(harness.definition("job", priority=1), harness.definition("job", priority=2))


@pytest.mark.parametrize("name", ["ΑΣ", "İstanbul", "ǅ"])
async def test_declaring_a_name_again_whose_lower_case_is_ambiguous_changes_nothing(
    harness: EngineHarness, name: str
) -> None:
    wanted = harness.definition(name, every("1h"))
    await harness.declare(wanted)
    assert await harness.declare(wanted) == []
