"""Prepares the payload of an attempt right before its handler runs, and protects what the attempt reports.

Encrypted values are decrypted, and references to secrets are replaced by their values. Log lines, errors, results and
progress of the attempt then contain none of these secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from bellringer.clock import Clock
from bellringer.codecs import PayloadCodec, PayloadUnreadable, decrypt, encrypt_value
from bellringer.core.jobs import BUILT_IN_TASKS, HTTP_TASK
from bellringer.core.redaction import PROGRESS_PATHS_FIELD, TextRedactor, find_texts
from bellringer.core.runs import Ending, Outcome
from bellringer.core.secret_references import escape_references, find_references, substitute
from bellringer.egress.urls import origin_of
from bellringer.store.connection_pool import UNREACHABLE_ERRORS
from bellringer.telemetry import log
from bellringer.worker import results
from bellringer.worker.attempt import Work
from bellringer.worker.secret_sources import SecretProblem, SecretSource, find_secrets

FIRST_WAIT_SECONDS: Final = 0.1
LONGEST_WAIT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PreparedPayload:
    """An attempt with complete arguments, and the secrets among them."""

    work: Work
    secrets: Sequence[str] = field(repr=False, default=())


class StartAttempt(Protocol):
    def __call__(self, work: Work, *, secrets: Sequence[str]) -> None: ...


class PayloadPreparer:
    """Completes the arguments of attempts. `tenant_names` is shared with the worker, which extends it."""

    def __init__(
        self,
        sources: Sequence[SecretSource],
        codec: PayloadCodec | None,
        clock: Clock,
        tenant_names: Mapping[int, str],
    ) -> None:
        self._sources = sources
        self._codec = codec
        self._clock = clock
        self._tenant_names = tenant_names
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work, start: StartAttempt, on_end: Callable[[Ending], None]) -> None:
        """Prepare an attempt in the background, then start it, or end it if its arguments cannot be completed."""
        task = asyncio.create_task(self._prepare_and_start(work, start, on_end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Start none of the attempts that are being prepared: the worker stops."""
        for task in self._tasks:
            task.cancel()

    async def _prepare_and_start(self, work: Work, start: StartAttempt, on_end: Callable[[Ending], None]) -> None:
        try:
            prepared = await self.prepare(work)
        except Exception as error:  # noqa: BLE001 - no error may leave a claimed run without an ending
            prepared = results.ending_of_error(error)
        if isinstance(prepared, Ending):
            on_end(prepared)
        else:
            start(prepared.work, secrets=prepared.secrets)

    async def prepare(self, work: Work) -> PreparedPayload | Ending:
        """Returns the attempt to execute, or the ending of one whose arguments cannot be completed.

        Waits for an unavailable database, because the run is already claimed.
        """
        if work.task in BUILT_IN_TASKS and work.task != HTTP_TASK:  # these pass values on
            return PreparedPayload(work)
        try:
            work = self._decrypted(work)
            return await self._resolved(work)
        except PayloadUnreadable as error:
            return results.failed_ending(error.code, _explain(error.message, error.hint))
        except SecretProblem as error:
            ending = results.failed_ending(error.code, _explain(error.message, error.hint))
            return msgspec.structs.replace(ending, final=f"{error.code}: {error.message}") if error.is_final else ending

    def _decrypted(self, work: Work) -> Work:
        if work.task == HTTP_TASK:
            return work
        spec, tenant = work.spec, self._tenant_names[work.tenant_id]
        # In a workflow, arguments may be results of other tasks.
        task = None if spec.is_in_workflow else work.task
        args: list[Any] = decrypt(self._codec, spec.args, tenant=tenant, task=task)
        kwargs: dict[str, Any] = decrypt(self._codec, spec.kwargs, tenant=tenant, task=task)
        if (upstream := spec.upstream) is not None:
            upstream = msgspec.structs.replace(upstream, result=decrypt(self._codec, upstream.result, tenant=tenant))
        spec = msgspec.structs.replace(spec, args=args, kwargs=kwargs, upstream=upstream)
        last_result = decrypt(self._codec, work.last_result, tenant=tenant)
        resume_from = decrypt(self._codec, work.resume_from, tenant=tenant)
        return msgspec.structs.replace(work, spec=spec, last_result=last_result, resume_from=resume_from)

    async def _resolved(self, work: Work) -> PreparedPayload:
        spec, is_http = work.spec, work.task == HTTP_TASK
        names = {found.name for found in find_references([spec.args, spec.kwargs], short=not is_http)}
        values: dict[str, str] = {}
        if names:
            origin = origin_of(str(spec.kwargs.get("url"))) if is_http else None
            values = await self._find(names, work, origin)
        if is_http and not names:  # its other marks are those of a stored target
            return PreparedPayload(work)
        args = substitute(spec.args, values, short=not is_http)
        kwargs = substitute(spec.kwargs, values, short=not is_http)
        spec = msgspec.structs.replace(spec, args=args, kwargs=kwargs)
        return PreparedPayload(msgspec.structs.replace(work, spec=spec), tuple(values.values()))

    async def _find(self, names: set[str], work: Work, origin: str | None) -> dict[str, str]:
        wait = FIRST_WAIT_SECONDS
        tenant = self._tenant_names.get(work.tenant_id)
        while True:
            try:
                return await find_secrets(
                    self._sources, names, tenant_id=work.tenant_id, tenant=tenant, task=work.task, origin=origin
                )
            except UNREACHABLE_ERRORS as error:
                log.warning("looking up secrets: waiting for the database", run_id=work.key.id, error=str(error))
                await self._clock.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT_SECONDS)


def _explain(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message


class AttemptProtection:
    """Removes secrets and hidden values from what an attempt reports.

    Secrets are removed everywhere. Values at `redact` paths are removed from texts; in results and progress they are
    stored, because later attempts and runs need them, and are hidden when they are shown.
    """

    __slots__ = ("_codec", "_paths", "_secrets", "_texts", "_work")

    def __init__(
        self, work: Work, secrets: Sequence[str], paths: Sequence[str], codec: PayloadCodec | None = None
    ) -> None:
        spec = work.spec
        self._work = work
        self._codec = codec
        kwargs = spec.kwargs
        if work.task == HTTP_TASK and isinstance(body := kwargs.get("body"), Mapping):
            kwargs = dict(body)
        hidden = find_texts(spec.args, kwargs, paths) if paths else ()
        self._secrets = TextRedactor(secrets)
        self._texts = TextRedactor([*secrets, *hidden])
        self._paths = list(dict.fromkeys(paths))

    def line(self, message: str, fields: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
        """Returns a log line without secrets and hidden values."""
        return self._texts.text(message), None if fields is None else self._texts.document(fields)

    def ending(self, ending: Ending) -> Ending:
        """Returns the ending without secrets, and its error without hidden values."""
        return msgspec.structs.replace(
            ending,
            error=None if ending.error is None else self._texts.document(ending.error),
            result=self._secrets.document(ending.result) if self._secrets else ending.result,
            discard=None if ending.discard is None else self._texts.text(ending.discard),
            final=None if ending.final is None else self._texts.text(ending.final),
        )

    def progress(self, progress: dict[str, Any]) -> dict[str, Any]:
        """Returns a report without secrets, with its details encrypted if there is a codec, and with the paths that
        are hidden when it is shown.
        """
        if self._secrets:
            progress = self._secrets.document(progress)
        if note := progress.get("note"):
            progress = {**progress, "note": self._texts.text(note)}
        if self._codec is not None and "details" in progress:
            work = self._work
            details = encrypt_value(self._codec, progress["details"], tenant=work.tenant, task=work.task)
            progress = {**progress, "details": details}
        return {**progress, PROGRESS_PATHS_FIELD: self._paths} if self._paths else progress


def stored_ending(ending: Ending, work: Work, codec: PayloadCodec | None) -> Ending:
    """Returns the ending with its result in stored form: encrypted if there is a codec, and unable to refer to a
    secret if other nodes of a workflow take it as an argument.
    """
    result = ending.result
    if result is None or ending.outcome is not Outcome.OK:
        return ending
    if work.spec.node is not None and isinstance(result, dict | list):
        result = escape_references(result)
    if codec is not None:
        result = encrypt_value(codec, result, tenant=work.tenant, task=work.task)
    return ending if result is ending.result else msgspec.structs.replace(ending, result=result)
