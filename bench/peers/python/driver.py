"""The protocol between the benchmark and a peer.

`prepare` creates the schema. `client` executes commands from stdin, one JSON object per line, and prints the seconds
that each took. `worker` executes jobs until SIGTERM. `node/driver.js` is the same for Node.js.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from bench.peers.recorder import record

__all__ = ["Client", "Job", "chunks", "record", "serve", "settings"]

T = TypeVar("T")

settings: dict[str, Any] = json.loads(os.environ["BENCH_SETTINGS"])


class Job(NamedTuple):
    """The arguments of a job. Without a due time (0), the job is ready at once."""

    batch: int
    number: int
    due_us: int


class Client(Protocol):
    """Sends jobs through the public interface of a system."""

    async def single(self, job: Job) -> None: ...

    async def bulk(self, jobs: Sequence[Job]) -> None: ...

    async def register(self, jobs: Sequence[Job]) -> None:
        """Create a recurring job on `* * * * *` for each of these."""

    async def close(self) -> None: ...


async def serve(client: Client) -> None:
    """Execute commands from stdin until it ends. Other tasks of the event loop, such as a scheduler, keep running."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            answer: dict[str, Any] = {"seconds": await _execute(client, json.loads(line))}
        except Exception:  # noqa: BLE001 - the benchmark reports it
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await client.close()


async def _execute(client: Client, command: dict[str, Any]) -> float:
    count, due_us, span_us = command["count"], command["due_us"], command["span_us"]
    jobs = [Job(command["batch"], number, due_us + span_us * number // count) for number in range(count)]
    start = time.perf_counter()
    if command["do"] == "single":
        for job in jobs:
            await client.single(job)
    else:
        await getattr(client, command["do"])(jobs)
    return time.perf_counter() - start


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
