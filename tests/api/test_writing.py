"""An answer goes out in one write."""

from __future__ import annotations

import asyncio
from typing import Any

from bellringer.api.writing import ENOUGH, OneWrite


class Wire(asyncio.Transport):
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.done: list[Any] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def get_write_buffer_size(self) -> int:
        return 7


async def pair() -> tuple[Wire, OneWrite]:
    wire = Wire()
    return wire, OneWrite(wire, asyncio.get_running_loop())


async def test_a_head_waits_for_its_body_and_for_no_longer() -> None:
    wire, transport = await pair()
    transport.write(b"head ")
    assert (wire.done, transport.get_write_buffer_size()) == ([], 12)
    transport.write(b"body")
    assert (wire.done, transport.get_write_buffer_size()) == ([b"head body"], 7)
    await asyncio.sleep(0)
    assert wire.done == [b"head body"]


async def test_what_nothing_follows_goes_out_at_the_end_of_the_turn() -> None:
    wire, transport = await pair()
    transport.write(b"head")
    await asyncio.sleep(0)
    transport.write(b"more")
    await asyncio.sleep(0)
    assert wire.done == [b"head", b"more"]


async def test_a_large_part_does_not_wait() -> None:
    wire, transport = await pair()
    transport.write(b"head ")
    transport.write(bytes(ENOUGH))
    assert wire.done == [b"head " + bytes(ENOUGH)]
    await asyncio.sleep(0)
    assert len(wire.done) == 1


async def test_the_end_comes_after_what_was_written() -> None:
    wire, transport = await pair()
    transport.write(b"last")
    transport.close()
    assert wire.done == [b"last", "close"]


async def test_who_is_cut_off_gets_nothing_more() -> None:
    wire, transport = await pair()
    transport.write(b"last")
    transport.abort()
    transport.write(b"too late")
    await asyncio.sleep(0)
    assert wire.done == ["abort"]


async def test_all_else_is_the_transports_own() -> None:
    wire, transport = await pair()
    assert wire.high == 0  # nothing waits for the end of a turn
    assert transport.get_extra_info("peername") == ("127.0.0.1", 1)
