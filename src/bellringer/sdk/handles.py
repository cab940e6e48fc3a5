"""Runs and jobs as an app hands them out: ask, wait, steer.

Every act exists twice, plain and with an `a` before its name for `async def` code; both do the same thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bellringer.durations import parse_duration
from bellringer.payload import to_plain
from bellringer.policies import Missed
from bellringer.runs import RunKey, State, decode_id
from bellringer.schedule.instants import read_instant
from bellringer.sdk.misuse import read_choice
from bellringer.tasks import Duration, Registry

if TYPE_CHECKING:
    from bellringer.sdk.connection import Act, Connection
    from bellringer.sdk.desk import Desk
    from bellringer.sdk.records import NodeState
    from bellringer.store.jobs import Job
    from bellringer.store.runs import Run

_DATE: Final = re.compile(r"\d{4}-")


class RunHandle:
    """One run: ask what became of it, wait for it, stop it."""

    def __init__(self, key: RunKey, connection: Connection, *, created: bool = True) -> None:
        self.key = key
        self.created = created
        self._connection = connection

    @property
    def id(self) -> str:
        return self.key.id

    def get(self) -> Run:
        return self._connection.run(self._get, instead="`await ….aget()`")

    async def aget(self) -> Run:
        return await self._connection.call(self._get)

    def state(self) -> State:
        return self.get().state

    async def astate(self) -> State:
        return (await self.aget()).state

    def wait(self, timeout: Duration | None = None) -> State:
        """Wait until it has ended; answers how. Raises TimeoutError."""
        return self._connection.run(self._end(timeout), instead="`await ….await_end()`").state

    async def await_end(self, timeout: Duration | None = None) -> State:
        return (await self._connection.call(self._end(timeout))).state

    def result(self, timeout: Duration | None = None) -> Any:
        """What the task returned, as JSON. Raises RunFailed with the remote error, or TimeoutError."""
        return self._connection.run(self._result(timeout), instead="`await ….aresult()`")

    async def aresult(self, timeout: Duration | None = None) -> Any:
        return await self._connection.call(self._result(timeout))

    def cancel(self, reason: str = "cancelled by its sender") -> State:
        """Cancel it: `cancelled` if it had not begun, `running` while it is being asked to stop."""
        return self._connection.run(self._cancel(reason), instead="`await ….acancel()`")

    async def acancel(self, reason: str = "cancelled by its sender") -> State:
        return await self._connection.call(self._cancel(reason))

    # Of a workflow run

    def nodes(self, of: str | None = None) -> list[NodeState]:
        """Its nodes, and where each is; with the name of a map, the elements of that."""
        return self._connection.run(partial(self._nodes, of), instead="`await ….anodes()`")

    async def anodes(self, of: str | None = None) -> list[NodeState]:
        return await self._connection.call(partial(self._nodes, of))

    def signal(self, name: str, payload: Any = None) -> bool:
        """Send it a signal; True: a node had waited for it, False: it is kept until one does."""
        return self._connection.run(self._signal(name, payload), instead="`await ….asignal()`")

    async def asignal(self, name: str, payload: Any = None) -> bool:
        return await self._connection.call(self._signal(name, payload))

    def retry_nodes(self, *nodes: str) -> None:
        """Run nodes again (`load`, `transform[3]`), and all after them; without names, all that did not go well."""
        self._connection.run(self._retry_nodes(nodes), instead="`await ….aretry_nodes()`")

    async def aretry_nodes(self, *nodes: str) -> None:
        await self._connection.call(self._retry_nodes(nodes))

    def mark(self, node: str, state: State | str, *, result: Any = None, reason: str = "marked by a program") -> None:
        """Say how a node has ended, `succeeded` or `dead`; what comes after it goes on from there."""
        self._connection.run(self._mark(node, state, result, reason), instead="`await ….amark()`")

    async def amark(
        self, node: str, state: State | str, *, result: Any = None, reason: str = "marked by a program"
    ) -> None:
        await self._connection.call(self._mark(node, state, result, reason))

    async def _get(self, desk: Desk) -> Run:
        return await desk.run(self.key)

    async def _nodes(self, of: str | None, desk: Desk) -> list[NodeState]:
        return await desk.nodes(self.key, of)

    def _signal(self, name: str, payload: Any) -> Act[bool]:
        plain = to_plain(payload, what="the payload")
        return lambda desk: desk.signal(self.key, name, plain)

    def _retry_nodes(self, nodes: Sequence[str]) -> Act[None]:
        return lambda desk: desk.retry_nodes(self.key, nodes)

    def _mark(self, node: str, state: State | str, result: Any, reason: str) -> Act[None]:
        ended, plain = read_choice(state, State, what="state"), to_plain(result, what="the result")
        return lambda desk: desk.mark(self.key, node, ended, plain, reason)

    def _end(self, timeout: Duration | None) -> Act[Run]:
        seconds = _seconds(timeout)
        return lambda desk: desk.end(self.key, seconds)

    def _result(self, timeout: Duration | None) -> Act[Any]:
        seconds = _seconds(timeout)
        return lambda desk: desk.result(self.key, seconds)

    def _cancel(self, reason: str) -> Act[State]:
        return lambda desk: desk.cancel(self.key, reason)

    def __repr__(self) -> str:
        return f"<{self.id}>"


class JobHandle:
    """One job, by its name: the whole of it, or the last part where only one declared job ends so."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        registry: Registry,
        *,
        declared: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._connection = connection
        self._registry = registry
        self._declared = declared

    def get(self) -> Job:
        return self._connection.run(self._get, instead="`await ….aget()`")

    async def aget(self) -> Job:
        return await self._connection.call(self._get)

    def runs(self, limit: int = 50) -> list[Run]:
        """Its newest runs, the newest first."""
        return self._connection.run(partial(self._runs, limit), instead="`await ….aruns()`")

    async def aruns(self, limit: int = 50) -> list[Run]:
        return await self._connection.call(partial(self._runs, limit))

    def pause(self, reason: str | None = None, until: Duration | datetime | None = None) -> None:
        """Fire nothing more and hold what waits, until resumed or until then: a time, or so long from now."""
        self._connection.run(self._pause(reason, until), instead="`await ….apause()`")

    async def apause(self, reason: str | None = None, until: Duration | datetime | None = None) -> None:
        await self._connection.call(self._pause(reason, until))

    def resume(self, missed: Missed | str = Missed.SKIP) -> int:
        """Go on from now; answers how many occurrences were missed: `skip` leaves them, `latest` or `all` runs them."""
        return self._connection.run(self._resume(missed), instead="`await ….aresume()`")

    async def aresume(self, missed: Missed | str = Missed.SKIP) -> int:
        return await self._connection.call(self._resume(missed))

    def trigger(self, **kwargs: Any) -> RunHandle:
        """Run it now, whatever its schedule says; arguments hold for this run alone."""
        return self._connection.run(partial(self._trigger, kwargs), instead="`await ….atrigger()`")

    async def atrigger(self, **kwargs: Any) -> RunHandle:
        return await self._connection.call(partial(self._trigger, kwargs))

    def delete(self) -> None:
        """End its future; what runs finishes, and its history stays."""
        self._connection.run(self._delete, instead="`await ….adelete()`")

    async def adelete(self) -> None:
        await self._connection.call(self._delete)

    async def _get(self, desk: Desk) -> Job:
        return await desk.job(await desk.find(self.name, self._declared))

    async def _runs(self, limit: int, desk: Desk) -> list[Run]:
        return await desk.runs_of(await desk.find(self.name, self._declared), limit)

    def _pause(self, reason: str | None, until: Duration | datetime | None) -> Act[None]:
        end = _until(until)

        async def pause(desk: Desk) -> None:
            await desk.pause(await desk.find(self.name, self._declared), reason, end)

        return pause

    def _resume(self, missed: Missed | str) -> Act[int]:
        choice = read_choice(missed, Missed, what="missed")

        async def resume(desk: Desk) -> int:
            return await desk.resume(await desk.find(self.name, self._declared), choice)

        return resume

    async def _trigger(self, kwargs: Mapping[str, Any], desk: Desk) -> RunHandle:
        job_id = await desk.find(self.name, self._declared)
        return RunHandle(await desk.trigger(job_id, kwargs, self._registry), self._connection)

    async def _delete(self, desk: Desk) -> None:
        await desk.delete(await desk.find(self.name, self._declared))

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


class Jobs:
    """All jobs of an app's tenant: `app.jobs["nightly"]`."""

    def __init__(self, connection: Connection, registry: Registry, declared: Callable[[], Sequence[str]]) -> None:
        self._connection = connection
        self._registry = registry
        self._declared = declared

    def __getitem__(self, name: str) -> JobHandle:
        """The job of that name; whether there is one, the first act on it says."""
        ends_so = [full for full in self._declared() if full.rpartition(".")[2] == name]
        return JobHandle(name, self._connection, self._registry, declared=ends_so)

    async def alist(self, limit: int = 100) -> list[Job]:
        return await self._connection.call(lambda desk: desk.jobs(limit))

    def list(self, limit: int = 100) -> list[Job]:
        return self._connection.run(lambda desk: desk.jobs(limit), instead="`await app.jobs.alist()`")


class Runs:
    """The runs of an app's tenant, by their ids: `app.runs["run_…"].result()`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, run_id: str) -> RunHandle:
        return RunHandle(decode_id(run_id), self._connection)


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_duration(timeout, what="timeout").total_seconds()


def _until(value: Duration | datetime | None) -> datetime | timedelta | None:
    """A time of day and year, or a length of time."""
    if value is None:
        return None
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE.match(value)):
        return read_instant(value, what="until", pointer="/until")
    return parse_duration(value, what="until")
