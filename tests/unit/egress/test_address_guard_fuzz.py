"""The guard under fire: whatever URL is given and whatever resolvers answer, nothing private is connected to.

A bounded number of examples; BELLRINGER_FUZZ_SECONDS=3600 goes on for so long, and tells how many there were.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import httpcore2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bellringer.egress.addresses import parse_networks
from bellringer.egress.guarded_connect import EgressGuard
from bellringer.egress.http_call import CallFailure, HttpRequest, send_request
from bellringer.egress.urls import parse_url
from bellringer.errors import InvalidInput

SECONDS = float(os.environ.get("BELLRINGER_FUZZ_SECONDS", "0"))

# A second opinion, from the registries of special addresses, that shares nothing with the guard.
FOUR = [
    (ip_network(n).network_address, ip_network(n).broadcast_address)
    for n in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
]


def is_private(text: str) -> bool:
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return any(int(low) <= int(address) <= int(high) for low, high in FOUR)
    number = int(address)
    if number >> 32 == 0xFFFF:
        return is_private(str(IPv4Address(number & 0xFFFFFFFF)))
    if number >> 125 != 1:  # not 2000::/3
        return True
    head = number >> 96
    return number >> 112 == 0x2002 or head >> 9 == 0x20010000 >> 9 or head == 0x20010DB8 or number >> 108 == 0x3FFF0


@dataclass
class Dialler(httpcore2.AsyncNetworkBackend):
    """Connects to nothing, and remembers where it was told to."""

    told: list[str] = field(default_factory=list)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.told.append(host)
        raise httpcore2.ConnectError("a fake")


@dataclass
class Resolver:
    """Answers something else each time it is asked; the system's way with numbers is kept."""

    answers: list[list[str] | None]
    asked: int = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        try:
            return [socket.inet_ntoa(socket.inet_aton(host))]  # as getaddrinfo does with 0x7f.1
        except (OSError, UnicodeError):
            pass
        try:
            return [str(ip_address(host))]
        except ValueError:
            pass
        answer = self.answers[(self.asked - 1) % len(self.answers)]
        if answer is None:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return answer


four = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([low for low, _ in FOUR] + [high for _, high in FOUR]).flatmap(
        lambda edge: st.integers(-2, 2).map(lambda by: min(max(int(edge) + by, 0), 2**32 - 1))
    ),
    st.sampled_from(
        [int(IPv4Address(a)) for a in ("127.0.0.1", "169.254.169.254", "10.0.0.1", "8.8.8.8", "100.64.0.1")]
    ),
)


def wrapped(number: int) -> st.SearchStrategy[IPv6Address]:
    """An IPv4 address inside of an IPv6 one: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP."""
    return st.sampled_from(
        [
            IPv6Address(0xFFFF << 32 | number),
            IPv6Address(number),
            IPv6Address(0xFFFF << 48 | number),
            IPv6Address(0x64FF9B << 96 | number),
            IPv6Address(0x64FF9B0001 << 80 | number),
            IPv6Address(0x2002 << 112 | number << 80),
            IPv6Address(0x20010000 << 96 | number << 64 | number ^ 0xFFFFFFFF),
            IPv6Address(0xFE80 << 112 | 0x5EFE << 32 | number),
        ]
    )


six = st.one_of(
    four.flatmap(wrapped),
    st.integers(0, 2**128 - 1).map(IPv6Address),
    st.integers(0, 2**125 - 1).map(lambda n: IPv6Address(1 << 125 | n)),
    st.sampled_from(["::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2606:4700::1111"]).map(
        IPv6Address
    ),
)


def part(draw: st.DrawFn, value: int) -> str:
    form = draw(st.sampled_from(["{}", "0{:o}", "0x{:x}", "0X{:X}", "00{:o}", "0x0{:x}"]))
    return form.format(value)


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """An IPv4 address as resolvers read it: one to four parts, each in tens, eights or sixteens."""
    value, parts = draw(four), draw(st.integers(1, 4))
    heads = [value >> 8 * (3 - place) & 255 for place in range(parts - 1)]
    return ".".join(part(draw, v) for v in (*heads, value & (1 << 8 * (5 - parts)) - 1))


DIGITS = ["0123456789", "⓪①②③④⑤⑥⑦⑧⑨", "０１２３４５６７８９", "٠١٢٣٤٥٦٧٨٩", "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗", "₀₁₂₃₄₅₆₇₈₉"]


@st.composite
def disguised(draw: st.DrawFn) -> str:
    """A host in signs that look like, or fold into, other signs."""
    text = draw(
        st.one_of(numbers(), four.map(lambda n: str(IPv4Address(n))), st.sampled_from(["localhost", "local.host"]))
    )
    digits = draw(st.sampled_from(DIGITS))
    text = "".join(digits[int(c)] if c.isascii() and c.isdigit() else c for c in text)
    text = text.replace(".", draw(st.sampled_from([".", "。", "．", "｡", "․", "%2e", ".\u200b", "\u00ad."])))
    return draw(st.sampled_from([text, text + ".", text.upper(), f"{text}%00", f"{text}\t", f"x@{text}", f"{text}\\"]))


@st.composite
def names(draw: st.DrawFn) -> str:
    signs = draw(st.sampled_from(["abcdefghijklmnopqrstuvwxyz", "abc019-", "abcäßı€К-xn"]))
    label = st.text(signs, min_size=1, max_size=12)
    return ".".join(draw(st.lists(label, min_size=1, max_size=4)))


hosts = st.one_of(
    numbers(),
    four.map(lambda n: str(IPv4Address(n))),
    six.map(lambda a: f"[{a}]"),
    six.map(lambda a: f"[{a.exploded}]"),
    four.flatmap(lambda n: st.sampled_from(["::ffff:", "::", "64:ff9b::"]).map(lambda p: f"[{p}{IPv4Address(n)}]")),
    disguised(),
    names(),
    st.sampled_from(
        ["example.com", "rebind.example", "localhost", "a.localhost", "bücher.example", "metadata.internal"]
    ),
    st.text(max_size=20),
)
address = st.one_of(four.map(lambda n: str(IPv4Address(n))), six.map(str))
answers = st.lists(st.one_of(st.none(), st.lists(address, max_size=4)), min_size=1, max_size=4)
ports = st.one_of(
    st.just(""),
    st.just(""),
    st.just(""),
    st.integers(-1, 70000).map(lambda p: f":{p}"),
    st.sampled_from([":443", ":8443", ":22"]),
)
paths = st.one_of(st.sampled_from(["", "/", "/a?b=c", "/@127.0.0.1/", "?x"]), st.just("/"), st.text(max_size=10))


@st.composite
def urls(draw: st.DrawFn) -> str:
    user = draw(st.sampled_from([*[""] * 12, "a@", "a:b@", "127.0.0.1@"]))
    scheme = draw(st.sampled_from([*["https"] * 8, "http", "HTTPS", "ftp", "file"]))
    return f"{scheme}://{user}{draw(hosts)}{draw(ports)}{draw(paths)}"


async def tried(url: str, resolver: Resolver, times: int, allowed: Sequence[str] = ()) -> tuple[list[str], list[Any]]:
    """Call it a few times, as retries would; where the diallers were told to connect, and what came of it."""
    networks, dialler, ends = parse_networks(allowed), Dialler(), []
    try:
        target = parse_url(url, networks)
    except InvalidInput as error:
        return [], [error.code]
    for _ in range(times):
        guard = EgressGuard(networks, target.scheme == "https", resolver, dialler)
        asked = resolver.asked
        ends.append(await send_request(HttpRequest(url=target, timeout=timedelta(seconds=5)), guard, time.monotonic))
        assert resolver.asked == asked + 1  # resolved once a call: there is no second answer to be had
    return dialler.told, ends


def check(url: str, said: list[list[str] | None]) -> int:
    told, ends = asyncio.run(tried(url, Resolver(said), 3))
    assert [where for where in told if is_private(where)] == [], (url, said)
    assert all(isinstance(end, CallFailure) or end in ("url_invalid", "url_forbidden_address") for end in ends)
    return len(told)


@settings(max_examples=600, suppress_health_check=list(HealthCheck))
@given(url=urls(), said=answers)
def test_nothing_private_is_ever_connected_to(url: str, said: list[list[str] | None]) -> None:
    check(url, said)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(said=answers)
def test_a_name_that_answers_differently_each_time_leads_nowhere_private(said: list[list[str] | None]) -> None:
    told, ends = asyncio.run(tried("https://rebind.example/", Resolver(said), 6))
    assert [where for where in told if is_private(where)] == []
    for turn, end in enumerate(ends):
        answer = said[turn % len(said)]
        assert isinstance(end, CallFailure)
        if not answer or any(is_private(a) for a in answer):  # one private address spoils the answer
            assert (end.trouble, end.message) == ("resolve_failed", "rebind.example has no public address")


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(url=urls(), said=answers)
def test_an_allow_list_opens_what_it_names_and_nothing_else(url: str, said: list[list[str] | None]) -> None:
    told, _ = asyncio.run(tried(url, Resolver(said), 3, ["10.1.0.0/16"]))
    inside = ip_network("10.1.0.0/16")
    assert [w for w in told if is_private(w) and ip_address(w) not in inside] == []


def test_the_fuzz_does_connect_where_it_may() -> None:
    """A guard that refused everything would pass all of the above."""
    told, _ = asyncio.run(tried("https://example.com/", Resolver([["93.184.216.34", "2606:4700::1111"]]), 1))
    assert told == ["93.184.216.34", "2606:4700::1111"]


@pytest.mark.timeout(SECONDS + 300)
def test_for_as_long_as_was_asked() -> None:
    """Rounds of fresh examples until the time is over; one round where none was given."""
    until, made, connected, rounds = time.monotonic() + SECONDS, 0, 0, 0
    while rounds == 0 or time.monotonic() < until:

        @settings(
            max_examples=2000 if SECONDS else 50,
            database=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(url=urls(), said=answers)
        def one_round(url: str, said: list[list[str] | None]) -> None:
            nonlocal made, connected
            made, connected = made + 1, connected + check(url, said)

        one_round()
        rounds += 1
        if SECONDS:
            print(f"{made} URLs in {rounds} rounds, {connected} connections, none of them private", flush=True)
    assert made >= 50
