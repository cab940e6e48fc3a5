"""Shard leases in etcd. etcd decides which node holds a shard; PostgreSQL decides which node may write.

        <prefix>/shards/<n> = node id, attached to the node's etcd lease     created only if the key does not exist
        leases (PostgreSQL)  holder, token = greatest(token + 1, revision), expires_at

The etcd revision is only a candidate for the token: revisions start low again after a loss of data or the restore of an
old snapshot, and tokens must still grow (see docs/decisions/014). Safety does not depend on etcd: if two nodes believe
that they hold a shard, the fencing check of each write accepts only the latest token.

Uses etcd's JSON gateway over HTTP, which exists since etcd 3.4.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import httpx2
import msgspec

from bellringer.backends.etcd_address import EtcdAddress
from bellringer.core.leases import LEASE_DURATION, LeaseKeeper, LeaseTable
from bellringer.errors import Unavailable

ETCD_TIMEOUT_SECONDS: Final = 1.0  # for one response of one server
MAX_KEYS_PER_TRANSACTION: Final = 100  # etcd allows 128 operations
HINT_INTERVAL_SECONDS: Final = 0.2  # minimum time between two hints that shards are free
WATCH_RESTART_SECONDS: Final = 7.0  # a watch without events for this long is restarted: its server may be down
_GRPC_NOT_FOUND: Final = 5  # the lease does not exist
_GRPC_UNAUTHENTICATED: Final = 16  # the token has expired, or the server has restarted


class EtcdLeases(LeaseKeeper):
    """Uses one etcd lease per node and one key per shard."""

    def __init__(self, ledger: LeaseTable, address: EtcdAddress, lease: timedelta = LEASE_DURATION) -> None:
        self._ledger = ledger
        self._address = address
        self._lease = lease
        self._lease_id: str | None = None
        self._client: httpx2.AsyncClient | None = None
        self._first = 0  # index of the last server that responded
        self._tls = address.tls()
        self._token: str | None = None  # of the user; etcd forgets it after some minutes

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        """Create the key, then the row. If this fails in between, the next renewal deletes the key."""
        if self._lease_id is None:
            self._lease_id = (await self._ask("lease/grant", {"TTL": math.ceil(self._lease.total_seconds())}))["ID"]
        taken = await self._keys()
        shards = await self._ledger.shards() if among is None else sorted(among)
        won = await self._create(holder, [s for s in shards if s not in taken][:want])
        return await self._ledger.install(holder, won) if won else {}

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        """Return the shards that this node holds according to both etcd and PostgreSQL."""
        if self._lease_id is None:
            return frozenset()
        kept = await self._ask("lease/keepalive", {"ID": self._lease_id})
        if not int(kept["result"].get("TTL", 0)):  # the lease had expired, or etcd has lost its data
            self._lease_id = None
            return frozenset()
        mine = {shard for shard, lease_id in (await self._keys()).items() if lease_id == self._lease_id}
        # A key without a row came back with an old snapshot, or its row could not be written. It would block others.
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
        """Wake the node when keys are deleted, and when etcd becomes available again."""
        first, last = self._range()
        request = {"create_request": {"key": first, "range_end": last, "filters": ["NOPUT"]}}
        while True:
            try:
                async with self._http().stream(
                    "POST",
                    self._url("watch"),
                    json=request,
                    headers=await self._headers(),
                    timeout=httpx2.Timeout(ETCD_TIMEOUT_SECONDS, read=WATCH_RESTART_SECONDS),
                ) as answer:
                    async for line in answer.aiter_lines():
                        if '"error"' in line:
                            self._token = None  # it may have expired
                            break
                        if '"events"' in line or '"created"' in line:
                            freed()
                            await asyncio.sleep(HINT_INTERVAL_SECONDS)
            except httpx2.ReadTimeout:
                continue  # there may just have been no events
            except (httpx2.HTTPError, Unavailable):
                self._first += 1
            await asyncio.sleep(ETCD_TIMEOUT_SECONDS)

    # Keys

    async def _keys(self) -> Mapping[int, str]:
        """Return the shards that have a key, and the lease id of each."""
        first, last = self._range()
        found = (await self._ask("kv/range", {"key": first, "range_end": last})).get("kvs", ())
        names = ((b64decode(kv["key"]).decode().rpartition("/")[2], kv.get("lease", "")) for kv in found)
        return {int(name): lease_id for name, lease_id in names if name.isdecimal()}

    async def _create(self, holder: UUID, shards: Sequence[int]) -> Mapping[int, int]:
        """Create the keys that do not exist. Returns the revision of each created key."""
        value = _base64(str(holder))
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
        """Delete the keys that are still attached to this node's lease."""
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
        """Execute conditional steps in batches. Returns the revision of each step whose condition was true."""
        done: dict[int, int] = {}
        shards = list(steps)
        for start in range(0, len(shards), MAX_KEYS_PER_TRANSACTION):
            some = shards[start : start + MAX_KEYS_PER_TRANSACTION]
            answer = await self._ask("kv/txn", {"success": [{"request_txn": steps[shard]} for shard in some]})
            revision = int(answer["header"]["revision"])
            for shard, response in zip(some, answer["responses"], strict=True):
                if response["response_txn"].get("succeeded"):
                    done[shard] = revision
        return done

    def _key(self, shard: int) -> str:
        return _base64(f"{self._address.prefix}/shards/{shard}")

    def _range(self) -> tuple[str, str]:
        """Return the key range of all shards: from "…/" to the next character, "0"."""
        return _base64(f"{self._address.prefix}/shards/"), _base64(f"{self._address.prefix}/shards0")

    # Calls

    async def _ask(self, what: str, body: Mapping[str, Any]) -> Any:
        """Send a request to the last server that responded, or to the next one that does. Logs in again if the token of
        the user has expired.
        """
        document, why = await self._post(what, body, await self._headers())
        if document is not None and document.get("code") == _GRPC_UNAUTHENTICATED and self._address.user is not None:
            self._token = None
            document, why = await self._post(what, body, await self._headers())
        if document is None or "error" in document:
            raise self._unavailable(why)
        return document

    async def _post(self, what: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[Any, str]:
        """Return the first response, and why it is an error; None if no server responds."""
        document, why = None, ""
        for _ in self._address.servers:
            try:
                async with asyncio.timeout(ETCD_TIMEOUT_SECONDS):
                    answer = await self._http().post(self._url(what), json=body, headers=headers)
                document = msgspec.json.decode(answer.content)
            except (httpx2.HTTPError, TimeoutError, msgspec.DecodeError) as error:
                why = _describe_failure(error)
            else:
                if "error" not in document:
                    return document, ""
                why = f"returned {str(document.get('message') or document['error'])[:100]!r}"
                if document.get("code") == _GRPC_UNAUTHENTICATED:
                    break
                if document.get("code") == _GRPC_NOT_FOUND:  # the lease has expired; the next pass gets a new one
                    self._lease_id = None
                    break
            self._first += 1
        return document, why

    async def _headers(self) -> Mapping[str, str]:
        """Return the headers of a request: the token of the user, if the address names one."""
        if self._address.user is None:
            return {}
        if self._token is None:
            login = {"name": self._address.user, "password": self._address.password}
            document, why = await self._post("auth/authenticate", login, {})
            if document is None or "token" not in document:
                raise self._unavailable(f"did not accept the user {self._address.user!r}: {why}")
            self._token = document["token"]
        return {"Authorization": self._token}

    def _unavailable(self, why: str) -> Unavailable:
        is_login = self._address.user is not None or "permission denied" in why or "user name is empty" in why
        hint = "check user, password and permissions in BELLRINGER_COORDINATION" if is_login else ""
        if "TLS" in why:
            hint = "check etcds://, ca, cert and key in BELLRINGER_COORDINATION"
        return Unavailable(
            f"etcd at {', '.join(self._address.servers)} {why}", hint=hint or "check that etcd is running, and its log"
        )

    def _url(self, what: str) -> str:
        return f"{self._address.scheme}://{self._address.servers[self._first % len(self._address.servers)]}/v3/{what}"

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:  # created in the event loop that uses it; environment proxies are ignored
            self._client = httpx2.AsyncClient(timeout=ETCD_TIMEOUT_SECONDS, trust_env=False, verify=self._tls)
        return self._client


def _describe_failure(error: BaseException) -> str:
    """Return why a request failed; errors of TLS are nested in those of the client."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"has a TLS certificate that was not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"refused the TLS connection: {str(cause.reason or cause).replace('_', ' ').lower()}"
        cause = cause.__cause__ or cause.__context__
    return "does not respond"


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
