"""Requests end when their time is over, and say whose fault it is."""

from __future__ import annotations

import asyncio

import pytest

from bellringer.api.deadlines import LOOK, Deadlines
from bellringer.api.problems import Refused

SLACK = 1.0  # seconds that a busy machine may take longer
LATE = Refused(408, "body_timeout", "the body did not arrive in time")


async def _missed(*terms: tuple[float, Refused | None]) -> None:
    """Work for longer than the last of these terms allows."""
    async with Deadlines().within(30) as deadline:
        for seconds, means in terms:
            deadline.extend(seconds, means)
        await asyncio.sleep(30)


async def test_what_takes_too_long_is_ended_soon_after_its_time() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with deadlines.within(0.2):
            await asyncio.sleep(30)
    assert 0.2 <= loop.time() - began < 0.2 + LOOK + SLACK


async def test_what_is_done_in_time_is_left_alone() -> None:
    deadlines = Deadlines()
    async with deadlines.within(LOOK * 3):
        await asyncio.sleep(LOOK)
    await asyncio.sleep(LOOK * 5)  # it would be ended now, if it were still looked at
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_the_time_may_be_set_anew() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    async with deadlines.within(0.05) as deadline:
        deadline.extend(30)
        await asyncio.sleep(LOOK * 3)
    began = loop.time()
    with pytest.raises(TimeoutError):
        await _missed((0.0, None))
    assert loop.time() - began < LOOK + SLACK


async def test_who_comes_just_in_time_is_not_ended() -> None:
    async with Deadlines().within(30) as deadline:
        deadline.look(asyncio.get_running_loop().time() + 60)  # it is over, and would be ended in the next turn
        deadline.extend(30, LATE)
        await asyncio.sleep(LOOK)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_another_event_loop_is_looked_at_too() -> None:
    deadlines = Deadlines()

    async def brief() -> None:
        async with deadlines.within(30):
            pass

    async def long() -> None:
        async with deadlines.within(0.1):
            await asyncio.sleep(30)

    await asyncio.to_thread(asyncio.run, brief())  # its loop ends before the look that it asked for
    with pytest.raises(TimeoutError):
        await long()


async def test_who_is_late_is_told_so() -> None:
    with pytest.raises(Refused) as told:
        await _missed((0.0, LATE))
    assert told.value is LATE
    with pytest.raises(TimeoutError):  # from here on the server is
        await _missed((30, LATE), (0.0, None))


async def test_a_time_out_of_its_own_is_no_missed_deadline() -> None:
    async def fails() -> None:
        async with Deadlines().within(30) as deadline:
            deadline.extend(30, LATE)
            raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        await fails()


async def test_each_has_its_own_and_others_go_on() -> None:
    deadlines = Deadlines()

    async def one(seconds: float, work: float) -> str:
        try:
            async with deadlines.within(seconds):
                await asyncio.sleep(work)
        except TimeoutError:
            return "late"
        return "done"

    told = await asyncio.gather(one(0.1, 30), one(30, LOOK * 4), one(0.1, 30))
    assert list(told) == ["late", "done", "late"]


async def test_who_is_cancelled_from_outside_is_not_told_of_time() -> None:
    async def one() -> None:
        async with Deadlines().within(30):
            await asyncio.sleep(30)

    task = asyncio.create_task(one())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
