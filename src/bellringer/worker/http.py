"""The built-in task `http`: calls what a job names, within the guard, and says what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from bellringer.clock import Clock
from bellringer.egress.call import Answer, Failure, Trouble, call
from bellringer.egress.connect import Guard, Lookups
from bellringer.egress.settings import Egress
from bellringer.egress.targets import Target, read_target, result_of, retry_after
from bellringer.errors import BellringerError, InvalidInput
from bellringer.jobs import HTTP
from bellringer.lifecycle.targets import opened, secrets_of
from bellringer.store import egress as rows
from bellringer.store.pool import Store
from bellringer.tasks import Discard, Failed, Registry, Snooze, task_from
from bellringer.telemetry import EGRESS, log
from bellringer.worker.context import Context

_GONE: Final = 410
_SHOWN: Final = 2_000  # signs of a body that an error repeats
_MOMENT: Final = timedelta(milliseconds=50)  # so that a run that waits for a probe does not come before it
# Trouble of the receiver, rather than of the target as it is written.
_SICK: Final = frozenset({Trouble.CONNECT, Trouble.TIMEOUT, Trouble.PROTOCOL, Trouble.RESOLVE})


def registry(store: Store, egress: Egress, clock: Clock) -> Registry:
    """A registry with this one task."""
    tasks = Registry()
    caller = Caller(store, egress, clock)
    tasks.add(task_from(caller.http, name=HTTP, pool=HTTP))
    return tasks


class Caller:
    """Makes the calls of one process; what it remembers between them is in the database."""

    def __init__(self, store: Store, egress: Egress, clock: Clock) -> None:
        self._store = store
        self._egress = egress
        self._clock = clock
        self._lookups = Lookups()

    async def http(self, ctx: Context, **stored: Any) -> Any:
        """Call a URL, as the job's `http` says."""
        endpoint: int | None = stored.pop("endpoint", None)
        if endpoint is not None and not await rows.is_told(self._store, ctx.tenant_id, endpoint):
            return Discard("its webhook endpoint is gone, or switched off")
        target, secrets = await self._read(stored, ctx.tenant_id)
        origin = target.url.origin
        seen = await rows.breaker(self._store, ctx.tenant_id, origin)
        probe_at = None
        if seen is not None and seen.probe_at is not None:
            probe_at = await self._probe(ctx.tenant_id, origin, seen)
            if probe_at is None:
                wait = max(seen.probe_at - seen.now, timedelta(0)) + _MOMENT
                ctx.log.warning("the circuit is open", origin=origin, probe_at=seen.probe_at.isoformat())
                return Snooze(wait)
        now = self._clock.now()
        guard = Guard(self._egress.allowed, target.url.scheme == "https", self._lookups.of(ctx.tenant_id))
        end = await call(target.request(ctx.run_id, now, secrets), guard, self._clock.monotonic)
        EGRESS.labels(end.trouble.value if isinstance(end, Failure) else f"{end.status // 100}xx").inc()
        await self._tell_breaker(ctx.tenant_id, origin, end, probe_at, troubled=seen is not None)
        if isinstance(end, Failure):
            raise Failed(end.trouble.value, end.message, detail={"ms": round(end.seconds * 1000, 1)})
        if endpoint is not None and end.status == _GONE:
            await rows.disable_endpoint(self._store, ctx.tenant_id, endpoint, "the receiver answered 410 Gone")
        return self._judge(target, end, now)

    async def _read(self, stored: Mapping[str, Any], tenant_id: int) -> tuple[Target, Sequence[str]]:
        """The target, checked again: what was allowed when it was stored may be no longer."""
        try:
            target = read_target(opened(self._egress, stored, tenant_id=tenant_id), self._egress.allowed)
            secret = stored.get("secret")
            if not target.sign or not isinstance(secret, Mapping):
                return target, ()
            return target, await secrets_of(self._store, self._egress, str(secret.get("id")), tenant_id=tenant_id)
        except InvalidInput as error:
            code = Trouble.BLOCKED.value if error.code == "url_forbidden_address" else error.code
            EGRESS.labels(code).inc()
            raise Failed(code, str(error)) from None
        except BellringerError as error:
            raise Failed(error.code, str(error)) from None

    async def _probe(self, tenant_id: int, origin: str, seen: rows.Breaker) -> datetime | None:
        if seen.probe_at is None or seen.probe_at > seen.now:
            return None
        return await rows.probe(self._store, tenant_id, origin, seen.probe_at)

    async def _tell_breaker(
        self, tenant_id: int, origin: str, end: Answer | Failure, probe_at: datetime | None, *, troubled: bool
    ) -> None:
        """Healthy receivers cost nothing here: only trouble, and the end of it, is written."""
        if isinstance(end, Failure):
            sick, reason = end.trouble in _SICK, f"{end.trouble.value}: {end.message}"
        else:
            sick, reason = end.status >= 500, f"it answered {end.status}"
        if sick or (isinstance(end, Failure) and probe_at is not None):
            if await rows.failed(self._store, tenant_id, origin, probe_at, reason):
                log.warning("a circuit opened", tenant_id=tenant_id, origin=origin, reason=reason)
        elif troubled and isinstance(end, Answer):
            await rows.worked(self._store, tenant_id, origin, probe_at)

    def _judge(self, target: Target, answer: Answer, now: datetime) -> Any:
        result = result_of(answer)
        if target.is_expected(answer.status):
            return result
        result["body"] = result["body"][:_SHOWN]
        where = f"{target.method} {target.url.origin}"
        if 300 <= answer.status <= 399:
            message = f"{where} answered {answer.status}; redirects are not followed"
            raise Failed("redirect_not_followed", message, detail=result)
        final = "410 Gone: the receiver wants no more" if answer.status == _GONE else None
        message = f"{where} answered {answer.status}"
        raise Failed("HttpStatus", message, after=retry_after(answer, now), final=final, detail=result)
