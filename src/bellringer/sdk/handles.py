"""Handles of runs and jobs.

Every method exists twice: a blocking one, and one with the prefix `a` for `async def` code.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from bellringer.core.payload import to_plain
from bellringer.core.policies import Missed
from bellringer.core.runs import RunKey, State, decode_run_id
from bellringer.core.tasks import Duration, Registry
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput, RunFailed
from bellringer.schedule.instants import read_instant
from bellringer.sdk.usage_errors import read_choice

if TYPE_CHECKING:
    from bellringer.sdk.connection import ServiceCall, ServiceConnection
    from bellringer.sdk.records import NodeState
    from bellringer.sdk.service import Service
    from bellringer.store.jobs import JobRow
    from bellringer.store.runs import RunRow

_DATE: Final = re.compile(r"\d{4}-")


class RunHandle:
    """A run: read its state, wait for its result, cancel it.

    run = charge.send(order=7)
    run.result(timeout="30s")
    """

    def __init__(self, key: RunKey, connection: ServiceConnection, *, created: bool = True) -> None:
        self.key = key
        self.created = created
        self._connection = connection

    @property
    def id(self) -> str:
        return self.key.id

    def get(self) -> RunRow:
        """Return all fields of the run."""
        return self._connection.run(self._get, instead="`await ….aget()`")

    async def aget(self) -> RunRow:
        return await self._connection.call(self._get)

    def state(self) -> State:
        """Return the current state."""
        return self.get().state

    async def astate(self) -> State:
        return (await self.aget()).state

    def wait(self, timeout: Duration | None = None) -> State:
        """Wait until the run has ended, and return its final state. Raises TimeoutError."""
        return self._connection.run(self._end(timeout), instead="`await ….await_end()`").state

    async def await_end(self, timeout: Duration | None = None) -> State:
        return (await self._connection.call(self._end(timeout))).state

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the run and return its result as plain JSON values. Raises RunFailed or TimeoutError."""
        return self._connection.run(self._result(timeout), instead="`await ….aresult()`")

    async def aresult(self, timeout: Duration | None = None) -> Any:
        return await self._connection.call(self._result(timeout))

    def cancel(self, reason: str = "cancelled by its sender") -> State:
        """Cancel the run. Returns `cancelled` if it had not started, `running` if its handler was asked to stop."""
        return self._connection.run(self._cancel(reason), instead="`await ….acancel()`")

    async def acancel(self, reason: str = "cancelled by its sender") -> State:
        return await self._connection.call(self._cancel(reason))

    # Workflow runs

    def nodes(self, of: str | None = None) -> list[NodeState]:
        """List the nodes of a workflow run and their states, or the elements of the map node `of`."""
        return self._connection.run(partial(self._nodes, of), instead="`await ….anodes()`")

    async def anodes(self, of: str | None = None) -> list[NodeState]:
        return await self._connection.call(partial(self._nodes, of))

    def signal(self, name: str, payload: Any = None) -> bool:
        """Send a signal to a workflow run. Returns whether a node waited for it; if not, it is kept until one does."""
        return self._connection.run(self._signal(name, payload), instead="`await ….asignal()`")

    async def asignal(self, name: str, payload: Any = None) -> bool:
        return await self._connection.call(self._signal(name, payload))

    def retry_nodes(self, *nodes: str) -> None:
        """Run nodes such as `load` or `transform[3]` again, and all nodes after them.

        Without names, all nodes that did not succeed.
        """
        self._connection.run(self._retry_nodes(nodes), instead="`await ….aretry_nodes()`")

    async def aretry_nodes(self, *nodes: str) -> None:
        await self._connection.call(self._retry_nodes(nodes))

    def mark(self, node: str, state: State | str, *, result: Any = None, reason: str = "marked by a program") -> None:
        """Set the final state of a node, `succeeded` or `dead`; the workflow continues from there."""
        self._connection.run(self._mark(node, state, result, reason), instead="`await ….amark()`")

    async def amark(
        self, node: str, state: State | str, *, result: Any = None, reason: str = "marked by a program"
    ) -> None:
        await self._connection.call(self._mark(node, state, result, reason))

    async def _get(self, service: Service) -> RunRow:
        return await service.run(self.key)

    async def _nodes(self, of: str | None, service: Service) -> list[NodeState]:
        return await service.nodes(self.key, of)

    def _signal(self, name: str, payload: Any) -> ServiceCall[bool]:
        plain = to_plain(payload, what="the payload")
        return lambda service: service.signal(self.key, name, plain)

    def _retry_nodes(self, nodes: Sequence[str]) -> ServiceCall[None]:
        return lambda service: service.retry_nodes(self.key, nodes)

    def _mark(self, node: str, state: State | str, result: Any, reason: str) -> ServiceCall[None]:
        ended, plain = read_choice(state, State, what="state"), to_plain(result, what="the result")
        return lambda service: service.mark(self.key, node, ended, plain, reason)

    def _end(self, timeout: Duration | None) -> ServiceCall[RunRow]:
        seconds = _seconds(timeout)
        return lambda service: service.end(self.key, seconds)

    def _result(self, timeout: Duration | None) -> ServiceCall[Any]:
        seconds = _seconds(timeout)
        return lambda service: service.result(self.key, seconds)

    def _cancel(self, reason: str) -> ServiceCall[State]:
        return lambda service: service.cancel(self.key, reason)

    def __repr__(self) -> str:
        return f"<{self.id}>"


class JobHandle:
    """A job, found by its name; for a declared job, the part after the last dot is enough if it is unique."""

    def __init__(
        self,
        name: str,
        connection: ServiceConnection,
        registry: Registry,
        *,
        declared: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._connection = connection
        self._registry = registry
        self._declared = declared

    def get(self) -> JobRow:
        """Return all fields of the job."""
        return self._connection.run(self._get, instead="`await ….aget()`")

    async def aget(self) -> JobRow:
        return await self._connection.call(self._get)

    def runs(self, limit: int = 50) -> list[RunRow]:
        """List the runs of the job, newest first."""
        return self._connection.run(partial(self._runs, limit), instead="`await ….aruns()`")

    async def aruns(self, limit: int = 50) -> list[RunRow]:
        return await self._connection.call(partial(self._runs, limit))

    def pause(self, reason: str | None = None, until: Duration | datetime | None = None) -> None:
        """Pause the job: no new runs are created, and waiting runs are held.

        `until` is an instant or a duration after which the job resumes automatically.
        """
        self._connection.run(self._pause(reason, until), instead="`await ….apause()`")

    async def apause(self, reason: str | None = None, until: Duration | datetime | None = None) -> None:
        await self._connection.call(self._pause(reason, until))

    def resume(self, missed: Missed | str = Missed.SKIP) -> int:
        """Resume the job, and return the number of missed occurrences.

        `missed` says which of them run: `skip` (none), `latest` or `all`.
        """
        return self._connection.run(self._resume(missed), instead="`await ….aresume()`")

    async def aresume(self, missed: Missed | str = Missed.SKIP) -> int:
        return await self._connection.call(self._resume(missed))

    def trigger(self, **kwargs: Any) -> RunHandle:
        """Run the job now, regardless of its schedule. Arguments override those of the job for this run."""
        return self._connection.run(partial(self._trigger, kwargs), instead="`await ….atrigger()`")

    async def atrigger(self, **kwargs: Any) -> RunHandle:
        return await self._connection.call(partial(self._trigger, kwargs))

    def delete(self) -> None:
        """Delete the job. Running runs finish, and the history is kept."""
        self._connection.run(self._delete, instead="`await ….adelete()`")

    async def adelete(self) -> None:
        await self._connection.call(self._delete)

    async def _get(self, service: Service) -> JobRow:
        return await service.job(await service.find(self.name, self._declared))

    async def _runs(self, limit: int, service: Service) -> list[RunRow]:
        return await service.runs_of(await service.find(self.name, self._declared), limit)

    def _pause(self, reason: str | None, until: Duration | datetime | None) -> ServiceCall[None]:
        end = _until(until)

        async def pause(service: Service) -> None:
            await service.pause(await service.find(self.name, self._declared), reason, end)

        return pause

    def _resume(self, missed: Missed | str) -> ServiceCall[int]:
        choice = read_choice(missed, Missed, what="missed")

        async def resume(service: Service) -> int:
            return await service.resume(await service.find(self.name, self._declared), choice)

        return resume

    async def _trigger(self, kwargs: Mapping[str, Any], service: Service) -> RunHandle:
        job_id = await service.find(self.name, self._declared)
        return RunHandle(await service.trigger(job_id, kwargs, self._registry), self._connection)

    async def _delete(self, service: Service) -> None:
        await service.delete(await service.find(self.name, self._declared))

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


class Jobs:
    """The jobs of the app's tenant: `app.jobs["nightly"].trigger()`."""

    def __init__(
        self, connection: ServiceConnection, registry: Registry, declared: Callable[[], Sequence[str]]
    ) -> None:
        self._connection = connection
        self._registry = registry
        self._declared = declared

    def __getitem__(self, name: str) -> JobHandle:
        """Return a handle of the job. Its methods raise NotFound if the job does not exist."""
        matches = [full for full in self._declared() if full.rpartition(".")[2] == name]
        return JobHandle(name, self._connection, self._registry, declared=matches)

    async def alist(self, limit: int = 100) -> list[JobRow]:
        return await self._connection.call(lambda service: service.jobs(limit))

    def list(self, limit: int = 100) -> list[JobRow]:
        return self._connection.run(lambda service: service.jobs(limit), instead="`await app.jobs.alist()`")


class Runs:
    """The runs of the app's tenant by id: `app.runs["run_…"].result()`; and waits for several of them."""

    def __init__(self, connection: ServiceConnection) -> None:
        self._connection = connection

    def __getitem__(self, run_id: str) -> RunHandle:
        return RunHandle(decode_run_id(run_id), self._connection)

    def wait_all(
        self, runs: Iterable[RunHandle], timeout: Duration | None = None, *, return_exceptions: bool = False
    ) -> list[Any]:
        """Wait until all runs have ended, and return their results in order. Raises TimeoutError.

        Raises RunFailed for the first run that did not succeed; with `return_exceptions`, the list has the exception
        in its place.
        """
        wait = self._wait_all(list(runs), timeout, return_exceptions=return_exceptions)
        return self._connection.run(wait, instead="`await app.runs.await_all(…)`")

    async def await_all(
        self, runs: Iterable[RunHandle], timeout: Duration | None = None, *, return_exceptions: bool = False
    ) -> list[Any]:
        wait = self._wait_all(list(runs), timeout, return_exceptions=return_exceptions)
        return await self._connection.call(wait)

    def wait_any(self, runs: Iterable[RunHandle], timeout: Duration | None = None) -> RunHandle:
        """Wait until one of the runs has ended, and return it. Raises TimeoutError."""
        given = list(runs)
        return self._connection.run(self._some_ended(given, _seconds(timeout)), instead="`await ….await_any(…)`")[0]

    async def await_any(self, runs: Iterable[RunHandle], timeout: Duration | None = None) -> RunHandle:
        return (await self._connection.call(self._some_ended(list(runs), _seconds(timeout))))[0]

    def as_completed(self, runs: Iterable[RunHandle], timeout: Duration | None = None) -> Iterator[RunHandle]:
        """Yield the runs as they end. Raises TimeoutError if one has not ended after `timeout` seconds in all."""
        given, deadline = list(runs), _Deadline(_seconds(timeout))
        while given:
            ended = self._connection.run(self._some_ended(given, deadline.left()), instead="`….aas_completed(…)`")
            yield from ended
            given = _without(given, ended)

    async def aas_completed(
        self, runs: Iterable[RunHandle], timeout: Duration | None = None
    ) -> AsyncIterator[RunHandle]:
        given, deadline = list(runs), _Deadline(_seconds(timeout))
        while given:
            ended = await self._connection.call(self._some_ended(given, deadline.left()))
            for run in ended:
                yield run
            given = _without(given, ended)

    @staticmethod
    def _some_ended(given: Sequence[RunHandle], seconds: float | None) -> ServiceCall[list[RunHandle]]:
        if not given:
            raise InvalidInput("there is no run to wait for", hint="pass the handles that send returned", code="limit")

        async def wait(service: Service) -> list[RunHandle]:
            ended = {row.key for row in await service.ended_of([run.key for run in given], seconds, wait_for_all=False)}
            return list({run.key: run for run in given if run.key in ended}.values())

        return wait

    @staticmethod
    def _wait_all(
        given: Sequence[RunHandle], timeout: Duration | None, *, return_exceptions: bool
    ) -> ServiceCall[list[Any]]:
        seconds = _seconds(timeout)

        async def wait(service: Service) -> list[Any]:
            ended = await service.ended_of([run.key for run in given], seconds, wait_for_all=True)
            by_key = {row.key: row for row in ended}
            results: list[Any] = []
            for run in given:
                try:
                    results.append(service.result_of(by_key[run.key]))
                except RunFailed as error:
                    if not return_exceptions:
                        raise
                    results.append(error)
            return results

        return wait


class _Deadline:
    """The time that is left of a timeout."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else monotonic() + seconds

    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - monotonic())


def _without(given: Sequence[RunHandle], ended: Sequence[RunHandle]) -> list[RunHandle]:
    keys = {run.key for run in ended}
    return [run for run in given if run.key not in keys]


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_duration(timeout, what="timeout").total_seconds()


def _until(value: Duration | datetime | None) -> datetime | timedelta | None:
    """Parse an instant or a duration."""
    if value is None:
        return None
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE.match(value)):
        return read_instant(value, what="until", pointer="/until")
    return parse_duration(value, what="until")
