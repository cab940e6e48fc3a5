"""Decides which IP addresses may be called: public ones, and networks that the operator allows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from bellringer.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Listed explicitly, because `is_global` of Python differs between versions, treats multicast as global and the shared
# address space (100.64/10) as not private, and ignores IPv4 addresses embedded in IPv6 ones.
_DENIED: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",  # with an IPv4 address inside, and :: and ::1
        "::ffff:0:0:0/96",
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",
        "100::/64",
        "100:0:0:1::/64",
        "2001::/23",  # Teredo, ORCHID, benchmarks
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
_PUBLIC_IPV6: Final = ip_network("2000::/3")  # IANA allocates no other global addresses
_NUMBER_PART: Final = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")


def is_allowed(address: Address, allowed: Iterable[Network] = ()) -> bool:
    """Whether this address may be called: it is public, or in a network that the operator allows."""
    address = unmap_ipv4(address)
    if _is_in(address, allowed):
        return True
    if isinstance(address, IPv6Address) and (address.scope_id or address not in _PUBLIC_IPV6):
        return False
    return address.is_global and not address.is_multicast and not _is_in(address, _DENIED)


def is_permitted(address: Address, allowed: Iterable[Network]) -> bool:
    """Whether the operator explicitly allows this address; such an address may also be called without TLS."""
    return _is_in(unmap_ipv4(address), allowed)


def unmap_ipv4(address: Address) -> Address:
    """Returns the IPv4 address of an IPv4-mapped IPv6 address, and other addresses unchanged."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_networks(written: Sequence[str]) -> tuple[Network, ...]:
    """Parses the networks of the setting egress_allow. Raises ConfigError."""
    networks: list[Network] = []
    for text in written:
        try:
            networks.append(ip_network(text.strip()))
        except ValueError as error:
            raise ConfigError(
                f"egress_allow contains {text!r}: {error}", hint="use networks such as 10.1.0.0/16 or fd00::/8"
            ) from None
    return tuple(networks)


def looks_numeric(host: str) -> bool:
    """Whether some resolver would read this host as an IP address rather than a name."""
    return _NUMBER_PART.fullmatch(host.rpartition(".")[2]) is not None


def parse_numeric_host(host: str) -> Address | None:
    """Returns the address that resolvers derive from a numeric host: up to four parts, decimal, octal or
    hexadecimal; the last part fills the remaining bytes. None if it is not an address.
    """
    try:
        return ip_address(host)
    except ValueError:
        pass
    parts = host.split(".")
    if len(parts) > 4 or not all(_NUMBER_PART.fullmatch(part) for part in parts):
        return None
    try:
        *heads, last = [_parse_number(part) for part in parts]
    except ValueError:
        return None
    if any(head > 255 for head in heads) or last >= 256 ** (4 - len(heads)):
        return None
    return IPv4Address(sum(head << 8 * (3 - place) for place, head in enumerate(heads)) + last)


def _parse_number(part: str) -> int:
    if part[:2] in ("0x", "0X"):
        return int(part[2:] or "0", 16)
    return int(part, 8) if part.startswith("0") else int(part)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
