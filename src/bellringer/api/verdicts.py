"""How it goes, decided from plain numbers: what somebody should look at, and one sentence for all of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from bellringer.durations import format_duration
from bellringer.reasons.words import counted, rounded
from bellringer.store.overview import MOST_COUNTED, Schedulers, Sums, Trouble, Waiting
from bellringer.wire.overview import Attention, Verdict

MOST_ITEMS: Final = 8
FIRING_LATE: Final = 5.0  # seconds that a shard may be late before somebody should know
LEAST_LATE: Final = 5  # runs that started late: of a few runs, one says nothing
WAITS_LONG: Final = 60.0  # seconds that ready work may wait for a free slot
GOOD, WARN, BAD = "good", "warn", "bad"
_KINDS: Final = {"dead": ("failing", BAD), "missed": ("missed", WARN), "late": ("late", WARN)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a verdict is found from. Of the range are `started_late` and `burn`: at 1 the error budget lasts just so
    long."""

    sums: Sums
    schedulers: Schedulers
    pools: Sequence[Waiting]
    troubles: Sequence[Trouble]
    burn: float
    started_late: int
    range: str


def attention(facts: Facts) -> list[Attention]:
    """What somebody should look at, the worst first; of many the first, so that the others still have a place."""
    found = [*_schedulers(facts), *_pools(facts), *_rest(facts)][: MOST_ITEMS - bool(facts.troubles)]
    found += _troubles(facts, MOST_ITEMS - len(found))
    return sorted(found, key=lambda item: item.tone != BAD)


def verdict(facts: Facts, found: Sequence[Attention]) -> Verdict:
    """One sentence: what stands in the way of everything, else what is wrong with jobs, else that all is well."""
    sums = facts.sums
    hindered = next((item for item in found if item.tone == BAD and item.job_id is None), None)
    if hindered is not None:
        return Verdict(tone=BAD, text=hindered.text)
    if sums.failing or sums.late:
        parts = [(sums.failing, "failing"), (sums.late, "late")]
        text = " and ".join(f"{_jobs(n)} {'is' if n == 1 else 'are'} {word}" for n, word in parts if n)
        return Verdict(tone=BAD if sums.failing else WARN, text=f"{text[0].upper()}{text[1:]}.")
    if found:
        return Verdict(tone=WARN, text=found[0].text)
    if not sums.jobs:
        return Verdict(tone=GOOD, text="There are no jobs yet.")
    paused = f", {_number(sums.paused)} of them paused" if sums.paused else ""
    return Verdict(tone=GOOD, text=f"All is well: {_jobs(sums.jobs)}{paused}, and nothing is late or failing.")


def _schedulers(facts: Facts) -> Iterator[Attention]:
    found = facts.schedulers
    if found.held == 0:
        yield _hindrance("no_scheduler", BAD, "No scheduler holds a shard: nothing fires.", fix="bellringer scheduler")
    elif found.held < found.total:
        free = counted(found.total - found.held, "shard")
        text = f"{free} of {found.total} without a scheduler: their jobs do not fire."
        yield _hindrance("shards_free", BAD, text, fix="bellringer cluster shards")
    elif found.firing > FIRING_LATE:
        text = f"Fires are up to {_seconds(found.firing)} late."
        yield _hindrance("firing_late", BAD, text, fix="bellringer cluster")
    if found.waits_for:
        yield _hindrance("waits_for", WARN, f"A scheduler waits for {found.waits_for}.", fix="bellringer cluster")


def _pools(facts: Facts) -> Iterator[Attention]:
    for pool in facts.pools:
        if not pool.ready:
            continue
        runs = f"{_number(pool.ready)} {'run waits' if pool.ready == 1 else 'runs wait'} in the pool {pool.pool}"
        name = shlex.quote(pool.pool)
        waited = (facts.sums.now - pool.since).total_seconds() if pool.since else 0
        if pool.paused:
            fix = f"bellringer pools resume {name}"
            yield _hindrance("pool_paused", WARN, f"{runs}, which is paused.", fix, pool)
        elif not pool.workers:
            fix = f"bellringer worker APP --pool {name}=10"
            yield _hindrance("no_worker", BAD, f"{runs}, and no worker serves it.", fix, pool)
        elif waited > WAITS_LONG:
            fix = f"bellringer pools show {name}"
            yield _hindrance("pool_waits", WARN, f"{runs}, the first for {_seconds(waited)}.", fix, pool)


def _rest(facts: Facts) -> Iterator[Attention]:
    dead = facts.sums.dead
    if dead:
        letters = f"{_number(dead)} {'dead letter waits' if dead == 1 else 'dead letters wait'}"
        text = f"{letters} to be redriven or discarded."
        yield _hindrance("dead_letters", WARN, text, fix="bellringer dead groups")
    if facts.burn >= 1 and facts.started_late >= LEAST_LATE:
        text = f"More runs started late in the last {facts.range} than the objective allows."
        yield _hindrance("objective", WARN, text, fix="bellringer objective")


def _troubles(facts: Facts, most: int) -> Iterator[Attention]:
    words = {"dead": "gave up", "missed": "missed an occurrence", "late": "is late"}
    for trouble in facts.troubles[:most]:
        kind, tone = _KINDS[trouble.kind]
        yield Attention(
            kind=kind,
            tone=tone,
            text=f"{trouble.job} {words[trouble.kind]}, and has not run well since.",
            job_id=str(trouble.job_id),
            job=trouble.job,
            since=trouble.since,
            fix=f"bellringer why {shlex.quote(trouble.job)}",
        )


def _hindrance(kind: str, tone: str, text: str, fix: str, pool: Waiting | None = None) -> Attention:
    where = {} if pool is None else {"pool": pool.pool}
    return Attention(kind=kind, tone=tone, text=text, fix=fix, since=pool.since if pool else None, **where)


def _jobs(number: int) -> str:
    return f"{_number(number)} job{'' if number == 1 else 's'}"


def _number(number: int) -> str:
    return f"more than {MOST_COUNTED:,}" if number > MOST_COUNTED else f"{number:,}"


def _seconds(seconds: float) -> str:
    return format_duration(rounded(timedelta(seconds=max(seconds, 1))))
