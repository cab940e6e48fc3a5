"""A URL that may be called: read once, strictly; what is not plainly a public HTTPS address is refused."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

import idna

from bellringer.egress.addresses import Address, Network, is_allowed, is_permitted, looks_numeric, read_number
from bellringer.errors import InvalidInput

LONGEST: Final = 2048
LONGEST_HOST: Final = 253
STANDARD: Final = {"https": 443, "http": 80}
# Above 1023, where other things than web servers listen by custom: what they make of a request is not ours to try.
_DENIED_PORTS: Final = frozenset(
    {1433, 1521, 2049, 2375, 2376, 2379, 2380, 3306, 3389, 4369, 5060, 5061, 5432, 5433, 5672, 5900, 5984, 6000, 6379}
    | {6380, 6432, 6566, 6665, 6666, 6667, 6668, 6669, 6697, 7000, 7001, 9042, 9092, 9200, 9300, 10080, 10250, 10255}
    | {11211, 15672, 26257, 26379, 27017, 27018, 27019, 50000}
)
_SHAPE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\]*)(/[^?#]*)?(?:\?([^#]*))?(#.*)?")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]*")
_LOWER: Final = {ord(sign): sign.lower() for sign in string.ascii_uppercase}  # str.lower would make K (U+212A) a k
_HERE: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """Where a call goes: `host` is an ASCII name, or an address without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    address: Address | None = None

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == STANDARD[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def authority(self) -> str:
        """The Host header."""
        return self.origin.partition("://")[2]

    def __str__(self) -> str:
        return self.origin + self.target


def origin_of(written: str) -> str:
    """The origin of a URL that `Url` has written."""
    return "/".join(written.split("/", 3)[:3])


def parse_url(text: object, allowed: Sequence[Network] = (), *, pointer: str = "/url") -> Url:
    """Read a URL, or refuse it: what a name resolves to is checked again when it is called."""
    try:
        return _parse(text, allowed)
    except InvalidInput as error:
        error.pointer = pointer
        raise


def _parse(text: object, allowed: Sequence[Network]) -> Url:
    if not isinstance(text, str) or not text:
        raise _invalid("must be text", hint="write it like https://example.com/hook")
    if len(text) > LONGEST:
        raise _invalid(f"has {len(text)} characters, more than {LONGEST}")
    shape = _SHAPE.fullmatch(text)
    scheme = shape[1].lower() if shape else ""
    if shape is None or scheme not in STANDARD:
        raise _invalid("is not an https:// address", hint="write it like https://example.com/hook")
    if "@" in shape[2]:
        raise _invalid("names a user or password", hint="send what proves who you are as a header")
    if shape[5] is not None:
        raise _invalid("has a fragment", hint="leave out # and what follows; no server would see it")
    target = (shape[3] or "/") + ("" if shape[4] is None else f"?{shape[4]}")
    if not _VISIBLE.fullmatch(target) or "\\" in target:
        raise _invalid("has signs in its path or query that cannot be sent", hint="percent-encode them")
    host, port_text = _split(shape[2])
    name, address = _host(host, allowed)
    port = _port(port_text, scheme)
    if scheme == "http" and not _may_be_plain(name, address, allowed):
        raise _invalid("is not https", hint="http is only for addresses in the operator's egress_allow")
    return Url(scheme=scheme, host=name, port=port, target=target, address=address)


def _split(authority: str) -> tuple[str, str | None]:
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _invalid("has a host that cannot be read")
        return host + bracket, rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _host(host: str, allowed: Sequence[Network]) -> tuple[str, Address | None]:
    """The name, or the address that is written there, however it is written."""
    if host.startswith("["):
        try:
            six = IPv6Address(host[1:-1])
        except ValueError:
            raise _invalid("has an IPv6 address that cannot be read") from None
        if six.scope_id:
            raise _invalid("has an address with a scope", hint="leave out % and what follows")
        return str(_checked(six, allowed)), six
    name = _name(host)
    if looks_numeric(name):
        address = read_number(name)
        if address is None:
            raise _invalid("has a host of numbers that is no address")
        _checked(address, allowed)
        if str(address) != name:
            raise _invalid("has an address in an unusual form", hint=f"write it as {address}")
        return name, address
    if name == "localhost" or name.endswith(".localhost"):
        for here in _HERE:
            if is_allowed(ip_address(here), allowed):
                return name, None
        raise _forbidden(name)
    return name, None


def _name(host: str) -> str:
    """A host in ASCII. Only letters of IDNA 2008 are taken: nothing is folded into digits or dots on the way."""
    name = host.translate(_LOWER)
    if not name.isascii():
        labels = name.split(".")
        try:
            name = ".".join(idna.alabel(label).decode("ascii") for label in labels)
        except (idna.IDNAError, UnicodeError):
            raise _invalid("has a host with signs that no name can have") from None
    if len(name) > LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise _invalid("has a host that is no name", hint="labels of letters, digits and '-', without a dot at the end")
    if any(label.startswith("xn--") for label in name.split(".")):
        try:
            idna.decode(name)
        except (idna.IDNAError, UnicodeError):
            raise _invalid("has a host with a label that is no IDNA name") from None
    return name


def _port(text: str | None, scheme: str) -> int:
    if text is None:
        return STANDARD[scheme]
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > 65535:
        raise _invalid("has a port that is none", hint="ports are 1 to 65535")
    port = int(text)
    if port == STANDARD[scheme] or (port > 1023 and port not in _DENIED_PORTS):
        return port
    raise _invalid(f"names port {port}, which is not called", hint="use 443, 8443 or another port above 1023")


def _may_be_plain(name: str, address: Address | None, allowed: Sequence[Network]) -> bool:
    """Without TLS only where the operator permits; a name's addresses are known only when it is called."""
    if address is not None:
        return is_permitted(address, allowed)
    return bool(allowed) and bool(name)


def _checked(address: Address, allowed: Sequence[Network]) -> Address:
    if not is_allowed(address, allowed):
        raise _forbidden(str(address))
    return address


def _forbidden(where: str) -> InvalidInput:
    return InvalidInput(
        f"the URL leads to {where}, which is not a public address",
        hint="an operator may permit private networks with the setting egress_allow",
        code="url_forbidden_address",
    )


def _invalid(problem: str, *, hint: str = "") -> InvalidInput:
    return InvalidInput(f"the URL {problem}", hint=hint, code="url_invalid")
