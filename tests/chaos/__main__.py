"""`python -m tests.chaos [--seeds 10] [--seconds 180] [--seed N]`: random histories, one at a time."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from .drill import drill
from .history import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--seeds", type=int, default=10, help="Number of histories; their seeds are 1, 2, …")
    parser.add_argument("--seconds", type=float, default=180.0, help="Length of the faults of each history.")
    parser.add_argument("--seed", type=int, help="Play only the history of this seed.")
    parser.add_argument("--stops", type=int, default=10, help="Number of stops of the drill; 0 leaves it out.")
    given = parser.parse_args()
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)  # the client's pool reports each restart of the server
    for number in (signal.SIGINT, signal.SIGTERM):  # both end the processes of a history before this one
        signal.signal(number, signal.default_int_handler)
    failed = 0
    for seed in [given.seed] if given.seed is not None else range(1, given.seeds + 1):
        history = asyncio.run(play(seed, given.seconds))
        print(history.report(), flush=True)
        failed += bool(history.verdict.violations)
    if given.seed is None and given.stops:
        drilled = asyncio.run(drill(given.stops))
        print(drilled.report(), flush=True)
        failed += bool(drilled.verdict.violations)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
