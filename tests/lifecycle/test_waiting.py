"""Jobs that wait in timers: one-shots, and delays from the end of one run to the next."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.lifecycle import prune
from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.prune import Retention
from bellringer.lifecycle.reap import reap
from bellringer.policies import Delivery, Retry
from bellringer.runs import State
from bellringer.schedule import at, delay, every
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

SILENCE = timedelta(minutes=30)
DAY = 86_400


async def start(bench: Bench, **more: Any) -> tuple[Any, Seat]:
    """A job of one minute's delay, and the worker that holds its first run."""
    job = await bench.job("job", delay("1m"), **more)
    await bench.set_clock(bench.after(60))
    await bench.ring()
    return job, await bench.seat()


# One-shots


async def test_a_one_shot_fires_once_at_its_instant(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(10)))
    await bench.set_clock(bench.after(9.999))
    assert (await bench.ring()).fired == 0
    await bench.set_clock(bench.after(10))
    assert (await bench.ring()).fired == 1
    assert (await bench.ring()).fired == 0
    assert await bench.fired(job) == await bench.queued(job) == [10]
    assert await bench.timers(job) == []


async def test_a_one_shot_that_has_run_is_not_armed_again_by_pause_and_resume(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(10)))
    await bench.set_clock(bench.after(10))
    await bench.ring()
    seat = await bench.seat()
    await bench.end(seat, await bench.claim_one(seat))
    await bench.pause(job)
    await bench.resume(job)
    assert await bench.timers(job) == []


async def test_a_one_shot_that_rang_ahead_of_its_time_follows_a_change(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(1)))
    await bench.ring(lead=1)
    assert await bench.fired(job) == [1]
    await bench.change(job, bench.definition("job", at(bench.after(30))))
    assert await bench.fired(job) == []
    assert await bench.timers(job) == [30]


async def test_a_paused_one_shot_waits_and_is_armed_again_before_its_instant(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(10)))
    await bench.pause(job)
    assert await bench.timers(job) == []
    await bench.set_clock(bench.after(5))
    await bench.resume(job)
    assert await bench.timers(job) == [10]


async def test_a_deleted_one_shot_does_not_fire(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(10)))
    await bench.retire(job)
    await bench.set_clock(bench.after(10))
    assert (await bench.ring()).fired == 0
    assert await bench.fired(job) == []


async def test_a_one_shot_whose_instant_passed_during_a_pause_does_not_fire_at_resume(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(3600)))
    await bench.pause(job)
    await bench.set_clock(bench.after(7200))
    await bench.resume(job)
    await bench.ring()
    assert await bench.fired(job) == []


async def test_a_one_shot_never_fires_again_once_its_history_is_gone(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(60)))
    await bench.set_clock(bench.after(60))
    await bench.ring()
    seat = await bench.seat()
    await bench.end(seat, await bench.claim(seat))
    await bench.set_clock(bench.after(40 * DAY))
    await prune.prune(bench.store, await bench.now(), Retention())
    await bench.pause(job)
    await bench.resume(job)
    assert await bench.timers(job) == []


# Delays


async def test_a_delay_counts_from_the_end_of_the_run_before(bench: Bench) -> None:
    job, seat = await start(bench)
    assert await bench.fired(job) == [60]
    claimed = await bench.claim_one(seat)
    assert await bench.timers(job) == []
    await bench.set_clock(bench.after(100))
    await bench.end(seat, claimed)
    assert await bench.timers(job) == [160]


async def test_a_delay_is_armed_again_when_its_run_dies(bench: Bench) -> None:
    job, seat = await start(bench, retry=Retry(1))
    claimed = await bench.claim_one(seat)
    await bench.fail(seat, claimed)
    assert await bench.state(claimed.key) is State.DEAD
    assert await bench.timers(job) == [120]


async def test_a_delay_is_armed_again_when_its_timer_is_cancelled(bench: Bench) -> None:
    job = await bench.job("job", delay("1m"))
    await bench.set_clock(bench.after(10))
    assert await bench.cancel(bench.key(job, 60)) is State.CANCELLED
    assert await bench.timers(job) == [70]


async def test_a_delay_is_armed_again_when_its_waiting_run_is_cancelled(bench: Bench) -> None:
    job, _ = await start(bench)
    assert await bench.cancel(bench.key(job, 60)) is State.CANCELLED
    assert await bench.timers(job) == [120]


async def test_a_delay_is_armed_again_when_its_running_run_stops_on_request(bench: Bench) -> None:
    job, seat = await start(bench)
    claimed = await bench.claim_one(seat)
    assert await bench.cancel(claimed.key) is State.RUNNING
    assert await bench.timers(job) == []
    await bench.fail(seat, claimed)
    assert await bench.state(claimed.key) is State.CANCELLED
    assert await bench.timers(job) == [120]


async def test_a_delay_is_armed_again_when_its_run_is_lost_for_good(bench: Bench) -> None:
    job, seat = await start(bench, delivery=Delivery.AT_MOST_ONCE)
    claimed = await bench.claim_one(seat)
    await bench.vanish(seat)
    assert await reap(bench.store, bench.names, SILENCE) == 1
    assert await bench.state(claimed.key) is State.DEAD
    assert await bench.timers(job) == [120]


@pytest.mark.parametrize("wait", ["10s", "10m"])
async def test_a_delay_is_not_armed_while_a_retry_waits(bench: Bench, wait: str) -> None:
    job, seat = await start(bench, retry=Retry(delays=[wait]))
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.set_clock(bench.after(1000))
    await bench.ring()
    assert await bench.timers(job) == []
    await bench.end(seat, await bench.claim_one(seat))
    assert await bench.fired(job) == [60]
    assert await bench.timers(job) == [1060]


async def test_a_delay_is_not_armed_while_its_job_is_paused_but_when_it_is_resumed(bench: Bench) -> None:
    job, seat = await start(bench)
    claimed = await bench.claim_one(seat)
    await bench.pause(job)
    await bench.end(seat, claimed)
    assert await bench.timers(job) == []
    await bench.set_clock(bench.after(500))
    await bench.resume(job)
    assert await bench.timers(job) == [560]


async def test_a_delay_that_resumes_while_its_run_is_under_way_keeps_one_chain(bench: Bench) -> None:
    job, seat = await start(bench)
    claimed = await bench.claim_one(seat)
    await bench.pause(job)
    await bench.resume(job)
    assert await bench.timers(job) == []
    await bench.end(seat, claimed)
    assert await bench.timers(job) == [120]


async def test_a_delay_that_is_changed_while_it_runs_counts_by_its_new_length(bench: Bench) -> None:
    job, seat = await start(bench)
    claimed = await bench.claim_one(seat)
    await bench.change(job, bench.definition("job", delay("10m")))
    assert await bench.timers(job) == []
    await bench.end(seat, claimed)
    assert await bench.timers(job) == [660]


async def test_a_delay_that_becomes_a_cron_while_it_runs_is_armed_no_more(bench: Bench) -> None:
    job, seat = await start(bench)
    claimed = await bench.claim_one(seat)
    await bench.change(job, bench.definition("job", every("1h")))
    await bench.end(seat, claimed)
    assert await bench.timers(job) == []


async def test_a_delay_ends_with_its_span(bench: Bench) -> None:
    job, seat = await start(bench, ends_at=bench.after(119))
    await bench.end(seat, await bench.claim_one(seat))
    assert await bench.timers(job) == []


async def test_a_delay_begins_with_its_span(bench: Bench) -> None:
    job = await bench.job("job", delay("1m"), starts_at=bench.after(600))
    assert await bench.timers(job) == [600]


async def test_a_redriven_run_of_a_delay_starts_no_second_chain(bench: Bench) -> None:
    job, seat = await start(bench, retry=Retry(1))
    claimed = await bench.claim_one(seat)
    await bench.fail(seat, claimed)
    await bench.redrive(claimed.key)
    await bench.end(seat, await bench.claim_one(seat))
    assert await bench.timers(job) == [120]


async def test_a_delay_that_was_forgotten_is_armed_by_the_sweep(bench: Bench) -> None:
    job, _ = await start(bench)
    await bench.sql("delete from queue")
    await bench.set_clock(bench.after(80))
    await queue.rearm_orphans(bench.store)
    assert await bench.timers(job) == []  # not yet: it may be on its way
    await bench.set_clock(bench.after(200))
    await queue.rearm_orphans(bench.store)
    await queue.rearm_orphans(bench.store)
    assert await bench.timers(job) == [260]


async def test_the_sweep_leaves_delays_alone_that_are_armed_running_or_paused(bench: Bench) -> None:
    running, _ = await start(bench)
    armed = await bench.job("armed", delay("10h"))
    paused = await bench.job("paused", delay("1m"))
    await bench.pause(paused)
    await bench.set_clock(bench.after(5000))
    await queue.rearm_orphans(bench.store)
    assert [await bench.timers(job) for job in (running, armed, paused)] == [[], [36060], []]
