"""Handlers that wait for their turn while their worker is stopped are not called once its lease has expired."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from bellringer.core.runs import Outcome

if TYPE_CHECKING:
    from tests.integration.worker.conftest import ExecutorHarness


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_a_handler_is_not_called_once_the_lease_has_expired(
    isolated: Callable[..., ExecutorHarness], kind: str
) -> None:
    valid, called = [False], []

    async def coroutine() -> int:
        called.append(kind)
        return 1

    def thread() -> int:
        called.append(kind)
        return 1

    executor_harness = isolated(may_start=lambda _: valid[0])
    handlers: dict[str, Callable[[], object] | str] = {"coroutine": coroutine, "thread": thread, "process": "pid"}
    ending = await executor_harness.run(handlers[kind])
    assert (ending.outcome, ending.started, ending.ran) == (Outcome.LOST, False, 0.0)
    assert executor_harness.error(ending)["type"] == "NotStarted"
    assert not called
    valid[0] = True
    assert (await executor_harness.run(handlers[kind])).outcome is Outcome.OK
