"""Which addresses may be called."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from bellringer.egress.addresses import is_allowed, is_permitted, parse_networks, parse_numeric_host
from bellringer.errors import ConfigError

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "4000::1",
    "1::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.1",
    "2606:4700::1111",
    "2a00:1450:4001::64",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_may_not_be_called(text: str) -> None:
    assert not is_allowed(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_public_may_be_called(text: str) -> None:
    assert is_allowed(ip_address(text))


def test_an_operator_may_permit_a_network_and_only_that() -> None:
    allowed = parse_networks(["10.1.0.0/16", "::1/128"])
    assert is_allowed(ip_address("10.1.2.3"), allowed)
    assert is_allowed(ip_address("::ffff:10.1.2.3"), allowed)
    assert is_allowed(ip_address("::1"), allowed)
    assert not is_allowed(ip_address("10.2.0.1"), allowed)
    assert not is_allowed(ip_address("64:ff9b::a01:203"), allowed)  # the same address in NAT64
    assert is_permitted(ip_address("10.1.2.3"), allowed)
    assert not is_permitted(ip_address("8.8.8.8"), allowed)


def test_a_list_that_cannot_be_read_is_refused() -> None:
    assert parse_networks([" 10.0.0.0/8 "]) == (ip_network("10.0.0.0/8"),)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1/8"):
        parse_networks(["10.0.0.1/8"])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("0", "0.0.0.0"),
        ("2130706433", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0x7F000001", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0177.0.0.01", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("10.1.258", "10.1.1.2"),
        ("8.8.8.8", "8.8.8.8"),
        ("0x", "0.0.0.0"),
    ],
)
def test_numbers_are_read_as_resolvers_read_them(written: str, meant: str) -> None:
    assert parse_numeric_host(written) == ip_address(meant)


@pytest.mark.parametrize(
    "written", ["256.1.1.1", "1.2.3.4.5", "4294967296", "09.1.1.1", "1..1", "1.2.3.256", "a.1", ""]
)
def test_what_no_resolver_takes_for_a_number_is_none(written: str) -> None:
    assert parse_numeric_host(written) is None
