"""Executes many tasks without a job in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

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
from bellringer.api.endpoints.job_request_bodies import find_warnings, prepare_target, read_delay, read_send
from bellringer.api.http.operation import operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.jobs import HTTP_TASK
from bellringer.core.messages import Message, MessageKind
from bellringer.core.payload import encode_parsed
from bellringer.engine.send import BulkSend, SendOutcome, lock_order
from bellringer.errors import InvalidInput, InvalidItems
from bellringer.store.runs import SendResult
from bellringer.wire.decode import Gathering, instant, read
from bellringer.wire.models import RequestWarning
from bellringer.wire.routes import MOST_SENDS, Routes
from bellringer.wire.runs import BulkSent, ExecuteRequest, SentItem

# The types of the fields that differ between items of one kind.
_OWN_FIELDS: Final = {
    "args": (list,),
    "kwargs": (dict,),
    "payload": (dict,),
    "at": (str,),
    "delay": (str, int, float),
    "key": (str,),
}


@operation(Routes.send_many, role=Role.OPERATOR, query=(ATOMIC_PARAMETER,))
async def send(call: RequestContext) -> Response:
    """Executes up to 10,000 tasks: 202 if all were accepted; with `atomic` false, 207 and an outcome for each."""
    items, atomic = await read_items(call, MOST_SENDS, "items")
    reader = _ItemReader(call)
    messages = await reader.read(items)
    faults = {index: item for index, item in enumerate(messages) if isinstance(item, InvalidInput)}
    if not (faults and atomic):
        await call.count_sends(len(items) - len(faults))
    bulk = BulkSend(call.catalog, lock_order(messages), tenant_id=call.tenant_id, atomic=atomic)
    wakeups = call.service.wakeups
    notify = wakeups is not None and wakeups.may_notify()
    try:
        outcomes = await bulk.write(call.store, notify=notify)
    except InvalidItems as error:
        raise all_faults(error.errors) from None
    sent = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
    if wakeups is not None and not notify:
        for now in {result.now for result in sent}:
            wakeups.announce(now, {result.key.scheduled_for for result in sent if result.created and result.now == now})
    return _response(outcomes, sent, reader.warnings, brief=is_brief(call), atomic=atomic)


class _ItemReader:
    """Reads the items of one request. An item that differs from an earlier one only in its arguments, time and key
    reuses its options, which saves nine tenths of the time to read it.
    """

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        self._kinds: dict[bytes, MessageKind] = {}
        self._known_tasks: dict[tuple[str, str], InvalidInput | None] = {}  # by task and pool: why it is refused
        self.warnings: list[RequestWarning] = []

    async def read(self, items: Sequence[Any]) -> list[Message | InvalidInput]:
        """Returns the messages, and errors in place of invalid items."""
        messages: list[Message | InvalidInput] = []
        for index, item in enumerate(items):
            if index % YIELD_EVERY_ITEMS == YIELD_EVERY_ITEMS - 1:
                await asyncio.sleep(0)
            try:
                messages.append(await self._message(index, item))
            except InvalidInput as error:
                messages.append(error)
        return messages

    async def _message(self, index: int, item: Any) -> Message:
        if not isinstance(item, dict):
            raise InvalidInput("an item must be an object", code="type")
        key = None if self._call.service.payload_codec is not None else _kind_key(item)
        if key is not None and (kind := self._kinds.get(key)) is not None:
            return _own_message(kind, item)
        order = await prepare_target(self._call, await read_send(self._call, read(ExecuteRequest, item)))
        message = order.message()
        await self._check_task(index, message.kind)
        if key is not None and message.task != HTTP_TASK:  # the arguments of an HTTP call hold its encrypted secret
            self._kinds[key] = message.kind
        return message

    async def _check_task(self, index: int, kind: MessageKind) -> None:
        """Raises InvalidInput if the task is unknown and unknown tasks are refused; asks once for each task."""
        known = (kind.task, kind.pool)
        if known not in self._known_tasks:
            self._known_tasks[known] = None
            try:
                self.warnings += await find_warnings(self._call, kind, f"/items/{index}/task")
            except InvalidInput as error:
                self._known_tasks[known] = error
        if (refusal := self._known_tasks[known]) is not None:
            raise refusal


def _kind_key(item: dict[str, Any]) -> bytes | None:
    """Encodes an item without its own fields; None if one of these is invalid by itself or beside another."""
    if ("payload" in item and "kwargs" in item) or ("at" in item and "delay" in item):
        return None
    shared = item.copy()
    for name, types in _OWN_FIELDS.items():
        if name in shared and type(shared.pop(name)) not in types:
            return None
    return msgspec.json.encode(shared)


def _own_message(kind: MessageKind, item: dict[str, Any]) -> Message:
    g = Gathering()
    kwargs = item.get("kwargs", item.get("payload", {}))
    message = Message(
        kind,
        encode_parsed({"args": item.get("args", []), "kwargs": kwargs}),
        g.take("/at", lambda: instant(item.get("at"), what="at"), None),
        g.take("/delay", lambda: read_delay(item.get("delay")), None),
        item.get("key"),
    )
    g.done()
    return message


def _response(
    outcomes: Sequence[SendOutcome],
    sent: Sequence[SendResult],
    warnings: list[RequestWarning],
    *,
    brief: bool,
    atomic: bool,
) -> Response:
    created = sum(result.created for result in sent)
    body = BulkSent(
        created=created,
        existing=len(sent) - created,
        failed=len(outcomes) - len(sent),
        warnings=warnings or UNSET,
    )
    if atomic and brief:
        return reply(msgspec.structs.replace(body, run_ids=[result.key.id for result in sent]), 202)
    items = [_render_item(index, outcome) for index, outcome in enumerate(outcomes)]
    return reply(msgspec.structs.replace(body, items=items), 202 if atomic else 207)


def _render_item(index: int, outcome: SendOutcome) -> SentItem:
    if isinstance(outcome, InvalidInput):
        return SentItem(
            index=index, status=422, code=outcome.code, detail=outcome.message, errors=render_faults(outcome)
        )
    key = outcome.key
    return SentItem(index=index, status=202 if outcome.created else 200, run_id=key.id, scheduled_for=key.scheduled_for)
