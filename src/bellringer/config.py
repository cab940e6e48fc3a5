"""Every setting, with its default: read once at the door, so that inner code receives plain values.

Later wins: the defaults below, `bellringer.toml` in this folder, the environment as BELLRINGER_…, flags.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import ConfigError, InvalidInput

FILE: Final = "bellringer.toml"
PREFIX: Final = "BELLRINGER_"
DEFAULT_PORT: Final = 8700
MOST_LEAD: Final = timedelta(seconds=5)  # register looks no further ahead for what a hand may have passed
LEAST_LEASE: Final = timedelta(seconds=1)  # shorter ones would be lost to a slow round trip

SHORTEST_ROOT_KEY: Final = 32  # characters: a short one could be guessed

_ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    "dispatch": ("postgresql", "kafka://"),
    "coordination": ("postgresql", "leader", "etcd://"),
    "cache": ("redis://", "rediss://"),
}

# Read elsewhere, before there is a Config or where there is none.
ELSEWHERE: Final = frozenset({"DEBUG", "FAULT", "PG_BIN", "TEST_DSN"})


class Described(NamedTuple):
    """A setting as it may be shown: its source is default, file, environment, flag or dev, `where` its name there."""

    name: str
    value: Any
    secret: bool
    source: str
    where: str


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this program runs. Lengths of time are written like "90s", "1h30m" or "30d"."""

    dsn: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    url: str | None = None
    pool_size: int = 8
    read_dsn: str | None = None  # a replica, which lists and history are read from
    dispatch: str = "postgresql"  # how work gets to the workers; or kafka://host:9092,host:9092/prefix?partitions=12
    coordination: str = "postgresql"  # who grants the shards; or leader, or etcd://host:2379,host:2379/prefix
    cache: str | None = None  # redis://host:6379/0: what API processes share; None: each has its own
    time_index: Literal["process", "redis"] = "process"  # where a scheduler keeps what strikes soon
    name: str | None = None  # what this process is called in lists; None: by its host and number
    region: str | None = None  # where this node stands; it prefers the shards of its region
    lead: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=5)
    misfire_grace: timedelta = timedelta(seconds=60)
    retention: timedelta = timedelta(days=30)
    dead_retention: timedelta = timedelta(days=30)
    audit_retention: timedelta = timedelta(days=365)
    grace: timedelta = timedelta(seconds=30)
    log: Literal["json", "text"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    secret_keys: tuple[str, ...] = ()  # id:base64, newest first; the first seals, all open
    egress_allow: tuple[str, ...] = ()  # private networks that HTTP targets may call, as 10.1.0.0/16
    http_slots: int = 20  # HTTP targets at a time in a server; 0: none
    auth: Literal["required", "none"] | None = None  # none: who calls from this machine need not log in
    root_key: str | None = None  # a key of the whole installation, for the first login
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_secret: str | None = None  # HS256 …
    jwt_jwks: str | None = None  # … or RS256 and ES256 by a file or URL
    jwt_tenant_claim: str = "tenant"
    jwt_role_claim: str = "role"
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks whose X-Forwarded-For counts
    connections_per_address: int = 512  # at a time; trusted proxies may have more
    key: str | None = None  # what the command line shows to a server

    def require_dsn(self) -> str:
        """The database's address, or the error that says how to give one."""
        if not self.dsn:
            raise ConfigError(
                "no database is named",
                hint="set BELLRINGER_DSN=postgresql://user@host/database; `bellringer dev` brings its own",
            )
        return self.dsn


_FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(Config))
_SECRETS: Final = frozenset({"secret_keys", "root_key", "jwt_secret", "key"})
_LISTS: Final = frozenset({"secret_keys", "egress_allow", "trusted_proxies"})  # in text, divided by commas
# In an address: user:password@host, ?password=…, and the same in words.
_PASSWORD: Final = re.compile(r"(://[^/?#@:]*:)\S*(?=@)|((?i:password|secret|token|pem|key)=)(?:'[^']*'|[^&\s]+)")
_DURATIONS: Final = frozenset(field.name for field in msgspec.structs.fields(Config) if field.type is timedelta)


def load(flags: Mapping[str, Any] | None = None, *, environ: Mapping[str, str], folder: Path | None = None) -> Config:
    """Put the layers on top of each other; flags that are None were not given."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value, source in _layers(flags, environ, folder):
        values[name] = _duration(value, source) if name in _DURATIONS else value
        if name in _LISTS and isinstance(value, str):
            values[name] = tuple(part.strip() for part in value.split(",") if part.strip())
        sources[name] = source
    return _checked(_convert(values, sources), sources)


def _layers(
    flags: Mapping[str, Any] | None, environ: Mapping[str, str], folder: Path | None
) -> Iterator[tuple[str, Any, str]]:
    yield from _file(folder or Path.cwd())
    yield from _environment(environ)
    yield from _flags(flags or {})


def described(
    config: Config,
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str],
    folder: Path | None = None,
) -> list[Described]:
    """Each setting with where it comes from, by the layers that the config was loaded from. Nobody is told a secret."""
    sources = {name: source for name, _, source in _layers(flags, environ, folder)}
    usual = Config()
    found = []
    for name in _FIELDS:
        given, where = getattr(config, name), sources.get(name, "")
        kind = "flag" if where.startswith("--") else "environment" if where.startswith(PREFIX) else "file"
        if not where:  # a database that nobody named is that of a `bellringer dev` here
            kind = "default" if given == getattr(usual, name) else "dev"
        is_secret = name in _SECRETS
        value = ("set" if given else "not set") if is_secret else _shown(given)
        found.append(Described(name, value, is_secret, kind, FILE if kind == "file" else where))
    return found


def _shown(value: Any) -> Any:
    """As it could be written; the password of an address stays out of it."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return [_shown(part) for part in value]
    if isinstance(value, str):
        return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", value)
    return value


def _file(folder: Path) -> Iterator[tuple[str, Any, str]]:
    path = folder / FILE
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="mend it, or move it away") from None
    for name, value in document.items():
        if name not in _FIELDS:
            raise ConfigError(f"{FILE} has the unknown setting {name!r}", hint=_suggestion(name))
        yield name, value, f"{name} in {FILE}"


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable in sorted(environ):
        rest = variable.removeprefix(PREFIX)
        if rest == variable or rest in ELSEWHERE or not environ[variable]:
            continue
        name = rest.lower()
        if name not in _FIELDS:
            # Others may own names that begin alike, so only what looks like a slip is refused.
            if near := get_close_matches(name, _FIELDS, n=1, cutoff=0.75):
                hint = f"did you mean {PREFIX}{near[0].upper()}?"
                raise ConfigError(f"the environment has the unknown setting {variable}", hint=hint)
            continue
        if name == "port" and environ[variable].startswith("tcp://"):
            continue  # Kubernetes sets this for every pod beside a service named bellringer
        yield name, environ[variable], variable


def _flags(flags: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name, value in flags.items():
        if value is not None:
            yield name, value, f"--{name.replace('_', '-')}"


def _suggestion(name: str) -> str:
    near = get_close_matches(name, _FIELDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"its settings are {', '.join(_FIELDS)}"


def _duration(value: Any, source: str) -> timedelta:
    try:
        return parse_duration(value, what=source)
    except InvalidInput as error:
        raise ConfigError(error.message, hint=error.hint) from None


def _convert(values: Mapping[str, Any], sources: Mapping[str, str]) -> Config:
    for name, value in values.items():
        try:
            msgspec.convert({name: value}, Config, strict=False)  # text from the environment may be a number
        except msgspec.ValidationError as error:
            problem = str(error).partition(" - at ")[0]
            shown = "that" if name in _SECRETS else repr(value)  # a key with a slip in it is still a key
            raise ConfigError(f"{sources[name]} cannot be {shown}", hint=problem[:1].lower() + problem[1:]) from None
    return msgspec.convert(dict(values), Config, strict=False)


def _checked(config: Config, sources: Mapping[str, str]) -> Config:
    def refuse(name: str, problem: str, hint: str) -> ConfigError:
        return ConfigError(f"{sources.get(name, name)} {problem}", hint=hint)

    if not 0 <= config.port <= 65535:
        raise refuse("port", f"cannot be {config.port}", "ports are 1 to 65535")
    if not 1 <= config.pool_size <= 1000:
        raise refuse("pool_size", f"cannot be {config.pool_size}", "give 1 to 1000 connections")
    if not 0 <= config.http_slots <= 1000:
        raise refuse("http_slots", f"cannot be {config.http_slots}", "give 0 to 1000; 0 leaves HTTP targets to others")
    if not 1 <= config.connections_per_address <= 4096:
        raise refuse("connections_per_address", f"cannot be {config.connections_per_address}", "give 1 to 4096")
    for name, known in _ENGINES.items():
        given = getattr(config, name)
        if given is not None and given not in known and not any(given.startswith(k) for k in known if "://" in k):
            raise refuse(name, f"cannot be {given.partition('://')[0]!r}", f"give {' or '.join(known)}…")
    if config.lead > MOST_LEAD:
        raise refuse("lead", f"is {format_duration(config.lead)}", f"at most {format_duration(MOST_LEAD)}")
    if config.lease < LEAST_LEASE:
        raise refuse("lease", f"is {format_duration(config.lease)}", f"at least {format_duration(LEAST_LEASE)}")
    return _admitting(config)


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return text == "*"
    return True


def _admitting(config: Config) -> Config:
    """The settings of the door belong together: half of them would let in too many, or nobody."""
    for proxy in config.trusted_proxies:
        if not _is_network(proxy):
            raise ConfigError(f"trusted_proxies cannot be {proxy!r}", hint="give addresses or networks, as 10.1.0.0/16")
    if config.root_key is not None and len(config.root_key) < SHORTEST_ROOT_KEY:
        hint = "make one with `openssl rand -base64 33`"
        raise ConfigError(f"root_key has fewer than {SHORTEST_ROOT_KEY} characters", hint=hint)
    if config.jwt_secret is not None and config.jwt_jwks is not None:
        raise ConfigError(
            "jwt_secret and jwt_jwks are both given", hint="the issuer signs by one of them: keep that one"
        )
    if (config.jwt_secret or config.jwt_jwks) and not (config.jwt_issuer and config.jwt_audience):
        raise ConfigError(
            "tokens need jwt_issuer and jwt_audience", hint="set both to what the tokens say in iss and aud"
        )
    return config
