"""What all tenants share: tasks that workers know, pools, and workers that are asked to be quiet or to stop."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, reply
from bellringer.api.operations import CURSOR, LIMIT, operation
from bellringer.durations import format_duration
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.jobs import HTTP, check_name
from bellringer.store import installation, workers
from bellringer.store.installation import PoolSettings
from bellringer.store.wakeups import WORK
from bellringer.wire import Empty, Worker, duration, note
from bellringer.wire.definitions import LONGEST_TIMEOUT, SHORTEST_TIMEOUT
from bellringer.wire.installation import (
    Knower,
    Pool,
    PoolPage,
    PoolPause,
    PoolRequest,
    Task,
    TaskItem,
    TaskPage,
    concurrency_of,
    rate_of,
)
from bellringer.wire.reading import Gathering

LONGEST: Final = 1000  # characters of a description
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


class NameMark(msgspec.Struct, frozen=True, array_like=True):
    """The last of a page, by its name."""

    name: str


@operation("tasks", role=Role.VIEWER, answers={200: TaskPage}, query=(LIMIT, CURSOR))
async def tasks(call: Call) -> Response:
    """Tasks that workers have told of, by their names."""
    call.query()
    limit, mark = call.limit(), call.cursor("tasks", NameMark)
    found = await installation.tasks(call.service.store, mark.name if mark else "", limit + 1)
    following = call.cursor_to("tasks", NameMark(found[limit - 1].name)) if len(found) > limit else None
    items = [TaskItem(name=t.name, doc=t.doc, defaults=dict(t.defaults), workers=t.workers) for t in found[:limit]]
    return reply(TaskPage(items=items, next_cursor=following))


@operation("tasks", role=Role.VIEWER, answers={200: Task})
async def task(call: Call) -> Response:
    """A task with the JSON Schema of its arguments, and who knows it."""
    call.query()
    found = await installation.task(call.service.store, _text(call.part("name")))
    if found is None:
        raise NotFound("there is no such task")
    return reply(
        Task(
            name=found.name,
            doc=found.doc,
            defaults=dict(found.defaults),
            workers=found.workers,
            schema=dict(found.schema),
            known_by=[Knower(worker_id=number, name=name) for number, name in found.who],
        )
    )


@operation("pools", role=Role.VIEWER, answers={200: PoolPage}, query=(LIMIT, CURSOR))
async def pools(call: Call) -> Response:
    """Pools by their names: who works for them, and what waits in them."""
    call.query()
    limit, mark = call.limit(), call.cursor("pools", NameMark)
    after, everywhere = mark.name if mark else "", call.caller.everywhere
    found = await installation.pools(call.service.store, after, limit + 1, everywhere=everywhere)
    following = call.cursor_to("pools", NameMark(found[limit - 1].name)) if len(found) > limit else None
    return reply(PoolPage(items=[_pool(p) for p in found[:limit]], next_cursor=following))


@operation("pools", role=Role.VIEWER, answers={200: Pool})
async def pool(call: Call) -> Response:
    """A pool: who works for it, and what waits in it."""
    call.query()
    return reply(await _found(call, _text(call.part("name"))))


@operation("pools", role=Role.ADMIN, everywhere=True, answers={200: Pool}, body=PoolRequest)
async def put_pool(call: Call) -> Response:
    """Make a pool what is given; while it is paused nothing of it starts, and what runs goes on.

    Its bounds hold for all workers together. What is left out is taken away.
    """
    request = await call.body(PoolRequest)
    name = check_name(call.part("name"), what="pool")
    await installation.keep_pool(call.service.store, name, _settings(request), who=call.who)
    if not request.paused:
        await call.service.wake(WORK, (await call.service.store.now()).isoformat())  # what the pause held
    return reply(await _found(call, name))


def _settings(request: PoolRequest) -> PoolSettings:
    g = Gathering()
    if len(request.description) > LONGEST:
        text = f"description has more than {LONGEST} characters"
        g.add(InvalidInput(text, pointer="/description", code="limit"))
    bounds = {"least": SHORTEST_TIMEOUT, "most": LONGEST_TIMEOUT}
    wanted = PoolSettings(
        description=request.description,
        paused=request.paused,
        reason=g.take("/reason", lambda: note(request.reason, what="reason"), None),
        concurrency=g.take("/concurrency", lambda: concurrency_of(request), None),
        rate=g.take("/rate", lambda: rate_of(request), None),
        timeout=g.take("/timeout", lambda: duration(request.timeout, what="timeout", **bounds), None),
    )
    g.done()
    return wanted


async def _found(call: Call, name: str) -> Pool:
    stored = await installation.pool(call.service.store, name, everywhere=call.caller.everywhere)
    if stored is None:
        raise NotFound("there is no such pool")
    return _pool(stored)


def _pool(stored: installation.PoolRow) -> Pool:
    made = {"paused", "timeout"}
    values: dict[str, Any] = {field: getattr(stored, field) for field in Pool.__struct_fields__ if field not in made}
    timeout = format_duration(stored.timeout) if stored.timeout else None
    pause = None
    if stored.paused_at is not None:
        pause = PoolPause(at=stored.paused_at, by=stored.paused_by, reason=stored.paused_reason)
    return Pool(**values, timeout=timeout, paused=pause)


@operation("workers", role=Role.VIEWER, answers={200: Worker})
async def worker(call: Call) -> Response:
    """A worker by its number."""
    call.query()
    return await _worker(call, _number(call))


@operation("workers", role=Role.OPERATOR, everywhere=True, answers={202: Worker}, body=Empty, optional=True)
async def quiet(call: Call) -> Response:
    """Let a worker finish what it runs, and claim no more; it hears so within seconds."""
    return await _ask(call, "quiet")


@operation("workers", role=Role.OPERATOR, everywhere=True, answers={202: Worker}, body=Empty, optional=True)
async def stop(call: Call) -> Response:
    """Let a worker finish what it runs within its grace, give back the rest, and end; it hears so within seconds."""
    return await _ask(call, "stop")


async def _ask(call: Call, what: str) -> Response:
    await call.body(Empty)
    number = _number(call)
    stored = await workers.get(call.service.store, number)
    if stored is None:
        raise _no_worker()
    if what == "stop" and set(stored.pools) == {HTTP}:
        raise Conflict("this worker is a part of a server", hint="stop the server, or let the worker be quiet")
    if not await workers.ask(call.service.store, number, what):
        raise Conflict("this worker is not there any more")
    return await _worker(call, number, 202)


async def _worker(call: Call, number: int, status: int = 200) -> Response:
    stored = await workers.get(call.service.store, number)
    if stored is None:
        raise _no_worker()
    return reply(documents.worker(stored, call.caller), status)


def _number(call: Call) -> int:
    text = call.part("id")
    if not _NUMBER.fullmatch(text):
        raise _no_worker()
    return int(text)


def _no_worker() -> NotFound:
    return NotFound("there is no such worker")


def _text(name: str) -> str:
    """What no column can hold is not there."""
    return "" if "\0" in name else name
