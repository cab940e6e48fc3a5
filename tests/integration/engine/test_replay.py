"""Replays of runs whose payload holds secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bellringer.core.jobs import HTTP_TASK
from bellringer.engine.job_and_run_commands import replay
from bellringer.errors import InvalidInput

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def test_a_replay_keeps_what_a_secret_signs(harness: EngineHarness) -> None:
    # As a run by hand (`check_run_arguments`): who may run a job, but not change it, sends nothing signed elsewhere.
    sent = await harness.send(
        task=HTTP_TASK, pool=HTTP_TASK, kwargs={"url": "https://example.com/a", "sign": True, "secret": {"id": "sec_1"}}
    )
    await harness.cancel(sent.key)
    with pytest.raises(InvalidInput):
        await replay(harness.store, sent.key, tenant_id=1, kwargs={"url": "https://elsewhere.example/steal"})
