"""Addresses of PostgreSQL: one or several hosts, TLS options, and the parameter `pgbouncer`.

        postgresql://user@host:5432/database
        postgresql://user@a:5432,b:5432/database?target_session_attrs=read-write
        postgresql://user@pooler:6432/database?pgbouncer=true

The driver does not know `pgbouncer`, so `driver_dsn` removes it. See docs/decisions/032.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from bellringer.errors import ConfigError

POOLER_PARAMETER: Final = "pgbouncer"
DEFAULT_PORT: Final = 5432
_SWITCH: Final = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def is_pooled(dsn: str) -> bool:
    """Returns whether the address is that of a pooler which assigns a server connection per transaction."""
    value = dict(parse_qsl(urlsplit(dsn).query)).get(POOLER_PARAMETER, "false")
    try:
        return _SWITCH[value.lower()]
    except KeyError:
        raise ConfigError(f"the DSN has {POOLER_PARAMETER}={value!r}", hint="give true or false") from None


def driver_dsn(dsn: str) -> str:
    """Returns the address without the parameters that the driver does not know."""
    scheme, _, rest = dsn.partition("://")
    place, _, query = rest.partition("?")
    if POOLER_PARAMETER not in query:
        return dsn
    kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != POOLER_PARAMETER]
    return f"{scheme}://{place}" + (f"?{urlencode(kept)}" if kept else "")


def endpoints(dsn: str) -> list[tuple[str, int]]:
    """Returns the hosts and ports, in the order in which the driver tries them. A host that begins with "/" is the
    folder of a Unix socket. Raises ValueError if a port is not a number.
    """
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query))
    hosts, ports = [], []
    for place in filter(None, parts.netloc.rpartition("@")[2].split(",")):
        bracket = place.rfind("]")
        colon = place.rfind(":")
        hosts.append(unquote(place[:colon] if colon > bracket else place).strip("[]"))
        ports.append(place[colon + 1 :] if colon > bracket else "")
    hosts = hosts or [host for host in options.get("host", "").split(",") if host] or [""]
    given = options.get("port", "").split(",")
    ports = [port or given[min(index, len(given) - 1)] for index, port in enumerate(ports or [""] * len(hosts))]
    return [(host, int(port) if port else DEFAULT_PORT) for host, port in zip(hosts, ports, strict=False)]


def describe_endpoints(dsn: str) -> str:
    """Returns the hosts and ports for messages, without user and password."""
    try:
        found = endpoints(dsn)
    except ValueError:
        return "an invalid address"
    named = [
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found if host[:1] not in ("", "/")
    ]
    return " or ".join(named) or "its socket"
