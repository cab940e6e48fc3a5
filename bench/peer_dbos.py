"""Runs a chain of nodes on DBOS in its own environment; reads the DSN and the length, prints one line of JSON.

There are three ways to write a chain in DBOS:
steps    functions of one workflow, called in its own process and recorded; nothing is queued
queued   each node is a workflow in a queue, and its caller waits for the result
relayed  each node enqueues the next one and ends; the next may start before this one has ended
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from itertools import pairwise
from typing import Any
from uuid import uuid4

from dbos import DBOS, SetWorkflowID

POLL = 0.001  # seconds between two looks into the queue, and at a result: the quickest that we found for it
USUAL_POLL = 1.0  # what it does when nobody says otherwise
USUAL_HOPS = 10  # at a second or two each, no more are needed to see it
WARM = 20
SETTLED = 3.0  # seconds: a new queue gets its thread at the next look, once a second

_starts: list[float] = []


def _start() -> None:
    _starts.append(time.perf_counter())


def _node() -> None:
    _start()


step = DBOS.step(name="step")(_start)
node = DBOS.workflow(name="node")(_node)


def _steps(length: int) -> None:
    for _ in range(length):
        step()


def _queued(queue: str, poll: float, length: int) -> None:
    for _ in range(length):
        DBOS.enqueue_workflow(queue, node).get_result(polling_interval_sec=poll)


def _relayed(queue: str, left: int) -> None:
    _start()
    if left > 1:
        with SetWorkflowID(str(uuid4())):  # otherwise it is its parent's and a suffix: too long for an index in the end
            DBOS.enqueue_workflow(queue, relayed, queue, left - 1)


steps = DBOS.workflow(name="steps")(_steps)
queued = DBOS.workflow(name="queued")(_queued)
relayed = DBOS.workflow(name="relayed")(_relayed)


def _relay(length: int) -> None:
    DBOS.enqueue_workflow("quick", relayed, "quick", length)
    while len(_starts) < length:
        time.sleep(0.01)


def _hops() -> dict[str, float]:
    """Returns the times from start to start in milliseconds, and clears the recorded starts."""
    gaps = sorted((after - before) * 1000 for before, after in pairwise(_starts))
    _starts.clear()
    last = len(gaps) - 1
    return {name: round(gaps[int(last * part)], 2) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def measure(length: int) -> dict[str, Any]:
    for name, poll in (("quick", POLL), ("usual", USUAL_POLL)):
        DBOS.register_queue(name, polling_interval_sec=poll)
    time.sleep(SETTLED)
    steps(WARM)
    queued("quick", POLL, WARM)
    _starts.clear()
    steps(length)
    figures: dict[str, Any] = {"steps_hop_ms": _hops()}
    queued("quick", POLL, length)
    figures["queued_hop_ms"] = _hops()
    _relay(length)
    figures["relayed_hop_ms"] = _hops()
    queued("usual", USUAL_POLL, USUAL_HOPS)
    return {**figures, "queued_usual_poll_hop_ms": _hops()["p50"], "poll_ms": POLL * 1000}


def main() -> None:
    dsn, length = os.environ["PEER_DSN"], int(sys.argv[1])
    DBOS(config={"name": "bench", "system_database_url": dsn, "log_level": "ERROR", "application_version": "1"})
    DBOS.launch()
    figures = measure(length)
    DBOS.destroy(workflow_completion_timeout_sec=5)
    sys.stdout.write(json.dumps({"peer": f"dbos {version('dbos')}", "chain": length, **figures}) + "\n")


if __name__ == "__main__":
    main()
