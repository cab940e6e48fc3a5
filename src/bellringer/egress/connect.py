"""The guarded way to a connection: resolve once, check every address, connect to what was checked.

A name that answers differently the next time gains nothing, because nothing below resolves again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final
from weakref import WeakValueDictionary

import httpcore2
from httpcore2 import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream

from bellringer.egress.addresses import Address, Network, is_allowed, is_permitted, plain
from bellringer.telemetry import log

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
MOST_TRIED: Final = 3
# Threads of its own, and more than calls: a look-up cannot be cut off, and a slow name must not keep others waiting.
_LOOKERS: Final = ThreadPoolExecutor(128, thread_name_prefix="resolve")
SHARE: Final = 8  # of these threads, for one tenant


class BlockedAddress(Exception):
    """The name leads to an address that may not be called; nothing was connected to."""


class ResolveFailed(Exception):
    """The name has no address, or its servers do not answer."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """All addresses of a name, as the system's resolver has them."""
    return await _addresses(_look_up(host, port))


class Lookups:
    """The look-ups of one process, by tenant: who names hosts whose servers are silent waits for their own alone."""

    def __init__(self) -> None:
        self._places: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()  # of those who ask just now

    def of(self, tenant_id: int) -> Resolver:
        return partial(self._resolve, tenant_id)

    async def _resolve(self, tenant_id: int, host: str, port: int) -> Sequence[str]:
        places = self._places.setdefault(tenant_id, asyncio.Semaphore(SHARE))
        await places.acquire()
        looking = _look_up(host, port)
        loop = asyncio.get_running_loop()

        def free(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(places.release)

        # When the thread comes back, and no sooner: a call that gives up leaves its look-up behind.
        looking.add_done_callback(free)
        return await _addresses(looking)


def _look_up(host: str, port: int) -> Future[list[Any]]:
    return _LOOKERS.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


async def _addresses(looking: Future[list[Any]]) -> Sequence[str]:
    return list(dict.fromkeys(str(entry[4][0]) for entry in await asyncio.wrap_future(looking)))


@dataclass(frozen=True, slots=True)
class Guard(AsyncNetworkBackend):
    """What httpcore opens its connections with. With `tls` false, only what the operator permits is called."""

    allowed: Sequence[Network] = ()
    tls: bool = True
    resolver: Resolver = resolve
    dialler: AsyncNetworkBackend = AnyIOBackend()  # noqa: RUF009 - it holds no state

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        addresses = await self._checked(host, port)
        trouble: Exception = ResolveFailed(f"{host} has no address")
        for address in addresses[:MOST_TRIED]:
            try:
                return await self.dialler.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                trouble = error
        raise trouble

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002 - the shape is httpcore's
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> AsyncNetworkStream:
        raise BlockedAddress(f"{path} is a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await self.dialler.sleep(seconds)

    async def _checked(self, host: str, port: int) -> list[Address]:
        """Every address of the name, or none: one that leads inside makes the whole answer suspect."""
        try:
            written = await self.resolver(host, port)
            addresses = [plain(ip_address(text)) for text in written]
        except (OSError, ValueError, UnicodeError) as error:
            raise ResolveFailed(f"{host} cannot be resolved: {error}") from None
        for address in addresses:
            if not is_allowed(address, self.allowed):
                raise _blocked(host, address, "which is not public")
            if not self.tls and not is_permitted(address, self.allowed):
                raise _blocked(host, address, "which may not be called without TLS")
        return addresses


def _blocked(host: str, address: Address, why: str) -> BlockedAddress:
    """Which address it is stays with the operator: told to tenants it would map the inner network, name by name."""
    log.warning("a call was blocked", host=host, address=str(address))
    return BlockedAddress(f"{host} leads to an address {why}")
