"""Leases by etcd, for teams that trust it already: it says who holds a shard, and PostgreSQL who may write.

        <prefix>/shards/<n> = node id, under the node's etcd lease     created only where there is none
        leases (PostgreSQL)  holder, token = greatest(token + 1, revision), expires_at

The revision is only a candidate for the token: after a loss of all data, or an old snapshot, revisions start low, and
tokens must still grow (see docs/decisions/014). Safety never rests on etcd: two nodes may both believe that they hold a
shard, and the fence of each write lets only the last token through.

It speaks JSON over HTTP, as every etcd since 3.4 does.
"""

from __future__ import annotations

import asyncio
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self
from urllib.parse import urlsplit
from uuid import UUID

import httpx2
import msgspec

from bellringer.errors import ConfigError, Unavailable
from bellringer.leases import LEASE, LeaseKeeper, Ledger

PATIENCE: Final = 1.0  # seconds for one answer of one server: a node's loop must not hang
AT_ONCE: Final = 100  # keys in a transaction; etcd takes 128 operations
QUIET: Final = 0.2  # seconds between two hints that shards are free
SILENCE: Final = 60.0  # seconds after which a watch that has told nothing is begun anew
_PORT: Final = 2379
_NOT_FOUND: Final = 5  # gRPC's code: the lease is not there


@dataclass(frozen=True, slots=True)
class Address:
    """Where etcd is, and under which prefix our keys are."""

    servers: tuple[str, ...]  # host:port
    prefix: str

    @classmethod
    def read(cls, text: str, installation: str) -> Self:
        """etcd://host:2379,host:2379/prefix; without a prefix, one that no other installation has."""
        hint = "write it like etcd://host:2379,host:2379/prefix"
        scheme, _, rest = text.partition("://")
        hosts, _, prefix = rest.partition("/")
        try:
            found = [urlsplit(f"http://{host.strip()}") for host in hosts.split(",")]
            servers = tuple(f"{_bracketed(part.hostname)}:{part.port or _PORT}" for part in found)
        except ValueError:
            servers = ()
        if scheme != "etcd" or not servers or any(server.startswith(":") or "@" in hosts for server in servers):
            raise ConfigError(f"coordination cannot be {text!r}", hint=hint)
        return cls(servers, prefix.strip("/") or f"bellringer/{installation}")


def _bracketed(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else host or ""


class EtcdLeases(LeaseKeeper):
    """One etcd lease a node, and one key a shard under it."""

    def __init__(self, ledger: Ledger, address: Address, lease: timedelta = LEASE) -> None:
        self._ledger = ledger
        self._address = address
        self._lease = lease
        self._lease_id: str | None = None
        self._client: httpx2.AsyncClient | None = None
        self._first = 0  # the server that answered last

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        """The key first, then the row. Should this end between the two, the next renewal takes the key back."""
        if self._lease_id is None:
            self._lease_id = (await self._ask("lease/grant", {"TTL": math.ceil(self._lease.total_seconds())}))["ID"]
        taken = await self._keys()
        shards = await self._ledger.shards() if among is None else sorted(among)
        won = await self._create(holder, [s for s in shards if s not in taken][:want])
        return await self._ledger.install(holder, won) if won else {}

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        """What is ours by etcd and by PostgreSQL: either of them may have given it to another."""
        if self._lease_id is None:
            return frozenset()
        kept = await self._ask("lease/keepalive", {"ID": self._lease_id})
        if not int(kept["result"].get("TTL", 0)):  # it had run out, or etcd has lost its data
            self._lease_id = None
            return frozenset()
        mine = {shard for shard, lease_id in (await self._keys()).items() if lease_id == self._lease_id}
        # A key without a row: an old snapshot has brought it back, or a row could not be written. Others wait for it.
        await self._delete(mine - tokens.keys())
        ours = {shard: token for shard, token in tokens.items() if shard in mine}
        return await self._ledger.renew(holder, ours)

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        await self._ledger.release(holder, tokens)
        if self._lease_id is not None:
            await self._delete(tokens)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def watch(self, freed: Callable[[], None]) -> None:
        """Wake the node when keys go, and when etcd comes back."""
        first, last = self._range()
        request = {"create_request": {"key": first, "range_end": last, "filters": ["NOPUT"]}}
        while True:
            try:
                async with self._http().stream(
                    "POST", self._url("watch"), json=request, timeout=httpx2.Timeout(PATIENCE, read=SILENCE)
                ) as answer:
                    async for line in answer.aiter_lines():
                        if '"events"' in line or '"created"' in line:
                            freed()
                            await asyncio.sleep(QUIET)
            except httpx2.HTTPError:
                self._first += 1
            await asyncio.sleep(PATIENCE)

    # Keys

    async def _keys(self) -> Mapping[int, str]:
        """The shards that have a key, and the lease that each is under."""
        first, last = self._range()
        found = (await self._ask("kv/range", {"key": first, "range_end": last})).get("kvs", ())
        names = ((b64decode(kv["key"]).decode().rpartition("/")[2], kv.get("lease", "")) for kv in found)
        return {int(name): lease_id for name, lease_id in names if name.isdecimal()}

    async def _create(self, holder: UUID, shards: Sequence[int]) -> Mapping[int, int]:
        """Each key that is not there, in one call; answers the revision of those that were made."""
        value = _text(str(holder))
        steps = {
            shard: {
                "compare": [{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
                "success": [{"request_put": {"key": key, "value": value, "lease": self._lease_id}}],
            }
            for shard in shards
            for key in (self._key(shard),)
        }
        return await self._each(steps)

    async def _delete(self, shards: Iterable[int]) -> None:
        """Each key that is still under this node's lease."""
        steps = {
            shard: {
                "compare": [{"key": key, "target": "LEASE", "result": "EQUAL", "lease": self._lease_id}],
                "success": [{"request_delete_range": {"key": key}}],
            }
            for shard in sorted(shards)
            for key in (self._key(shard),)
        }
        await self._each(steps)

    async def _each(self, steps: Mapping[int, Mapping[str, Any]]) -> Mapping[int, int]:
        """Steps that each have a condition of their own; answers the revision of those that were done."""
        done: dict[int, int] = {}
        shards = list(steps)
        for start in range(0, len(shards), AT_ONCE):
            some = shards[start : start + AT_ONCE]
            answer = await self._ask("kv/txn", {"success": [{"request_txn": steps[shard]} for shard in some]})
            revision = int(answer["header"]["revision"])
            for shard, response in zip(some, answer["responses"], strict=True):
                if response["response_txn"].get("succeeded"):
                    done[shard] = revision
        return done

    def _key(self, shard: int) -> str:
        return _text(f"{self._address.prefix}/shards/{shard}")

    def _range(self) -> tuple[str, str]:
        """All of them: from the slash to the sign after it."""
        return _text(f"{self._address.prefix}/shards/"), _text(f"{self._address.prefix}/shards0")

    # Calls

    async def _ask(self, what: str, body: Mapping[str, Any]) -> Any:
        """Of the server that answered last, or the next that does."""
        why = ""
        for _ in self._address.servers:
            try:
                async with asyncio.timeout(PATIENCE):
                    answer = await self._http().post(self._url(what), json=body)
                document = msgspec.json.decode(answer.content)
            except (httpx2.HTTPError, TimeoutError, msgspec.DecodeError):
                why = "does not answer"
            else:
                if "error" not in document:
                    return document
                why = f"answers {str(document.get('message') or document['error'])[:100]!r}"
                if document.get("code") == _NOT_FOUND:  # it has run out meanwhile; the next pass asks for another
                    self._lease_id = None
                    break
            self._first += 1
        raise Unavailable(f"etcd at {', '.join(self._address.servers)} {why}", hint="start it, or see what it says")

    def _url(self, what: str) -> str:
        return f"http://{self._address.servers[self._first % len(self._address.servers)]}/v3/{what}"

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:  # made in the loop that uses it; no proxy is asked
            self._client = httpx2.AsyncClient(timeout=PATIENCE, trust_env=False)
        return self._client


def _text(text: str) -> str:
    return b64encode(text.encode()).decode()
