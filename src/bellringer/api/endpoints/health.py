"""Health checks, the settings of the server, and the health summary of the overview."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from textwrap import shorten
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import operation
from bellringer.api.http.request import AppState, RequestContext, reply
from bellringer.core.jobs import HTTP_TASK
from bellringer.core.loop_progress import check_health, loops_of_process
from bellringer.durations import format_duration
from bellringer.errors import BellringerError
from bellringer.explain.text import format_count, round_duration
from bellringer.store import leases, migrate
from bellringer.store.connection_pool import DATABASE_ERRORS, Store
from bellringer.store.load import HEARTBEAT_LATE_AFTER
from bellringer.store.overview import (
    MAX_COUNTED,
    FailingPause,
    JobTrouble,
    LateJobs,
    OrphanedJob,
    OverviewCounts,
    PoolBacklog,
    Schedulers,
    TenantSuspension,
    UnknownTask,
)
from bellringer.store.sql_functions import Functions, load_functions
from bellringer.store.task_pauses import TaskPauseRow
from bellringer.wire.models import Count
from bellringer.wire.overview import Attention, OverviewProblem, Readiness, ServerProcess, Settings, Verdict
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
    """Returns the settings of the process that handles the request; of secrets only whether they are set."""
    call.query()
    service = call.service
    process = ServerProcess(host=socket.gethostname(), pid=os.getpid(), roles=list(service.roles))
    return reply(Settings(items=list(service.settings), process=process))


MAX_ATTENTION_ITEMS: Final = 8
MAX_ERROR_LENGTH: Final = 120  # characters of an error in the verdict
FIRING_LATE_SECONDS: Final = 5.0  # how late a shard may fire before it needs attention
MIN_LATE_RUNS: Final = 5  # fewer late runs are not reported
LONG_WAIT_SECONDS: Final = 60.0  # how long ready runs may wait for a free slot
SLOW_ROUND_TRIP_SECONDS: Final = 0.1  # of the database; a tick needs several
BAD_ROUND_TRIP_SECONDS: Final = 1.0
GOOD, WARN, BAD = "good", "warn", "bad"
_KINDS: Final = {
    "dead": ("failing", BAD),
    "missed": ("missed", WARN),
    "late": ("late", WARN),
    "skipping": ("skipping", WARN),
}
# The order of kinds among those of one tone: first what stops everything, then what stops a part, then delays.
_RANKS: Final = {
    kind: rank
    for rank, kind in enumerate(
        (
            "tenant_suspended",
            "no_scheduler",
            "shards_free",
            "loop_stalled",
            "database_slow",
            "no_workers",
            "no_worker",
            "stranded",
            "unknown_task",
            "paused_failing",
            "failing",
            "firing_late",
            "pool_waits",
            "workers_silent",
            "missed",
            "late",
            "skipping",
            "task_paused",
            "pool_paused",
            "objective",
            "dead_letters",
            "orphaned",
            "waits_for",
        )
    )
}
# The page of the console that shows the things of a kind.
_LINKS: Final = {
    "tenant_suspended": "tenants",
    "no_scheduler": "cluster",
    "shards_free": "cluster",
    "loop_stalled": "cluster",
    "database_slow": "cluster",
    "firing_late": "cluster",
    "waits_for": "cluster",
    "no_workers": "workers",
    "no_worker": "workers",
    "pool_waits": "workers",
    "pool_paused": "workers",
    "workers_silent": "workers",
    "task_paused": "workers",
    "stranded": "runs?state=running",
    "unknown_task": "runs?state=queued",
    "paused_failing": "jobs?state=paused",
    "failing": "jobs?state=failing",
    "missed": "jobs?state=late",
    "late": "jobs?state=late",
    "skipping": "jobs?state=late",
    "dead_letters": "dead-letters",
    "orphaned": "jobs?orphaned=true",
}
# What several items of a kind have in common.
_SUMMARIES: Final = {
    "no_worker": "Runs wait in {} pools that no worker serves.",
    "pool_waits": "Runs have waited for more than a minute in {} pools.",
    "pool_paused": "Runs wait in {} paused pools.",
    "unknown_task": "Runs wait for {} tasks that no live worker of their pool knows.",
    "paused_failing": "{} jobs were paused because their runs failed.",
    "loop_stalled": "{} background loops of the server have stalled.",
    "task_paused": "{} tasks are paused.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """The facts that a verdict is derived from. `started_late` and `burn` are of the range; with a burn of 1 the error
    budget lasts exactly as long as its period.
    """

    sums: OverviewCounts
    schedulers: Schedulers
    pools: Sequence[PoolBacklog]
    troubles: Sequence[JobTrouble]
    late: LateJobs
    burn: float
    started_late: int  # with missed occurrences
    range: str
    missed: int = 0  # the missed occurrences of started_late
    unknown: Sequence[UnknownTask] = ()
    tasks: Sequence[str] = ()  # the tasks that live workers know
    pauses: Sequence[FailingPause] = ()
    orphans: Sequence[OrphanedJob] = ()
    suspension: TenantSuspension | None = None
    paused_tasks: Sequence[TaskPauseRow] = ()
    stranded: int = 0
    silent_claims: int = 0
    needs_workers: bool = False  # some active job runs in a pool that only workers serve
    round_trip: float = 0.0  # seconds, to the database
    stalled_loops: Sequence[str] = ()


def attention(facts: HealthFacts) -> list[Attention]:
    """Returns what needs attention, the worst first; each source has a limited number of items."""
    found = _hindrances(facts)[: MAX_ATTENTION_ITEMS - bool(facts.troubles)]
    found += _troubles(facts, MAX_ATTENTION_ITEMS - len(found))
    return sorted(found, key=lambda item: item.tone != BAD)


def verdict(facts: HealthFacts) -> Verdict:
    """Returns all problems, the worst first, and a sentence that names the worst and counts the others."""
    found, sums = problems(facts), facts.sums
    if found:
        return Verdict(tone=found[0].tone, text=_headline(found), problems=found)
    if not sums.jobs:
        return Verdict(tone=GOOD, text="There are no jobs yet.", problems=[])
    paused = f", {_number(sums.paused)} of them paused" if sums.paused else ""
    text = f"All is well: {_jobs(sums.jobs)}{paused}, and nothing is late or failing."
    return Verdict(tone=GOOD, text=text, problems=[])


def _headline(found: Sequence[OverviewProblem]) -> str:
    others = len(found) - 1
    if not others:
        return found[0].text
    more = "1 more problem needs" if others == 1 else f"{others} more problems need"
    worst = found[0].text
    return f"{worst} {more} attention." if worst.endswith("?") else f"{worst.rstrip('.')}; {more} attention."


def problems(facts: HealthFacts) -> list[OverviewProblem]:
    """Returns one problem of each kind, the worst first."""
    groups: dict[str, list[Attention]] = {}
    for item in _hindrances(facts):
        groups.setdefault(item.kind, []).append(item)
    found = [_problem(items, _count_affected(facts, kind, items)) for kind, items in groups.items()]
    return sorted([*found, *_job_problems(facts)], key=_severity)


def _severity(item: Attention | OverviewProblem) -> tuple[bool, int]:
    return (item.tone != BAD, _RANKS[item.kind])


def _problem(items: Sequence[Attention], count: Count) -> OverviewProblem:
    first = items[0]
    several = len(items) > 1
    return OverviewProblem(
        kind=first.kind,
        tone=min((item.tone for item in items), key=lambda tone: tone != BAD),
        text=_SUMMARIES[first.kind].format(len(items)) if several else first.text,
        count=count,
        link=_LINKS.get(first.kind) if several else _link(first),
        fix="" if several else first.fix,
    )


def _link(item: Attention) -> str | None:
    if item.job_id is not None:
        return f"jobs/{item.job_id}"
    if item.run_id is not None:
        return f"runs/{item.run_id}"
    return f"workers?pool={quote(item.pool, safe='')}" if item.pool is not None else _LINKS.get(item.kind)


def _count_affected(facts: HealthFacts, kind: str, items: Sequence[Attention]) -> Count:
    """Returns how many things a problem concerns: runs, jobs or dead letters, else the items themselves."""
    if kind == "orphaned":  # one item stands for all, of which the first are read
        return _bounded(len(facts.orphans), MAX_ATTENTION_ITEMS)
    counts = {
        "dead_letters": facts.sums.dead,
        "stranded": facts.stranded,
        "workers_silent": facts.silent_claims,
        "shards_free": facts.schedulers.total - facts.schedulers.held,
        "unknown_task": sum(task.runs for task in facts.unknown),
        "objective": facts.started_late,
    }
    return _bounded(counts.get(kind, len(items)))


def _bounded(number: int, most: int = MAX_COUNTED) -> Count:
    return Count(value=min(number, most), relation="gte" if number > most else "eq")


def _job_problems(facts: HealthFacts) -> Iterator[OverviewProblem]:
    paused = {pause.job_id for pause in facts.pauses}  # these are a problem of their own
    counts = {
        "failing": facts.sums.failing - len({job.job_id for job in facts.troubles if job.job_id in paused}),
        "missed": facts.late.missed,
        "late": facts.late.late,
        "skipping": facts.late.skipping,
    }
    words = {
        "failing": ("is failing", "are failing"),
        "missed": ("missed an occurrence", "missed occurrences"),
        "late": ("is late", "are late"),
        "skipping": ("skips its occurrences", "skip their occurrences"),
    }
    for kind, count in counts.items():
        items = [item for item in _troubles(facts, len(facts.troubles)) if item.kind == kind]
        if count == len(items) == 1:
            text = items[0].text if items[0].error is None else f"{items[0].text[:-1]}: {_first_line(items[0].error)}"
            yield OverviewProblem(
                kind=kind, tone=items[0].tone, text=text, count=_bounded(1), link=_link(items[0]), fix=items[0].fix
            )
        elif count > 0:
            text = f"{_jobs(count)} {words[kind][count > 1]}."
            tone = BAD if kind == "failing" else WARN
            link, fix = _LINKS[kind], f"bellringer jobs list --state {'failing' if kind == 'failing' else 'late'}"
            yield OverviewProblem(kind=kind, tone=tone, text=text, count=_bounded(count), link=link, fix=fix)


def _hindrances(facts: HealthFacts) -> list[Attention]:
    """Returns what is wrong beside jobs that fail or are late, the worst first."""
    found = (
        *_suspension(facts),
        *_schedulers(facts),
        *_server(facts),
        *_workers(facts),
        *_pools(facts),
        *_held(facts),
        *_unknown(facts),
        *_pauses(facts),
        *_task_pauses(facts),
        *_rest(facts),
        *_orphans(facts),
    )
    return sorted(found, key=_severity)


def _suspension(facts: HealthFacts) -> Iterator[Attention]:
    if facts.suspension is not None:
        name = facts.suspension.tenant
        yield Attention(
            kind="tenant_suspended",
            tone=BAD,
            text=f"The tenant “{name}” is suspended: none of its jobs run.",
            since=facts.suspension.since,
            fix=f"bellringer tenants unsuspend {shlex.quote(name)}",
        )


def _server(facts: HealthFacts) -> Iterator[Attention]:
    """Reports what this server finds out about itself: loops that hang, and a slow database."""
    for loop in facts.stalled_loops:
        yield _hindrance("loop_stalled", BAD, f"The background loop “{loop}” of the server has stalled.", fix="")
    if facts.round_trip > SLOW_ROUND_TRIP_SECONDS:
        tone = BAD if facts.round_trip > BAD_ROUND_TRIP_SECONDS else WARN
        took, normal = (f"{round(seconds * 1000):,} ms" for seconds in (facts.round_trip, SLOW_ROUND_TRIP_SECONDS))
        text = f"The database is slow: {took} per round trip; up to {normal} is normal."
        yield _hindrance("database_slow", tone, text, fix="bellringer doctor")


def _no_workers(facts: HealthFacts) -> bool:
    """Whether no worker is connected at all; each server executes HTTP jobs itself."""
    return not any(pool.workers for pool in facts.pools if pool.pool != HTTP_TASK)


def _workers(facts: HealthFacts) -> Iterator[Attention]:
    waiting = [pool for pool in facts.pools if pool.ready and not pool.paused and pool.pool != HTTP_TASK]
    if not _no_workers(facts) or not (waiting or facts.needs_workers):
        return
    if not waiting:
        text, fix = "No task worker is connected: only HTTP jobs can run.", "bellringer worker APP"
    elif len(waiting) == 1:
        text = f"No task worker is connected: {_waiting_runs(waiting[0].ready)} in pool “{waiting[0].pool}”."
        fix = f"bellringer worker APP --pool {shlex.quote(waiting[0].pool)}=10"
    else:
        ready = sum(pool.ready for pool in waiting)
        text, fix = (
            f"No task worker is connected: {_waiting_runs(ready)} in {len(waiting)} pools.",
            "bellringer worker APP",
        )
    since = min((pool.since for pool in waiting if pool.since), default=None)
    yield Attention(kind="no_workers", tone=BAD, text=text, since=since, fix=fix)


def _waiting_runs(number: int) -> str:
    return f"{_number(number)} {'run is' if number == 1 else 'runs are'} waiting"


def _held(facts: HealthFacts) -> Iterator[Attention]:
    if facts.stranded:
        runs = f"{_number(facts.stranded)} {'run is' if facts.stranded == 1 else 'runs are'}"
        text = f"{runs} claimed, but no live worker executes {'it' if facts.stranded == 1 else 'them'}."
        yield _hindrance("stranded", BAD, text, fix="bellringer events list --kind stranded")
    elif facts.silent_claims:
        runs = "1 run is" if facts.silent_claims == 1 else f"{_number(facts.silent_claims)} runs are"
        seconds = round(HEARTBEAT_LATE_AFTER.total_seconds())
        text = f"{runs} held by workers that have sent no heartbeat for {seconds} seconds."
        yield _hindrance("workers_silent", WARN, text, fix="bellringer workers list")


def _task_pauses(facts: HealthFacts) -> Iterator[Attention]:
    for pause in facts.paused_tasks:
        why = f" ({pause.reason})" if pause.reason else ""
        yield Attention(
            kind="task_paused",
            tone=WARN,
            text=f"Task “{pause.name}” is paused{why}: its runs wait.",
            since=pause.paused_at,
            fix=f"bellringer tasks resume {shlex.quote(pause.name)}",
        )


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
        runs = f"{_waiting_runs(pool.ready)} in pool “{pool.pool}”"
        name = shlex.quote(pool.pool)
        waited = (facts.sums.now - pool.since).total_seconds() if pool.since else 0
        if pool.paused:
            fix = f"bellringer pools resume {name}"
            yield _hindrance("pool_paused", WARN, f"{runs}, which is paused.", fix, pool)
        elif not pool.workers and pool.pool != HTTP_TASK and _no_workers(facts):
            continue  # reported for all pools together
        elif not pool.workers:
            fix = f"bellringer worker APP --pool {name}=10"
            yield _hindrance("no_worker", BAD, f"{runs}, and no worker serves it.", fix, pool)
        elif waited > LONG_WAIT_SECONDS:
            fix = f"bellringer pools show {name}"
            text = f"Pool “{pool.pool}” is behind: {_waiting_runs(pool.ready)}, the first for {_seconds(waited)}."
            yield _hindrance("pool_waits", WARN, text, fix, pool)


def _unknown(facts: HealthFacts) -> Iterator[Attention]:
    """Reports tasks that no live worker knows: their runs wait, forever if the name is misspelled."""
    for found in facts.unknown:
        runs = _waiting_runs(found.runs)
        near = get_close_matches(found.task, facts.tasks, n=1)
        hint = f" Did you mean “{near[0]}”?" if near else ""
        text = f"No live worker in pool “{found.pool}” knows the task “{found.task}”: {runs}.{hint}"
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
            text=f"Job “{pause.job}” was paused: {pause.reason}.",
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
        text = f"Job “{first.job}” still fires, but the code of the app “{first.app}” no longer declares it."
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
    text = f"{number} jobs still fire, but the code of their apps no longer declares them."
    yield Attention(kind="orphaned", tone=WARN, text=text, since=first.since, fix="bellringer jobs list --orphaned")


def _rest(facts: HealthFacts) -> Iterator[Attention]:
    dead = facts.sums.dead
    if dead:
        letters = f"{_number(dead)} {'dead letter is' if dead == 1 else 'dead letters are'}"
        text = f"{letters} waiting to be retried or discarded."
        yield _hindrance("dead_letters", WARN, text, fix="bellringer dead groups")
    if facts.burn >= 1 and facts.started_late >= MIN_LATE_RUNS:
        text = f"{_describe_late(facts)} in the last {facts.range}: more than the objective allows."
        yield _hindrance("objective", WARN, text, fix="bellringer objective")


def _describe_late(facts: HealthFacts) -> str:
    runs, missed = facts.started_late - facts.missed, facts.missed
    late = f"{_number(runs)} run{'' if runs == 1 else 's'} started late" if runs or not missed else ""
    gaps = f"{_number(missed)} occurrence{' was' if missed == 1 else 's were'} missed" if missed else ""
    return " and ".join(part for part in (late, gaps) if part)


def _troubles(facts: HealthFacts, most: int) -> Iterator[Attention]:
    words = {
        "dead": "is failing",
        "missed": "missed an occurrence, and has not succeeded since",
        "late": "is late, and has not succeeded since",
        "skipping": "skips its occurrences, and has not succeeded since",
    }
    paused = {pause.job_id for pause in facts.pauses}  # these are reported already
    for trouble in [trouble for trouble in facts.troubles if trouble.job_id not in paused][:most]:
        kind, tone = _KINDS[trouble.kind]
        yield Attention(
            kind=kind,
            tone=tone,
            text=f"Job “{trouble.job}” {words[trouble.kind]}.",
            job_id=str(trouble.job_id),
            job=trouble.job,
            since=trouble.since,
            fix=f"bellringer why {shlex.quote(trouble.job)}",
            error=trouble.error,
        )


def _first_line(error: str) -> str:
    """Returns the first line of an error, shortened at a word."""
    return shorten(error.partition("\n")[0], MAX_ERROR_LENGTH, placeholder=" …")


def _hindrance(kind: str, tone: str, text: str, fix: str, pool: PoolBacklog | None = None) -> Attention:
    where = {} if pool is None else {"pool": pool.pool}
    return Attention(kind=kind, tone=tone, text=text, fix=fix, since=pool.since if pool else None, **where)


def _jobs(number: int) -> str:
    return f"{_number(number)} job{'' if number == 1 else 's'}"


def _number(number: int) -> str:
    return f"more than {MAX_COUNTED:,}" if number > MAX_COUNTED else f"{number:,}"


def _seconds(seconds: float) -> str:
    return format_duration(round_duration(timedelta(seconds=max(seconds, 1))))
