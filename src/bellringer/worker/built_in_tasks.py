"""The built-in tasks: `http` calls a URL, `bellringer.notify` delivers a notification; the others are of workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from bellringer import tracing
from bellringer.clock import Clock
from bellringer.core.jobs import GATHER_TASK, HTTP_TASK, NOTIFY_TASK, SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK
from bellringer.core.notifications import NotificationMessage
from bellringer.core.tasks import Discard, Failed, Opened, Registry, Snooze, Task, make_task
from bellringer.egress.guarded_connect import EgressGuard, HostResolver
from bellringer.egress.http_call import CallFailure, CallFailureKind, HttpResponse, send_request
from bellringer.egress.mail import MailRefused, MailSettings, render_mail, send_mail
from bellringer.egress.notification_payloads import (
    PAGERDUTY_URL,
    pagerduty_payload,
    slack_payload,
    teams_payload,
    webhook_payload,
)
from bellringer.egress.settings import Egress
from bellringer.egress.target_secrets import open_target
from bellringer.egress.targets import CallingRun, HttpTarget, parse_retry_after, parse_target, response_result
from bellringer.engine.http_targets import open_secrets
from bellringer.errors import BellringerError, InvalidInput
from bellringer.store import egress as rows
from bellringer.store import notifications
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import TaskDescription
from bellringer.store.notifications import ChannelRow
from bellringer.telemetry import EGRESS, log
from bellringer.worker.context import Context

_NO_DEFAULT: Final = object()
_HTTP_GONE: Final = 410
_RETRIED_STATUSES: Final = frozenset({408, 425, 429})  # of the client errors, for notifications
_MAX_ERROR_BODY_LENGTH: Final = 2_000  # characters of a response body stored with an error
_PROBE_MARGIN: Final = timedelta(milliseconds=50)  # a run that waits for an open circuit must not come before the probe
# Failures caused by the receiver rather than by the target's definition.
_RECEIVER_FAILURES: Final = frozenset(
    {CallFailureKind.CONNECT, CallFailureKind.TIMEOUT, CallFailureKind.PROTOCOL, CallFailureKind.RESOLVE}
)


# Workflow tasks


async def workflow(**_params: Any) -> Opened:
    """Start the nodes of a workflow run."""
    return Opened()


async def wait() -> None:
    """Succeed at once: the node's timer has already waited."""


async def signal(name: str, default: Any = _NO_DEFAULT) -> Any:
    """Return the default of a signal that timed out, or fail without a default."""
    if default is _NO_DEFAULT:
        message = f"the signal {name!r} was not sent in time"
        raise Failed("NoSignal", message, final="the signal was not sent in time")
    return default


async def gather(**results: Any) -> list[Any]:
    """Return the results of other nodes in order: their numbers are the names of the arguments."""
    return [results[number] for number in sorted(results, key=int)]


WORKFLOW_TASKS: Final = tuple(
    replace(make_task(function, name=name), built_in=True)
    for function, name in (
        (workflow, WORKFLOW_TASK),
        (wait, WAIT_TASK),
        (signal, SIGNAL_TASK),
        (gather, GATHER_TASK),
    )
)


class RegistryWithBuiltIns(Registry):
    """The registry of an app, extended by the built-in workflow tasks."""

    def __init__(self, own: Registry) -> None:
        super().__init__()
        self._own = own
        self._built_in = {task.name: task for task in WORKFLOW_TASKS}

    def names(self) -> list[str]:
        return [*self._own.names(), *self._built_in]

    def get(self, name: str) -> Task | None:
        return self._own.get(name) or self._built_in.get(name)

    def descriptions(self) -> list[TaskDescription]:
        """Return descriptions of the app's tasks for the API. Jobs cannot name built-in tasks, so they are omitted."""
        return [_describe_task(task) for name in self._own.names() if (task := self._own.get(name)) is not None]

    def closest(self, name: str) -> list[str]:
        return self._own.closest(name)


def _describe_task(task: Task) -> TaskDescription:
    schema, defaults = (msgspec.json.encode(part).decode() for part in (task.schema, task.defaults))
    return TaskDescription(name=task.name, schema=schema, doc=task.doc, defaults=defaults)


# The task `http`


def http_registry(
    store: Store,
    egress: Egress,
    clock: Clock,
    *,
    mail: MailSettings | None = None,
    public_url: str | None = None,
) -> Registry:
    """Return a registry with the tasks that call other servers: `http` and `bellringer.notify`."""
    tasks = Registry()
    caller = HttpCaller(store, egress, clock)
    notifier = Notifier(store, egress, caller, mail, public_url)
    tasks.add(replace(make_task(caller.http, name=HTTP_TASK, pool=HTTP_TASK), built_in=True))
    tasks.add(replace(make_task(notifier.notify, name=NOTIFY_TASK, pool=HTTP_TASK), built_in=True))
    return tasks


class HttpCaller:
    """Makes HTTP calls. Circuit breaker state is in the database and shared by all workers."""

    def __init__(self, store: Store, egress: Egress, clock: Clock) -> None:
        self._store = store
        self._egress = egress
        self._clock = clock
        self._lookups = HostResolver()

    def now(self) -> datetime:
        return self._clock.now()

    async def http(self, ctx: Context, **stored: Any) -> Any:
        """Call the URL of a job with an `http` target."""
        endpoint: int | None = stored.pop("endpoint", None)
        if endpoint is not None and not await rows.is_endpoint_enabled(self._store, ctx.tenant_id, endpoint):
            return Discard("the webhook endpoint was deleted or disabled")
        target, secrets = await self._read(stored, ctx.tenant_id)
        now = self._clock.now()
        end = await self.call(ctx, target, now, secrets)
        if isinstance(end, Snooze):
            return end
        if endpoint is not None and end.status == _HTTP_GONE:
            await rows.disable_endpoint(self._store, ctx.tenant_id, endpoint, "the receiver returned 410 Gone")
        return self.check_response(target, end, now)

    async def call(
        self, ctx: Context, target: HttpTarget, now: datetime, secrets: Sequence[str] = ()
    ) -> HttpResponse | Snooze:
        """Call a target, or return a snooze while the circuit of its origin is open. Raises Failed."""
        origin = target.url.origin
        seen = await rows.load_breaker(self._store, ctx.tenant_id, origin)
        probe_at = None
        if seen is not None and seen.probe_at is not None:
            probe_at = await self._probe(ctx.tenant_id, origin, seen)
            if probe_at is None:
                wait = max(seen.probe_at - seen.now, timedelta(0)) + _PROBE_MARGIN
                ctx.log.warning("the circuit is open", origin=origin, probe_at=seen.probe_at.isoformat())
                return Snooze(wait)
        guard = EgressGuard(self._egress.allowed, target.url.scheme == "https", self._lookups.of(ctx.tenant_id))
        tracer = tracing.active()
        caller = CallingRun(
            run_id=ctx.run_id,
            scheduled_for=ctx.scheduled_for,
            attempt=ctx.attempt,
            job=ctx.job,
            trace_headers={} if tracer is None else tracer.headers(),
        )
        end = await send_request(target.request(caller, now, secrets), guard, self._clock.monotonic)
        EGRESS.labels(end.trouble.value if isinstance(end, CallFailure) else f"{end.status // 100}xx").inc()
        await self._update_breaker(ctx.tenant_id, origin, end, probe_at, troubled=seen is not None)
        if isinstance(end, CallFailure):
            raise Failed(end.trouble.value, end.message, detail={"ms": round(end.seconds * 1000, 1)})
        return end

    async def _read(self, stored: Mapping[str, Any], tenant_id: int) -> tuple[HttpTarget, Sequence[str]]:
        """Parse the stored target and check it again: the allowed addresses may have changed since it was stored."""
        try:
            target = parse_target(open_target(self._egress, stored, tenant_id=tenant_id), self._egress.allowed)
            secret = stored.get("secret")
            if not target.sign or not isinstance(secret, Mapping):
                return target, ()
            return target, await open_secrets(self._store, self._egress, str(secret.get("id")), tenant_id=tenant_id)
        except InvalidInput as error:
            code = CallFailureKind.BLOCKED.value if error.code == "url_forbidden_address" else error.code
            EGRESS.labels(code).inc()
            raise Failed(code, str(error)) from None
        except BellringerError as error:
            raise Failed(error.code, str(error)) from None

    async def _probe(self, tenant_id: int, origin: str, seen: rows.BreakerRow) -> datetime | None:
        if seen.probe_at is None or seen.probe_at > seen.now:
            return None
        return await rows.claim_probe(self._store, tenant_id, origin, seen.probe_at)

    async def _update_breaker(
        self, tenant_id: int, origin: str, end: HttpResponse | CallFailure, probe_at: datetime | None, *, troubled: bool
    ) -> None:
        """Update the circuit breaker. Writes only failures and recoveries, so healthy receivers cost no query."""
        if isinstance(end, CallFailure):
            sick, reason = end.trouble in _RECEIVER_FAILURES, f"{end.trouble.value}: {end.message}"
        else:
            sick, reason = end.status >= 500, f"the receiver returned {end.status}"
        if sick or (isinstance(end, CallFailure) and probe_at is not None):
            if await rows.record_failure(self._store, tenant_id, origin, probe_at, reason):
                log.warning("circuit breaker opened", tenant_id=tenant_id, origin=origin, reason=reason)
        elif troubled and isinstance(end, HttpResponse):
            await rows.record_success(self._store, tenant_id, origin, probe_at)

    def check_response(self, target: HttpTarget, response: HttpResponse, now: datetime) -> Any:
        result = response_result(response)
        if target.is_expected(response.status):
            return result
        result["body"] = result["body"][:_MAX_ERROR_BODY_LENGTH]
        where = f"{target.method} {target.url.origin}"
        if 300 <= response.status <= 399:
            message = f"{where} returned {response.status}; redirects are not followed"
            raise Failed("redirect_not_followed", message, detail=result)
        final = "410 Gone: the receiver accepts no further calls" if response.status == _HTTP_GONE else None
        message = f"{where} returned {response.status}"
        raise Failed("HttpStatus", message, after=parse_retry_after(response, now), final=final, detail=result)


# The task `bellringer.notify`


class Notifier:
    """Delivers notification messages. The payload is rendered here, where the keys of secrets are."""

    def __init__(
        self,
        store: Store,
        egress: Egress,
        caller: HttpCaller,
        mail: MailSettings | None,
        public_url: str | None,
    ) -> None:
        self._store = store
        self._egress = egress
        self._caller = caller
        self._mail = mail
        self._public_url = public_url

    async def notify(self, ctx: Context, channel: int, notification: int, message: dict[str, Any]) -> Any:
        """Deliver a message to a channel."""
        to = await notifications.get_channel_by_id(self._store, ctx.tenant_id, channel)
        if to is None or not to.enabled:
            return Discard("the notification channel was deleted or disabled")
        if ctx.attempt > 1 and await notifications.is_superseded(self._store, notification):
            return Discard("a later message about the same incident exists")
        read = msgspec.convert(message, NotificationMessage)
        if to.kind == "email":
            return await self._send_mail(to, read, notification)
        target = await self._target(to, read)
        now = self._caller.now()
        response = await self._caller.call(ctx, target, now)
        if isinstance(response, Snooze):
            return response
        if 400 <= response.status < 500 and response.status not in _RETRIED_STATUSES:
            problem = f"{to.kind} returned {response.status}: {response.body[:200].decode(errors='replace')}"
            raise Failed("HttpStatus", problem, final="the receiver refuses this message")
        return self._caller.check_response(target, response, now)

    async def _send_mail(self, to: ChannelRow, message: NotificationMessage, number: int) -> Any:
        if self._mail is None:
            raise Failed("smtp_off", "this server has no mail server: set smtp_url and smtp_from")
        addresses = list(to.settings["to"])
        mail = render_mail(message, self._mail, addresses, number=number, public_url=self._public_url)
        try:
            refused = await send_mail(mail, self._mail, addresses)
        except MailRefused as error:
            final = "the mail server refuses this message" if error.is_final else None
            raise Failed("MailRefused", str(error), final=final) from None
        return {"message_id": mail["Message-ID"], "refused": refused}

    async def _target(self, to: ChannelRow, message: NotificationMessage) -> HttpTarget:
        """Return the request for a channel. Its secret is the URL, or the routing key of PagerDuty."""
        try:
            [secret, *_] = await open_secrets(self._store, self._egress, str(to.secret_id), tenant_id=to.tenant_id)
            body, url = self._payload(to, message, secret), secret
            if to.kind == "pagerduty":
                url = str(to.settings.get("url") or PAGERDUTY_URL)
            return parse_target({"url": url, "method": "POST", "body": body}, self._egress.allowed)
        except BellringerError as error:
            raise Failed(error.code, str(error)) from None

    def _payload(self, to: ChannelRow, message: NotificationMessage, secret: str) -> dict[str, Any]:
        match to.kind:
            case "slack":
                return slack_payload(message, self._public_url)
            case "teams":
                return teams_payload(message, self._public_url)
            case "pagerduty":
                return pagerduty_payload(message, secret, self._public_url)
        return webhook_payload(message, self._public_url)
