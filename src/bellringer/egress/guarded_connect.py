"""Opens connections for outgoing calls: resolves a name once, checks every address, connects to a checked address.

Nothing after the check resolves the name again, so DNS rebinding has no effect.
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

from bellringer.egress.addresses import Address, Network, is_allowed, is_permitted, unmap_ipv4
from bellringer.telemetry import log

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
MAX_ADDRESSES_TRIED: Final = 3
# Dedicated threads, more than calls: a lookup cannot be cancelled, and a slow name must not delay others.
_RESOLVER_THREADS: Final = ThreadPoolExecutor(128, thread_name_prefix="resolve")
MAX_LOOKUPS_PER_TENANT: Final = 8


class BlockedAddress(Exception):
    """The address may not be called; no connection was made."""


class ResolveFailed(Exception):
    """The name has no public address: it is unknown, its servers do not respond, or it resolves to a private
    address.

    All cases have the same message: different messages would let tenants enumerate the names of the internal network.
    """

    def __init__(self, host: str) -> None:
        super().__init__(f"{host} has no public address")


async def resolve(host: str, port: int) -> Sequence[str]:
    """Returns all addresses of a name, from the system's resolver."""
    return await _addresses(_submit_lookup(host, port))


class HostResolver:
    """Resolves names with a limit of concurrent lookups per tenant, so that slow names of one tenant do not delay
    others.
    """

    def __init__(self) -> None:
        self._places: WeakValueDictionary[int, asyncio.Semaphore] = (
            WeakValueDictionary()
        )  # of tenants with lookups in progress

    def of(self, tenant_id: int) -> Resolver:
        return partial(self._resolve, tenant_id)

    async def _resolve(self, tenant_id: int, host: str, port: int) -> Sequence[str]:
        places = self._places.setdefault(tenant_id, asyncio.Semaphore(MAX_LOOKUPS_PER_TENANT))
        await places.acquire()
        looking = _submit_lookup(host, port)
        loop = asyncio.get_running_loop()

        def free(_: object) -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(places.release)

        # Release only when the thread returns: a call that times out leaves its lookup running.
        looking.add_done_callback(free)
        return await _addresses(looking)


def _submit_lookup(host: str, port: int) -> Future[list[Any]]:
    return _RESOLVER_THREADS.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


async def _addresses(looking: Future[list[Any]]) -> Sequence[str]:
    return list(dict.fromkeys(str(entry[4][0]) for entry in await asyncio.wrap_future(looking)))


@dataclass(frozen=True, slots=True)
class EgressGuard(AsyncNetworkBackend):
    """The network backend of httpcore that checks addresses. With `tls` false, only networks that the operator
    allows are called.
    """

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
        trouble: Exception = ResolveFailed(host)
        for address in addresses[:MAX_ADDRESSES_TRIED]:
            try:
                return await self.dialler.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                trouble = error
        raise trouble

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002 - the signature of httpcore
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> AsyncNetworkStream:
        raise BlockedAddress(f"{path} is a local socket")

    async def sleep(self, seconds: float) -> None:
        await self.dialler.sleep(seconds)

    async def _checked(self, host: str, port: int) -> list[Address]:
        """Returns all addresses of the name, or raises: one private address makes the whole answer suspicious."""
        try:
            written = await self.resolver(host, port)
            addresses = [unmap_ipv4(ip_address(text)) for text in written]
        except (OSError, ValueError, UnicodeError) as error:
            log.debug("could not resolve a host name", host=host, error=str(error))
            raise ResolveFailed(host) from None
        for address in addresses:
            if not is_allowed(address, self.allowed):
                # The address appears only in the operator's log.
                log.warning("blocked an outgoing call to a private address", host=host, address=str(address))
                raise ResolveFailed(host)
        for address in addresses:
            if not self.tls and not is_permitted(address, self.allowed):
                log.warning("blocked an outgoing call without TLS", host=host, address=str(address))
                raise BlockedAddress(f"{host} resolves to an address that may not be called without TLS")
        return addresses
