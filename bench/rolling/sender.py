"""`sender.py NAME RATE`: sends RATE one-shots a second until SIGTERM, through the SDK.

Each accepted one-shot is a line in a file of the folder ROLLING_RECORD. A send that fails is repeated with the same
keys, as an application does, so it has one effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from bellringer.errors import BellringerError
from bench.rolling.app import RECORD_VARIABLE, app, record

BATCHES_PER_SECOND = 5


async def main(name: str, rate: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    size, number = max(rate // BATCHES_PER_SECOND, 1), 0
    with (Path(os.environ[RECORD_VARIABLE]) / f"sent-{name}").open("a") as accepted:
        while not stop.is_set():
            tags = [f"{name}-{number + i}" for i in range(size)]
            number += size
            for tag, run_id in zip(tags, await send(tags), strict=True):
                accepted.write(f"{tag} {run_id}\n")
            accepted.flush()
            await asyncio.sleep(1 / BATCHES_PER_SECOND)
    await app.aclose()


async def send(tags: list[str]) -> list[str]:
    while True:
        try:
            runs = await record.asend_many([record.options(key=tag).message(tag) for tag in tags])
            return [run.id for run in runs]
        except (BellringerError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
