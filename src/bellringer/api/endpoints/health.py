"""Health checks, the settings of the server, and the health summary of the overview."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from typing import Final

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import operation
from bellringer.api.http.request import AppState, RequestContext, reply
from bellringer.core.loop_progress import check_health, loops_of_process
from bellringer.durations import format_duration
from bellringer.errors import BellringerError
from bellringer.explain.text import format_count, round_duration
from bellringer.store import leases, migrate
from bellringer.store.connection_pool import DATABASE_ERRORS, Store
from bellringer.store.overview import (
    MAX_COUNTED,
    FailingPause,
    JobTrouble,
    OrphanedJob,
    OverviewCounts,
    PoolBacklog,
    Schedulers,
    UnknownTask,
)
from bellringer.store.sql_functions import Functions, load_functions
from bellringer.wire.overview import Attention, Readiness, Settings, Verdict
from bellringer.wire.routes import Routes

READINESS_TIMEOUT_SECONDS: Final = 1.0
READY: Final = "ready"


@operation(Routes.get_healthz, role=None)
async def healthz(_call: RequestContext) -> Response:
    """Returns 200 while the background loops of the process make progress; 503 names the loop that does not.

    The database is not checked: restarting this process would not repair it.
    """
    healthy, document = check_health(loops_of_process())
    return reply(Readiness(**document), 200 if healthy else 503)


@operation(Routes.ready, role=None)
async def readyz(call: RequestContext) -> Response:
    """Returns 200 if the process has started, the database responds, and its schema matches this version.

    Reports, without failing, that row-level security is off (`row_security`), and that schedulers wait for the service
    that grants their leases (see `GET /api/v1/cluster/nodes`).
    """
    document = await check_readiness(call.service)
    return reply(document) if document.status == READY else reply(document, 503, Retry_After="1")


async def check_readiness(service: AppState) -> Readiness:
    """Checks the process, the database, its schema and the schedulers."""
    checks = {"process": "ok" if service.ready() else "starting", **await _database(service.store)}
    ready = all(verdict == "ok" for verdict in checks.values())
    checks["row_security"] = "ok" if service.tenants.role is not None else "off"
    if ready and await _schedulers_wait(service.store):
        checks["schedulers"] = "waiting"
    return Readiness(status=READY if ready else "not_ready", checks=checks)


async def _database(store: Store) -> dict[str, str]:
    try:
        async with asyncio.timeout(READINESS_TIMEOUT_SECONDS), store.pool.acquire() as connection:
            await migrate.require_current(connection, *_schema())
    except BellringerError as error:
        return {"database": "ok", "schema": error.code}
    except DATABASE_ERRORS:
        return {"database": "no answer", "schema": "unknown"}
    return {"database": "ok", "schema": "ok"}


async def _schedulers_wait(store: Store) -> bool:
    try:
        async with asyncio.timeout(READINESS_TIMEOUT_SECONDS):
            return await leases.any_node_waits(store)
    except DATABASE_ERRORS:
        return False  # the database responded a moment ago; the next check reports it


@cache
def _schema() -> tuple[tuple[migrate.Migration, ...], Functions]:
    return migrate.load(), load_functions()


@operation(Routes.settings, role=Role.ADMIN, everywhere=True)
async def get_settings(call: RequestContext) -> Response:
    """Returns the settings of this server; of secrets only whether they are set."""
    call.query()
    return reply(Settings(items=list(call.service.settings)))


MAX_ATTENTION_ITEMS: Final = 8
FIRING_LATE_SECONDS: Final = 5.0  # how late a shard may fire before it needs attention
MIN_LATE_RUNS: Final = 5  # fewer late runs are not reported
LONG_WAIT_SECONDS: Final = 60.0  # how long ready runs may wait for a free slot
GOOD, WARN, BAD = "good", "warn", "bad"
_KINDS: Final = {
    "dead": ("failing", BAD),
    "missed": ("missed", WARN),
    "late": ("late", WARN),
    "skipping": ("skipping", WARN),
}
_JOB_KINDS: Final = frozenset({"paused_failing", *(kind for kind, _ in _KINDS.values())})  # kinds that concern one job


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """The facts that a verdict is derived from. `started_late` and `burn` are of the range; with a burn of 1 the error
    budget lasts exactly as long as its period.
    """

    sums: OverviewCounts
    schedulers: Schedulers
    pools: Sequence[PoolBacklog]
    troubles: Sequence[JobTrouble]
    burn: float
    started_late: int
    range: str
    unknown: Sequence[UnknownTask] = ()
    tasks: Sequence[str] = ()  # the tasks that live workers know
    pauses: Sequence[FailingPause] = ()
    orphans: Sequence[OrphanedJob] = ()


def attention(facts: HealthFacts) -> list[Attention]:
    """Returns what needs attention, the worst first; each source has a limited number of items."""
    found = [*_schedulers(facts), *_pools(facts), *_unknown(facts), *_pauses(facts), *_rest(facts), *_orphans(facts)][
        : MAX_ATTENTION_ITEMS - bool(facts.troubles)
    ]
    found += _troubles(facts, MAX_ATTENTION_ITEMS - len(found))
    return sorted(found, key=lambda item: item.tone != BAD)


def verdict(facts: HealthFacts, found: Sequence[Attention]) -> Verdict:
    """Returns one sentence: a problem of the whole installation, else problems of jobs, else that all is well."""
    sums = facts.sums
    hindered = next((item for item in found if item.tone == BAD and item.kind not in _JOB_KINDS), None)
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


def _schedulers(facts: HealthFacts) -> Iterator[Attention]:
    found = facts.schedulers
    if found.held == 0:
        yield _hindrance("no_scheduler", BAD, "No scheduler holds a shard: nothing fires.", fix="bellringer scheduler")
    elif found.held < found.total:
        free = format_count(found.total - found.held, "shard")
        text = f"{free} of {found.total} without a scheduler: their jobs do not fire."
        yield _hindrance("shards_free", BAD, text, fix="bellringer cluster shards")
    elif found.firing > FIRING_LATE_SECONDS:
        text = f"Fires are up to {_seconds(found.firing)} late."
        yield _hindrance("firing_late", BAD, text, fix="bellringer cluster")
    if found.waits_for:
        yield _hindrance("waits_for", WARN, f"A scheduler waits for {found.waits_for}.", fix="bellringer cluster")


def _pools(facts: HealthFacts) -> Iterator[Attention]:
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
        elif waited > LONG_WAIT_SECONDS:
            fix = f"bellringer pools show {name}"
            yield _hindrance("pool_waits", WARN, f"{runs}, the first for {_seconds(waited)}.", fix, pool)


def _unknown(facts: HealthFacts) -> Iterator[Attention]:
    """Reports tasks that no live worker knows: their runs wait, forever if the name is misspelled."""
    for found in facts.unknown:
        runs = f"{_number(found.runs)} {'run waits' if found.runs == 1 else 'runs wait'}"
        near = get_close_matches(found.task, facts.tasks, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        text = f"No live worker of the pool {found.pool} knows the task {found.task}: {runs}.{hint}"
        yield Attention(
            kind="unknown_task",
            tone=BAD,
            text=text,
            job_id=None if found.job is None else str(found.key.job_id),
            job=found.job,
            run_id=found.key.id,
            pool=found.pool,
            since=found.since,
            fix=f"bellringer why {shlex.quote(found.job or found.key.id)}",
        )


def _pauses(facts: HealthFacts) -> Iterator[Attention]:
    """Reports jobs that were paused because their runs died: nothing runs until someone resumes them."""
    for pause in facts.pauses:
        yield Attention(
            kind="paused_failing",
            tone=BAD,
            text=f"{pause.job} was paused: {pause.reason}.",
            job_id=str(pause.job_id),
            job=pause.job,
            since=pause.since,
            fix=f"bellringer jobs resume {shlex.quote(pause.job)}",
        )


def _orphans(facts: HealthFacts) -> Iterator[Attention]:
    """Reports jobs that fire although the code of their app no longer declares them: one by name, several together."""
    if not facts.orphans:
        return
    first = facts.orphans[0]
    if len(facts.orphans) == 1:
        last = f" since version {first.version}" if first.version else ""
        text = f"{first.job} still fires, but the code of the app {first.app} does not declare it any more{last}."
        yield Attention(
            kind="orphaned",
            tone=WARN,
            text=text,
            job_id=str(first.job_id),
            job=first.job,
            since=first.since,
            fix=f"bellringer why {shlex.quote(first.job)}",
        )
        return
    most = MAX_ATTENTION_ITEMS
    number = f"More than {most}" if len(facts.orphans) > most else str(len(facts.orphans))
    text = f"{number} jobs still fire, but the code of their apps does not declare them any more."
    yield Attention(kind="orphaned", tone=WARN, text=text, since=first.since, fix="bellringer jobs list --orphaned")


def _rest(facts: HealthFacts) -> Iterator[Attention]:
    dead = facts.sums.dead
    if dead:
        letters = f"{_number(dead)} {'dead letter waits' if dead == 1 else 'dead letters wait'}"
        text = f"{letters} to be redriven or discarded."
        yield _hindrance("dead_letters", WARN, text, fix="bellringer dead groups")
    if facts.burn >= 1 and facts.started_late >= MIN_LATE_RUNS:
        text = f"More runs started late in the last {facts.range} than the objective allows."
        yield _hindrance("objective", WARN, text, fix="bellringer objective")


def _troubles(facts: HealthFacts, most: int) -> Iterator[Attention]:
    words = {
        "dead": "gave up",
        "missed": "missed an occurrence",
        "late": "is late",
        "skipping": "skips its occurrences",
    }
    paused = {pause.job_id for pause in facts.pauses}  # these are reported already
    for trouble in [trouble for trouble in facts.troubles if trouble.job_id not in paused][:most]:
        kind, tone = _KINDS[trouble.kind]
        yield Attention(
            kind=kind,
            tone=tone,
            text=f"{trouble.job} {words[trouble.kind]}, and has not succeeded since.",
            job_id=str(trouble.job_id),
            job=trouble.job,
            since=trouble.since,
            fix=f"bellringer why {shlex.quote(trouble.job)}",
        )


def _hindrance(kind: str, tone: str, text: str, fix: str, pool: PoolBacklog | None = None) -> Attention:
    where = {} if pool is None else {"pool": pool.pool}
    return Attention(kind=kind, tone=tone, text=text, fix=fix, since=pool.since if pool else None, **where)


def _jobs(number: int) -> str:
    return f"{_number(number)} job{'' if number == 1 else 's'}"


def _number(number: int) -> str:
    return f"more than {MAX_COUNTED:,}" if number > MAX_COUNTED else f"{number:,}"


def _seconds(seconds: float) -> str:
    return format_duration(round_duration(timedelta(seconds=max(seconds, 1))))
