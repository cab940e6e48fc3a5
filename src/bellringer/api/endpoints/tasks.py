"""Tasks: the handlers that workers have registered, and their pauses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.cluster import NameMark
from bellringer.api.endpoints.job_request_bodies import read_until
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.api.render import documents
from bellringer.engine import pause_task
from bellringer.errors import NotFound
from bellringer.store import task_pauses
from bellringer.store import tasks as task_store
from bellringer.store.task_pauses import TaskLoad, TaskPauseRow
from bellringer.store.tasks import TaskRow
from bellringer.store.wakeups import WORK_CHANNEL
from bellringer.wire.decode import Gathering, note
from bellringer.wire.routes import Routes
from bellringer.wire.workers import (
    Knower,
    TaskInfo,
    TaskItem,
    TaskPage,
    TaskPause,
    TaskPauseRequest,
    TaskResumeRequest,
    rate_of,
)


@operation(Routes.tasks, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def tasks(call: RequestContext) -> Response:
    """Lists the tasks that workers have registered, by name, with the load and the pauses of the tenant."""
    call.query()
    limit, mark = call.limit(), call.cursor("tasks", NameMark)
    after = mark.name if mark else ""
    found = await task_store.list_tasks(call.service.store, after, limit + 1, tenant_id=call.tenant_id)
    following = call.cursor_to("tasks", NameMark(found[limit - 1].name)) if len(found) > limit else None
    pauses, loads = await _state(call)
    now = await call.store.now()
    items = [_item(row, pauses.get(row.task_id), loads.get(row.task_id), now) for row in found[:limit]]
    return reply(TaskPage(items=items, next_cursor=following))


@operation(Routes.task, role=Role.VIEWER)
async def task(call: RequestContext) -> Response:
    """Returns a task with the JSON Schema of its arguments, and the workers that know it."""
    call.query()
    name = call.part("name")
    found = None if "\0" in name else await task_store.get_task(call.service.store, name)
    if found is None:
        raise NotFound("there is no such task")
    pauses, loads = await _state(call)
    item = _item(found, pauses.get(found.task_id), loads.get(found.task_id), await call.store.now())
    return reply(
        TaskInfo(
            **{name: getattr(item, name) for name in TaskItem.__struct_fields__},
            schema=dict(found.schema),
            known_by=[
                Knower(worker_id=number, name=documents.worker_name(number, name, call.caller))
                for number, name in found.who
            ],
        )
    )


@operation(Routes.pause_task, role=Role.OPERATOR)
async def pause(call: RequestContext) -> Response:
    """Pauses a task for the tenant: no run of it starts, scheduled, sent or retried; running ones finish."""
    request = await call.body(TaskPauseRequest)
    reason = note(request.reason, what="reason")
    until = None if request.until is None else read_until(request.until, await call.store.now())
    name = call.part("name")
    task_id = await pause_task.pause(
        call.store, name, tenant_id=call.tenant_id, who=call.who, reason=reason, until=until
    )
    return await _reply(call, name, task_id)


@operation(Routes.resume_task, role=Role.OPERATOR, problems=(409,))
async def resume(call: RequestContext) -> Response:
    """Resumes a task. With `rate`, the runs that the pause has held are released gradually, the oldest first."""
    request = await call.body(TaskResumeRequest)
    g = Gathering()
    rate = g.take("/rate", lambda: rate_of(request), None)
    g.done()
    name = call.part("name")
    task_id = await pause_task.resume(call.store, name, tenant_id=call.tenant_id, who=call.who, rate=rate)
    await call.service.wake(WORK_CHANNEL, (await call.store.now()).isoformat())
    return await _reply(call, name, task_id)


async def _reply(call: RequestContext, name: str, task_id: int) -> Response:
    found = await task_store.get_task(call.service.store, name, task_id)
    assert found is not None, "tasks are never deleted while they are in use"
    pauses, loads = await _state(call)
    return reply(_item(found, pauses.get(task_id), loads.get(task_id), await call.store.now()))


async def _state(call: RequestContext) -> tuple[Mapping[int, TaskPauseRow], Mapping[int, TaskLoad]]:
    return (
        await task_pauses.list_pauses(call.store, call.tenant_id),
        await task_pauses.load_tasks(call.store, call.tenant_id),
    )


def _item(row: TaskRow, pause: TaskPauseRow | None, load: TaskLoad | None, now: datetime) -> TaskItem:
    load = load or TaskLoad(task_id=row.task_id)
    oldest = None if load.oldest is None else max((now - load.oldest).total_seconds(), 0.0)
    return TaskItem(
        name=row.name,
        doc=row.doc,
        defaults=dict(row.defaults),
        workers=row.workers,
        paused=None if pause is None else _pause(pause),
        ready=load.ready,
        retrying=load.retrying,
        running=load.running,
        held=load.held,
        dead=load.dead,
        oldest=oldest,
    )


def _pause(row: TaskPauseRow) -> TaskPause:
    return TaskPause(
        at=row.paused_at,
        by=row.paused_by,
        reason=row.reason,
        until=row.until_at,
        resumed_at=row.resumed_at,
        rate=row.release_rate,
    )
