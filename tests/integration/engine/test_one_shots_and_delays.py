"""Jobs that wait in timers: one-shots, and delays from the end of one run to the next."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import State
from bellringer.engine import prune
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.prune import Retention
from bellringer.engine.reap import reap
from bellringer.schedule import at, delay, every
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

SILENCE = timedelta(minutes=30)
DAY = 86_400


async def start(harness: EngineHarness, **more: Any) -> tuple[Any, ClaimSpec]:
    """A job of one minute's delay, and the worker that holds its first run."""
    job = await harness.job("job", delay("1m"), **more)
    await harness.set_clock(harness.after(60))
    await harness.ring()
    return job, await harness.join_worker()


# One-shots


async def test_a_one_shot_fires_once_at_its_instant(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(10)))
    await harness.set_clock(harness.after(9.999))
    assert (await harness.ring()).fired == 0
    await harness.set_clock(harness.after(10))
    assert (await harness.ring()).fired == 1
    assert (await harness.ring()).fired == 0
    assert await harness.fired(job) == await harness.queued(job) == [10]
    assert await harness.timers(job) == []


async def test_a_one_shot_that_has_run_is_not_armed_again_by_pause_and_resume(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(10)))
    await harness.set_clock(harness.after(10))
    await harness.ring()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat))
    await harness.pause(job)
    await harness.resume(job)
    assert await harness.timers(job) == []


async def test_a_one_shot_that_fired_ahead_of_its_time_follows_a_change(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(1)))
    await harness.ring(lead=1)
    assert await harness.fired(job) == [1]
    await harness.change(job, harness.definition("job", at(harness.after(30))))
    assert await harness.fired(job) == []
    assert await harness.timers(job) == [30]


async def test_a_paused_one_shot_waits_and_is_armed_again_before_its_instant(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(10)))
    await harness.pause(job)
    assert await harness.timers(job) == []
    await harness.set_clock(harness.after(5))
    await harness.resume(job)
    assert await harness.timers(job) == [10]


async def test_a_deleted_one_shot_does_not_fire(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(10)))
    await harness.retire(job)
    await harness.set_clock(harness.after(10))
    assert (await harness.ring()).fired == 0
    assert await harness.fired(job) == []


async def test_a_one_shot_whose_instant_passed_during_a_pause_does_not_fire_at_resume(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(3600)))
    await harness.pause(job)
    await harness.set_clock(harness.after(7200))
    await harness.resume(job)
    await harness.ring()
    assert await harness.fired(job) == []


async def test_a_one_shot_never_fires_again_once_its_history_is_gone(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(60)))
    await harness.set_clock(harness.after(60))
    await harness.ring()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    await harness.set_clock(harness.after(40 * DAY))
    await prune.prune(harness.store, await harness.now(), Retention())
    await harness.pause(job)
    await harness.resume(job)
    assert await harness.timers(job) == []


# Delays


async def test_a_delay_counts_from_the_end_of_the_run_before(harness: EngineHarness) -> None:
    job, seat = await start(harness)
    assert await harness.fired(job) == [60]
    claimed = await harness.claim_one(seat)
    assert await harness.timers(job) == []
    await harness.set_clock(harness.after(100))
    await harness.end(seat, claimed)
    assert await harness.timers(job) == [160]


async def test_a_delay_is_armed_again_when_its_run_dies(harness: EngineHarness) -> None:
    job, seat = await start(harness, retry=Retry(1))
    claimed = await harness.claim_one(seat)
    await harness.fail(seat, claimed)
    assert await harness.state(claimed.key) is State.DEAD
    assert await harness.timers(job) == [120]


async def test_a_delay_is_armed_again_when_its_timer_is_cancelled(harness: EngineHarness) -> None:
    job = await harness.job("job", delay("1m"))
    await harness.set_clock(harness.after(10))
    assert await harness.cancel(harness.key(job, 60)) is State.CANCELLED
    assert await harness.timers(job) == [70]


async def test_a_delay_is_armed_again_when_its_waiting_run_is_cancelled(harness: EngineHarness) -> None:
    job, _ = await start(harness)
    assert await harness.cancel(harness.key(job, 60)) is State.CANCELLED
    assert await harness.timers(job) == [120]


async def test_a_delay_is_armed_again_when_its_running_run_stops_on_request(harness: EngineHarness) -> None:
    job, seat = await start(harness)
    claimed = await harness.claim_one(seat)
    assert await harness.cancel(claimed.key) is State.RUNNING
    assert await harness.timers(job) == []
    await harness.fail(seat, claimed)
    assert await harness.state(claimed.key) is State.CANCELLED
    assert await harness.timers(job) == [120]


async def test_a_delay_is_armed_again_when_its_run_is_lost_for_good(harness: EngineHarness) -> None:
    job, seat = await start(harness, delivery=Delivery.AT_MOST_ONCE)
    claimed = await harness.claim_one(seat)
    await harness.silence_worker(seat)
    assert await reap(harness.store, harness.catalog, SILENCE) == 1
    assert await harness.state(claimed.key) is State.DEAD
    assert await harness.timers(job) == [120]


@pytest.mark.parametrize("wait", ["10s", "10m"])
async def test_a_delay_is_not_armed_while_a_retry_waits(harness: EngineHarness, wait: str) -> None:
    job, seat = await start(harness, retry=Retry(delays=[wait], jitter=0))
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.set_clock(harness.after(1000))
    await harness.ring()
    assert await harness.timers(job) == []
    await harness.end(seat, await harness.claim_one(seat))
    assert await harness.fired(job) == [60]
    assert await harness.timers(job) == [1060]


async def test_a_delay_is_not_armed_while_its_job_is_paused_but_when_it_is_resumed(harness: EngineHarness) -> None:
    job, seat = await start(harness)
    claimed = await harness.claim_one(seat)
    await harness.pause(job)
    await harness.end(seat, claimed)
    assert await harness.timers(job) == []
    await harness.set_clock(harness.after(500))
    await harness.resume(job)
    assert await harness.timers(job) == [560]


async def test_a_delay_that_resumes_while_its_run_is_under_way_keeps_one_chain(harness: EngineHarness) -> None:
    job, seat = await start(harness)
    claimed = await harness.claim_one(seat)
    await harness.pause(job)
    await harness.resume(job)
    assert await harness.timers(job) == []
    await harness.end(seat, claimed)
    assert await harness.timers(job) == [120]


async def test_a_delay_that_is_changed_while_it_runs_counts_by_its_new_length(harness: EngineHarness) -> None:
    job, seat = await start(harness)
    claimed = await harness.claim_one(seat)
    await harness.change(job, harness.definition("job", delay("10m")))
    assert await harness.timers(job) == []
    await harness.end(seat, claimed)
    assert await harness.timers(job) == [660]


async def test_a_delay_that_becomes_a_cron_while_it_runs_is_armed_no_more(harness: EngineHarness) -> None:
    job, seat = await start(harness)
    claimed = await harness.claim_one(seat)
    await harness.change(job, harness.definition("job", every("1h")))
    await harness.end(seat, claimed)
    assert await harness.timers(job) == []


async def test_a_delay_ends_with_its_span(harness: EngineHarness) -> None:
    job, seat = await start(harness, ends_at=harness.after(119))
    await harness.end(seat, await harness.claim_one(seat))
    assert await harness.timers(job) == []


async def test_a_delay_begins_with_its_span(harness: EngineHarness) -> None:
    job = await harness.job("job", delay("1m"), starts_at=harness.after(600))
    assert await harness.timers(job) == [600]


async def test_a_redriven_run_of_a_delay_starts_no_second_chain(harness: EngineHarness) -> None:
    job, seat = await start(harness, retry=Retry(1))
    claimed = await harness.claim_one(seat)
    await harness.fail(seat, claimed)
    await harness.redrive(claimed.key)
    await harness.end(seat, await harness.claim_one(seat))
    assert await harness.timers(job) == [120]


async def test_a_delay_that_was_forgotten_is_armed_by_the_sweep(harness: EngineHarness) -> None:
    job, _ = await start(harness)
    await harness.sql("delete from queue")
    await harness.set_clock(harness.after(80))
    await queue.rearm_orphans(harness.store)
    assert await harness.timers(job) == []  # not yet: it may be on its way
    await harness.set_clock(harness.after(200))
    await queue.rearm_orphans(harness.store)
    await queue.rearm_orphans(harness.store)
    assert await harness.timers(job) == [260]


async def test_the_sweep_leaves_delays_alone_that_are_armed_running_or_paused(harness: EngineHarness) -> None:
    running, _ = await start(harness)
    armed = await harness.job("armed", delay("10h"))
    paused = await harness.job("paused", delay("1m"))
    await harness.pause(paused)
    await harness.set_clock(harness.after(5000))
    await queue.rearm_orphans(harness.store)
    assert [await harness.timers(job) for job in (running, armed, paused)] == [[], [36060], []]
