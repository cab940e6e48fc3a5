"""HTTP targets in what callers ask for: checked, and with their secrets sealed, before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from bellringer.api.calls import Call
from bellringer.jobs import HTTP, Definition
from bellringer.lifecycle import targets
from bellringer.lifecycle.send import Order

D = TypeVar("D", Definition, Order)


async def prepared(call: Call, wanted: D, before: Mapping[str, Any] | None = None) -> D:
    """The same, with its target as it is stored; `before` is the target that the job had."""
    if wanted.task != HTTP:
        return wanted
    until = (wanted.at or await call.store.now()) if isinstance(wanted, Order) else None
    stored = await targets.prepare(
        call.store,
        call.service.egress,
        wanted.kwargs,
        tenant_id=call.tenant_id,
        before=before,
        needed_until=until,
    )
    return replace(wanted, kwargs=stored)


async def renewed(call: Call, wanted: Definition, before: Mapping[str, Any] | None) -> None:
    """After the change of a job to what is `wanted`: the secret that it brought holds from now on."""
    if wanted.task == HTTP and before is not None:
        await targets.renew(call.store, call.service.egress, wanted.kwargs, before, tenant_id=call.tenant_id)
