"""Creates many jobs in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.bulk_requests import (
    ATOMIC_PARAMETER,
    YIELD_EVERY_ITEMS,
    all_faults,
    is_brief,
    read_items,
    render_faults,
)
from bellringer.api.endpoints.job_request_bodies import find_warnings, prepare_target, read_definition
from bellringer.api.http.operation import operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.api.render import documents
from bellringer.core.jobs import HTTP_TASK, Definition
from bellringer.engine import register
from bellringer.engine.register import RegisteredJob
from bellringer.errors import InvalidInput
from bellringer.store.wakeups import COHORTS_CHANNEL
from bellringer.wire.jobs import BulkCreated, BulkItem
from bellringer.wire.models import RequestWarning
from bellringer.wire.routes import MOST_JOBS, Routes


@operation(Routes.create_jobs, role=Role.EDITOR, query=(ATOMIC_PARAMETER,))
async def create(call: RequestContext) -> Response:
    """Creates up to 10,000 jobs: 201 if all were created; with `atomic` false, 207 and an outcome for each."""
    items, atomic = await read_items(call, MOST_JOBS, "jobs")
    reader = _ItemReader(call)
    definitions, faults = await reader.read(items)
    if faults and atomic:
        raise all_faults(faults)
    outcomes = await register.create_many(
        call.store,
        call.catalog,
        definitions,
        tenant_id=call.tenant_id,
        who=call.who,
        now=await call.service.read_cache.now(),
        atomic=atomic,
        templates=reader.templates,
    )
    refused = {index: outcome for index, outcome in outcomes.items() if isinstance(outcome, InvalidInput)}
    if refused and atomic:
        raise all_faults(refused)
    await call.service.wake(COHORTS_CHANNEL)
    return _response(len(items), {**outcomes, **faults}, reader.warnings, brief=is_brief(call), atomic=atomic)


class _ItemReader:
    """Reads the items of one request. An item that differs from an earlier one only in name and arguments reuses its
    definition, which saves the parsing of each item, most of a bulk request's Python time (`bellringer bench api`).
    """

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        self._first_of_template: dict[bytes, tuple[int, Definition]] = {}
        self._known_tasks: dict[tuple[str, str], InvalidInput | None] = {}  # by task and pool: why it is refused
        self.templates: dict[int, int] = {}  # the index of the first item with the same template
        self.warnings: list[RequestWarning] = []

    async def read(self, items: Sequence[Any]) -> tuple[dict[int, Definition], dict[int, InvalidInput]]:
        """Returns the definitions, and the errors of items that have none, by the index of the item."""
        definitions: dict[int, Definition] = {}
        faults: dict[int, InvalidInput] = {}
        for index, item in enumerate(items):
            if index % YIELD_EVERY_ITEMS == YIELD_EVERY_ITEMS - 1:
                await asyncio.sleep(0)
            try:
                definition = await self._definition(index, item)
                await self._check_task(index, definition)
            except InvalidInput as error:
                faults[index] = error
            else:
                definitions[index] = definition
        return definitions, faults

    async def _definition(self, index: int, item: Any) -> Definition:
        key = _template_key(item)
        if key in self._first_of_template:
            self.templates[index], first = self._first_of_template[key]
            kwargs = item.get("kwargs", item.get("payload", {}))
            return replace(first, name=item["name"], args=item.get("args", []), kwargs=kwargs)
        await asyncio.sleep(0)
        definition = await prepare_target(self._call, await read_definition(self._call, item))
        self.templates[index] = index
        if key is not None and definition.task != HTTP_TASK:  # the arguments of an HTTP job hold its encrypted secret
            self._first_of_template[key] = (index, definition)
        return definition

    async def _check_task(self, index: int, definition: Definition) -> None:
        """Raises InvalidInput if the task is unknown and unknown tasks are refused; asks once for each task."""
        known = (definition.task, definition.pool)
        if known not in self._known_tasks:
            self._known_tasks[known] = None
            try:
                self.warnings += await find_warnings(self._call, definition, f"/items/{index}/task")
            except InvalidInput as error:
                self._known_tasks[known] = error
        if (refusal := self._known_tasks[known]) is not None:
            raise refusal


def _template_key(item: Any) -> bytes | None:
    """Encodes an item without its name and arguments; None if these have a wrong type, or are given twice."""
    if type(item) is not dict or ("payload" in item and "kwargs" in item):
        return None
    template = item.copy()
    name, args = template.pop("name", None), template.pop("args", [])
    kwargs = template.pop("kwargs", template.pop("payload", {}))
    if type(name) is not str or type(args) is not list or type(kwargs) is not dict:
        return None
    return msgspec.json.encode(template)


def _response(
    count: int,
    outcomes: Mapping[int, RegisteredJob | InvalidInput],
    warnings: list[RequestWarning],
    *,
    brief: bool,
    atomic: bool,
) -> Response:
    created = sum(isinstance(outcome, RegisteredJob) for outcome in outcomes.values())
    body = BulkCreated(created=created, failed=count - created, warnings=warnings or UNSET)
    if atomic and brief:
        ids = [outcomes[index].job_id for index in range(count)]  # type: ignore[union-attr] # all were created
        return reply(msgspec.structs.replace(body, job_ids=ids), 201)
    items = [_render_item(index, outcomes[index], brief=brief) for index in range(count)]
    return reply(msgspec.structs.replace(body, items=items), 201 if atomic else 207)


def _render_item(index: int, outcome: RegisteredJob | InvalidInput, *, brief: bool) -> BulkItem:
    if isinstance(outcome, RegisteredJob):
        job = UNSET if brief else documents.render_job(outcome.new_job_row())
        return BulkItem(index=index, status=201, job_id=str(outcome.job_id), job=job)
    status, faults = 409 if outcome.code == "name_taken" else 422, render_faults(outcome)
    return BulkItem(index=index, status=status, code=outcome.code, detail=outcome.message, errors=faults)
