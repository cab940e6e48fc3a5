"""The address of an etcd cluster: servers, prefix of the keys, TLS and user."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from bellringer.errors import ConfigError

DEFAULT_PORT: Final = 2379
TLS_OPTIONS: Final = ("ca", "cert", "key")  # paths of PEM files
HINT: Final = "write it like etcd://host:2379,host:2379/prefix or etcds://user:password@host:2379/prefix?ca=/path"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The servers of an etcd cluster, the prefix of our keys, and how to log in."""

    servers: tuple[str, ...]  # host:port
    prefix: str
    scheme: str = "http"
    user: str | None = None
    password: str = field(default="", repr=False)
    ca: str | None = None  # file of the certificate authority; None: those of the system
    cert: str | None = None  # file of the client's certificate
    key: str | None = None

    @classmethod
    def read(cls, text: str, installation: str) -> Self:
        """Parse etcd://host:2379,host:2379/prefix, or etcds:// for TLS. The default prefix is unique to the
        installation.
        """
        scheme, _, rest = text.partition("://")
        place, _, query = rest.partition("?")
        login, at, hosts_and_prefix = place.rpartition("@")
        hosts, _, prefix = hosts_and_prefix.partition("/")
        try:
            found = [urlsplit(f"http://{host.strip()}") for host in hosts.split(",")]
            servers = tuple(f"{_bracketed(part.hostname)}:{part.port or DEFAULT_PORT}" for part in found)
        except ValueError:
            servers = ()
        user, _, password = login.partition(":")
        has_bad_login = bool(at) and not user
        if scheme not in ("etcd", "etcds") or not servers or has_bad_login or any(s.startswith(":") for s in servers):
            shown = f"{scheme}://…" if at else text  # never shows a password
            raise ConfigError(f"coordination cannot be {shown!r}", hint=HINT)
        return cls(
            servers,
            prefix.strip("/") or f"bellringer/{installation}",
            "https" if scheme == "etcds" else "http",
            unquote(user) if at else None,
            unquote(password),
            **_read_options(query, has_tls=scheme == "etcds"),
        )

    def tls(self) -> ssl.SSLContext | bool:
        """Returns how servers are verified. Raises ConfigError if a file cannot be used."""
        if self.scheme == "http":
            return True
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            name = "cert or key" if self.cert and self.ca and _is_usable_ca(self.ca) else "ca, cert or key"
            raise ConfigError(
                f"the TLS files of etcd cannot be used: {error}", hint=f"check {name} in BELLRINGER_COORDINATION"
            ) from None
        return context


def _read_options(query: str, *, has_tls: bool) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name in given:
        if name not in TLS_OPTIONS:
            near = get_close_matches(name, TLS_OPTIONS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"options are {', '.join(TLS_OPTIONS)}"
            raise ConfigError(f"the address of etcd has the unknown option {name!r}", hint=hint)
    if given and not has_tls:
        raise ConfigError("the address of etcd has TLS options, but no TLS", hint="begin it with etcds://")
    return given


def _is_usable_ca(path: str) -> bool:
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError):
        return False
    return True


def _bracketed(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else host or ""
