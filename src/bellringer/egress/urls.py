"""Parses URLs strictly. Rejects every URL that is not clearly a public HTTPS address."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

import idna

from bellringer.egress.addresses import Address, Network, is_allowed, is_permitted, looks_numeric, parse_numeric_host
from bellringer.errors import InvalidInput

MAX_URL_LENGTH: Final = 2048
MAX_HOST_LENGTH: Final = 253
DEFAULT_PORTS: Final = {"https": 443, "http": 80}
# Ports above 1023 that usually belong to services other than web servers, which may misinterpret an HTTP request.
_DENIED_PORTS: Final = frozenset(
    {1433, 1521, 2049, 2375, 2376, 2379, 2380, 3306, 3389, 4369, 5060, 5061, 5432, 5433, 5672, 5900, 5984, 6000, 6379}
    | {6380, 6432, 6566, 6665, 6666, 6667, 6668, 6669, 6697, 7000, 7001, 9042, 9092, 9200, 9300, 10080, 10250, 10255}
    | {11211, 15672, 26257, 26379, 27017, 27018, 27019, 50000}
)
_URL_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\]*)(/[^?#]*)?(?:\?([^#]*))?(#.*)?")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]*")
_ASCII_LOWER: Final = {
    ord(sign): sign.lower() for sign in string.ascii_uppercase
}  # str.lower would convert the Kelvin sign (U+212A) to k
_LOOPBACK_ADDRESSES: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """A validated URL. `host` is an ASCII name, or an IP address without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    address: Address | None = None

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def authority(self) -> str:
        """The Host header."""
        return self.origin.partition("://")[2]

    def __str__(self) -> str:
        return self.origin + self.target


def origin_of(written: str) -> str:
    """Returns the origin of a URL in the text form of `Url`."""
    return "/".join(written.split("/", 3)[:3])


def parse_url(text: object, allowed: Sequence[Network] = (), *, pointer: str = "/url") -> Url:
    """Parses a URL. The addresses of its name are checked again when it is called. Raises InvalidInput."""
    try:
        return _parse(text, allowed)
    except InvalidInput as error:
        error.pointer = pointer
        raise


def _parse(text: object, allowed: Sequence[Network]) -> Url:
    if not isinstance(text, str) or not text:
        raise _invalid_url_error("must be a string", hint="example: https://example.com/hook")
    if len(text) > MAX_URL_LENGTH:
        raise _invalid_url_error(f"has {len(text)} characters; the maximum is {MAX_URL_LENGTH}")
    shape = _URL_PARTS.fullmatch(text)
    scheme = shape[1].lower() if shape else ""
    if shape is None or scheme not in DEFAULT_PORTS:
        raise _invalid_url_error("is not an https:// URL", hint="example: https://example.com/hook")
    if "@" in shape[2]:
        raise _invalid_url_error("contains a user or password", hint="send credentials in a header")
    if shape[5] is not None:
        raise _invalid_url_error("has a fragment", hint="remove # and everything after it")
    target = (shape[3] or "/") + ("" if shape[4] is None else f"?{shape[4]}")
    if not _VISIBLE.fullmatch(target) or "\\" in target:
        raise _invalid_url_error("has invalid characters in its path or query", hint="percent-encode them")
    host, port_text = _split_authority(shape[2])
    name, address = _parse_host(host, allowed)
    port = _parse_port(port_text, scheme)
    if scheme == "http" and not _may_use_http(name, address, allowed):
        raise _invalid_url_error("is not https", hint="http is only allowed for addresses in the setting egress_allow")
    return Url(scheme=scheme, host=name, port=port, target=target, address=address)


def _split_authority(authority: str) -> tuple[str, str | None]:
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _invalid_url_error("has an invalid host")
        return host + bracket, rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _parse_host(host: str, allowed: Sequence[Network]) -> tuple[str, Address | None]:
    """Returns the name, and the IP address if the host is one, in whatever form it is written."""
    if host.startswith("["):
        try:
            six = IPv6Address(host[1:-1])
        except ValueError:
            raise _invalid_url_error("has an invalid IPv6 address") from None
        if six.scope_id:
            raise _invalid_url_error("has an IPv6 address with a scope", hint="remove % and everything after it")
        return str(_check_address(six, allowed)), six
    name = _normalize_name(host)
    if looks_numeric(name):
        address = parse_numeric_host(name)
        if address is None:
            raise _invalid_url_error("has a numeric host that is not an IP address")
        _check_address(address, allowed)
        if str(address) != name:
            raise _invalid_url_error("has an IP address in an unusual form", hint=f"write it as {address}")
        return name, address
    if name == "localhost" or name.endswith(".localhost"):
        for here in _LOOPBACK_ADDRESSES:
            if is_allowed(ip_address(here), allowed):
                return name, None
        raise _forbidden_address_error(name)
    return name, None


def _normalize_name(host: str) -> str:
    """Returns the host name in ASCII. Only letters of IDNA 2008 are accepted, so nothing is folded into digits or
    dots.
    """
    name = host.translate(_ASCII_LOWER)
    if not name.isascii():
        labels = name.split(".")
        try:
            name = ".".join(idna.alabel(label).decode("ascii") for label in labels)
        except (idna.IDNAError, UnicodeError):
            raise _invalid_url_error("has a host name with invalid characters") from None
    if len(name) > MAX_HOST_LENGTH or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise _invalid_url_error(
            "has an invalid host name", hint="use letters, digits and '-', without a dot at the end"
        )
    if any(label.startswith("xn--") for label in name.split(".")):
        try:
            idna.decode(name)
        except (idna.IDNAError, UnicodeError):
            raise _invalid_url_error("has a host name with an invalid IDNA label") from None
    return name


def _parse_port(text: str | None, scheme: str) -> int:
    if text is None:
        return DEFAULT_PORTS[scheme]
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > 65535:
        raise _invalid_url_error("has an invalid port", hint="a port is a number from 1 to 65535")
    port = int(text)
    if port == DEFAULT_PORTS[scheme] or (port > 1023 and port not in _DENIED_PORTS):
        return port
    raise _invalid_url_error(f"has port {port}, which is not allowed", hint="use 443, 8443 or another port above 1023")


def _may_use_http(name: str, address: Address | None, allowed: Sequence[Network]) -> bool:
    """Whether the URL may be called without TLS: only addresses that the operator allows. The addresses of a name
    are checked when it is called.
    """
    if address is not None:
        return is_permitted(address, allowed)
    return bool(allowed) and bool(name)


def _check_address(address: Address, allowed: Sequence[Network]) -> Address:
    if not is_allowed(address, allowed):
        raise _forbidden_address_error(str(address))
    return address


def _forbidden_address_error(where: str) -> InvalidInput:
    return InvalidInput(
        f"the URL points to {where}, which is not a public address",
        hint="an operator can allow private networks with the setting egress_allow",
        code="url_forbidden_address",
    )


def _invalid_url_error(problem: str, *, hint: str = "") -> InvalidInput:
    return InvalidInput(f"the URL {problem}", hint=hint, code="url_invalid")
