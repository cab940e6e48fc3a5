"""Settings and their defaults. A process reads them once when it starts and passes plain values to the other modules.

Sources, in increasing priority: the defaults below, `bellringer.toml` in the current folder, environment variables
BELLRINGER_…, command-line flags. A variable BELLRINGER_…_FILE names a file that holds the value of a setting.
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

from bellringer.core.secret_references import SECRET_VARIABLE_PREFIX, parse_source
from bellringer.durations import format_duration, parse_duration
from bellringer.errors import ConfigError, InvalidInput
from bellringer.store.dsn import is_pooled

CONFIG_FILE: Final = "bellringer.toml"
ENVIRONMENT_PREFIX: Final = "BELLRINGER_"
FILE_SUFFIX: Final = "_file"
DEFAULT_PORT: Final = 8700
MAX_LEAD: Final = timedelta(seconds=5)  # `engine.register` relies on this limit
MIN_HEARTBEAT_INTERVAL: Final = timedelta(seconds=1)
MIN_LEASE: Final = timedelta(seconds=1)  # a shorter lease would expire during a slow round trip

MIN_ISOLATED_MEMORY_MIB: Final = 64  # the interpreter and the app need this much
MIN_ROOT_KEY_LENGTH: Final = 32  # shorter keys could be guessed

_BACKENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "dispatch": ("postgresql", "kafka://"),
    "coordination": ("postgresql", "leader", "etcd://", "etcds://"),
    "cache": ("redis://", "rediss://"),
    "archive": ("file:///", "s3://"),
}

_RANGES: Final[Mapping[str, tuple[int, int, str]]] = {
    "port": (0, 65535, "give a port from 1 to 65535"),
    "metrics_port": (0, 65535, "give a port from 1 to 65535, or 0 for none"),
    "pool_size": (1, 1000, "give 1 to 1000 connections"),
    "http_slots": (0, 1000, "give 0 to 1000; with 0, this server calls no HTTP targets"),
    "connections_per_address": (1, 4096, "give 1 to 4096"),
    "idempotency_keys": (1, 1_000_000_000, "give 1 or more"),
}

# Other modules read these variables directly, because they need them before or without a Config.
VARIABLES_READ_ELSEWHERE: Final = frozenset({"DEBUG", "FAULT", "PG_BIN", "SET_BY_DEV", "TEST_DSN", "TEST_POOLER"})
# Kubernetes sets these variables if a service is named bellringer or, with "tcp://…" as the port, bellringer-metrics.
_KUBERNETES_SERVICE: Final = re.compile(r"(\w+_)?SERVICE_(HOST|PORT\w*)")
_PORTS: Final = frozenset({"port", "metrics_port"})
SET_BY_DEV: Final = "BELLRINGER_SET_BY_DEV"  # lists the variables that `bellringer dev` sets for its processes


class DescribedSetting(NamedTuple):
    """A setting without secret values. `source` is default, file, environment, flag or dev; `where` is the name of the
    file, variable or flag.
    """

    name: str
    value: Any
    secret: bool
    source: str
    where: str


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a process. Durations are written like "90s", "1h30m" or "30d"."""

    dsn: str | None = None  # address of the database: postgresql://user@host/database
    host: str = "127.0.0.1"  # address that the API listens on
    port: int = DEFAULT_PORT  # port of the API
    metrics_host: str | None = None  # address of `metrics_port`; None: that of `host`
    metrics_port: int | None = None  # serves /metrics, /healthz and /readyz without a key; None or 0: not served
    url: str | None = None  # address of the server, for the command line and for links
    pool_size: int | None = None  # maximum connections per pool; None: derived from the server's max_connections
    direct_dsn: str | None = None  # address of PostgreSQL itself, if `dsn` is that of PgBouncer
    read_dsn: str | None = None  # address of a replica that serves lists and history
    dispatch: str = "postgresql"  # or kafka://host:9092,host:9092/prefix?partitions=12
    coordination: str = "postgresql"  # shard leases; or leader, or etcd://host:2379,host:2379/prefix; etcds:// for TLS
    cache: str | None = None  # redis://host:6379/0, shared by API processes; None: one cache per process
    time_index: Literal["process", "redis"] = "process"  # where schedulers index upcoming due times
    name: str | None = None  # name of this process in lists; None: host name and process id
    region: str | None = None  # region of this node; the node prefers shards of its region
    lead: timedelta = timedelta(seconds=1)  # how far ahead of its time a run may be inserted
    lease: timedelta = timedelta(seconds=5)  # a shard moves to another scheduler after this time without a renewal
    misfire_grace: timedelta = timedelta(seconds=60)  # later occurrences are misfires
    retention: timedelta = timedelta(days=30)  # for runs, attempts, logs and events
    dead_retention: timedelta = timedelta(days=30)  # for dead letters
    audit_retention: timedelta = timedelta(days=365)  # for the audit log
    job_retention: timedelta = timedelta(days=30)  # for jobs that were deleted or are done
    archive: str | None = None  # file:///folder or s3://bucket/prefix for runs past retention; None: they are deleted
    grace: timedelta = timedelta(seconds=30)  # for running handlers when a worker stops
    block_limit: timedelta = timedelta(seconds=10)  # a coroutine that blocks its event loop longer fails
    isolated_dsn: bool = True  # whether isolated handlers get the DSN, which they need to send runs
    isolated_sharing: bool = False  # whether a child process may serve several tenants in sequence
    isolated_memory: int = 0  # memory limit of a child process in MiB; 0: no limit
    log: Literal["json", "text"] = "json"  # format of the log
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # lowest level of the log
    tracing: Literal["off", "on"] = "off"  # OpenTelemetry; the variables OTEL_… say where spans go
    log_attempts: bool = False  # log succeeded attempts at level info; otherwise at level debug
    capture_output: bool = True  # store what handlers print, log and warn with their run
    capture_level: Literal["debug", "info", "warning", "error"] = "info"  # lowest level of `logging` that is stored
    echo_output: bool = True  # also write captured output to the worker's own log
    secret_keys: tuple[str, ...] = ()  # id:base64, newest first; the first key encrypts, all keys decrypt
    secret_sources: tuple[str, ...] = ("store",)  # where workers look up secrets: store, env:PREFIX, file:FOLDER
    payload_codec: str | None = None  # module:object that encrypts payloads, such as bellringer.codecs:aesgcm
    payload_keys: tuple[str, ...] = ()  # id:base64, newest first; the first key encrypts, all keys decrypt
    egress_allow: tuple[str, ...] = ()  # private networks that HTTP targets may call, such as 10.1.0.0/16
    http_slots: int = 20  # maximum concurrent calls of HTTP targets per server; 0: none
    auth: Literal["required", "none"] | None = None  # none: requests from this machine need no credentials
    root_key: str | None = None  # administrator key of the installation, for the first login
    jwt_issuer: str | None = None  # accepted issuer of tokens
    jwt_audience: str | None = None  # accepted audience of tokens
    jwt_secret: str | None = None  # shared secret for HS256
    jwt_jwks: str | None = None  # file or URL of the public keys for RS256 and ES256
    jwt_tenant_claim: str = "tenant"  # claim with the name of the tenant
    jwt_role_claim: str = "role"  # claim with the role
    unknown_tasks: Literal["accept", "warn", "refuse"] = "warn"  # how the API treats tasks that no worker knows
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks whose X-Forwarded-* headers are used
    connections_per_address: int = 512  # maximum open connections; does not apply to trusted proxies
    idempotency_keys: int = 250_000  # stored responses of 4 KiB per tenant; ten times as many for all tenants
    docs_site: str | None = None  # folder of the documentation for /guide, or packaged: that of this installation
    public_url: str | None = None  # address of the console and of check-in URLs, such as https://bell.example.com
    smtp_url: str | None = None  # smtp://user:password@host:587?starttls=required, or smtps://
    smtp_from: str | None = None  # sender of e-mails, such as Bellringer <bell@example.com>
    heartbeat_url: str | None = None  # a scheduler calls it regularly while the cluster is healthy
    heartbeat_interval: timedelta = timedelta(seconds=60)  # between two calls of heartbeat_url
    key: str | None = None  # API key that the command line sends

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The address that serves metrics and health checks without a key, if there is one."""
        return (self.metrics_host or self.host, self.metrics_port) if self.metrics_port else None

    def require_dsn(self) -> str:
        """Returns the address of the database; raises ConfigError if none is set."""
        if not self.dsn:
            raise ConfigError(
                "no database is configured",
                hint="set BELLRINGER_DSN=postgresql://user@host/database; `bellringer dev` starts its own",
            )
        return self.dsn

    def require_session_dsn(self) -> str:
        """Returns the address for connections that keep session state; raises ConfigError if there is only a pooler."""
        dsn = self.require_dsn()
        if not is_pooled(dsn):
            return dsn
        if not self.direct_dsn:
            raise ConfigError(
                "this needs a session, and the DSN leads to a pooler",
                hint="set BELLRINGER_DIRECT_DSN to the address of PostgreSQL itself",
            )
        return self.direct_dsn


_FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(Config))
_SECRETS: Final = frozenset(
    {"secret_keys", "payload_keys", "root_key", "jwt_secret", "key", "smtp_url", "heartbeat_url"}
)
_ADDRESSES: Final = frozenset({"dsn", "direct_dsn", "read_dsn"})  # with a password, as a rule
# Comma-separated in environment variables and flags.
_LISTS: Final = frozenset({"secret_keys", "secret_sources", "payload_keys", "egress_allow", "trusted_proxies"})
# Matches passwords in URLs (user:password@host, ?password=…) and in key=value connection strings.
_PASSWORD: Final = re.compile(r"(://[^/?#@:]*:)\S*(?=@)|((?i:password|secret|token|pem|key)=)(?:'[^']*'|[^&\s]+)")
_DURATIONS: Final = frozenset(field.name for field in msgspec.structs.fields(Config) if field.type is timedelta)


def is_secret_setting(name: str) -> bool:
    """Returns whether the value of a setting is never shown."""
    return name in _SECRETS


def settings_with_secrets() -> frozenset[str]:
    """Returns the settings that belong in a secret store: those that are never shown, and addresses with passwords."""
    return _SECRETS | _ADDRESSES


def load_config(
    flags: Mapping[str, Any] | None = None, *, environ: Mapping[str, str], folder: Path | None = None
) -> Config:
    """Merges all sources into a Config. A flag that is None counts as not given."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value, source in _read_layers(flags, environ, folder):
        values[name] = _parse_duration(value, source) if name in _DURATIONS else value
        if name in _LISTS and isinstance(value, str):
            values[name] = tuple(part.strip() for part in value.split(",") if part.strip())
        sources[name] = source
    return _validate(_convert(values, sources), sources)


def _read_layers(
    flags: Mapping[str, Any] | None, environ: Mapping[str, str], folder: Path | None
) -> Iterator[tuple[str, Any, str]]:
    yield from _read_file(folder or Path.cwd())
    yield from _read_environment(environ)
    yield from _read_flags(flags or {})


def describe_settings(
    config: Config,
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str],
    folder: Path | None = None,
) -> list[DescribedSetting]:
    """Lists all settings with their sources, without secret values. Takes the arguments of `load_config`."""
    sources = {name: source for name, _, source in _read_layers(flags, environ, folder)}
    defaults, by_dev = Config(), environ.get(SET_BY_DEV, "").split(",")
    found = []
    for name in _FIELDS:
        given, where = getattr(config, name), sources.get(name, "")
        kind = "flag" if where.startswith("--") else "environment" if where.startswith(ENVIRONMENT_PREFIX) else "file"
        if where and where in by_dev:
            kind, where = "dev", ""
        elif not where:  # the DSN may come from a `bellringer dev` that runs in this folder
            kind = "default" if given == getattr(defaults, name) else "dev"
        is_secret = name in _SECRETS
        value = ("set" if given else "not set") if is_secret else _redact(given)
        found.append(DescribedSetting(name, value, is_secret, kind, CONFIG_FILE if kind == "file" else where))
    return found


def _redact(value: Any) -> Any:
    """Returns the value in the form of the settings file, with passwords in addresses replaced by ***."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return [_redact(part) for part in value]
    if isinstance(value, str):
        return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", value)
    return value


def _read_file(folder: Path) -> Iterator[tuple[str, Any, str]]:
    path = folder / CONFIG_FILE
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="fix or remove the file") from None
    for name, value in document.items():
        if name not in _FIELDS:
            raise ConfigError(f"{CONFIG_FILE} contains the unknown setting {name!r}", hint=_suggest(name))
        yield name, value, f"{name} in {CONFIG_FILE}"


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable in sorted(environ):
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        if rest == variable or rest in VARIABLES_READ_ELSEWHERE or not environ[variable]:
            continue
        name, value = rest.lower(), environ[variable]
        if _KUBERNETES_SERVICE.fullmatch(rest) or (name in _PORTS and value.startswith("tcp://")):
            continue
        if name.endswith(FILE_SUFFIX) and name.removesuffix(FILE_SUFFIX) in _FIELDS:
            if environ.get(variable.removesuffix(FILE_SUFFIX.upper())):
                continue  # a worker sets BELLRINGER_DSN for its child processes, which inherit both
            name, value = name.removesuffix(FILE_SUFFIX), read_value_file(variable, value)
            if not value:
                continue  # as an empty variable
        if name not in _FIELDS:
            # Other programs may use the same prefix, so only names that look like typing errors are refused.
            cutoff = 0.9 if variable.startswith(SECRET_VARIABLE_PREFIX) else 0.75  # secrets have names of any kind
            if near := get_close_matches(name, _FIELDS, n=1, cutoff=cutoff):
                hint = f"did you mean {ENVIRONMENT_PREFIX}{near[0].upper()}?"
                raise ConfigError(f"the environment contains the unknown setting {variable}", hint=hint)
            continue
        yield name, value, variable


def read_value_file(variable: str, path: str) -> str:
    """Returns the content of a file such as a mounted secret, without the line end."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{variable}: {path} cannot be read: {reason}", hint="name a readable text file") from None


def _read_flags(flags: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name, value in flags.items():
        if value is not None:
            yield name, value, f"--{name.replace('_', '-')}"


def _suggest(name: str) -> str:
    near = get_close_matches(name, _FIELDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known settings are {', '.join(_FIELDS)}"


def _parse_duration(value: Any, source: str) -> timedelta:
    try:
        return parse_duration(value, what=source)
    except InvalidInput as error:
        raise ConfigError(error.message, hint=error.hint) from None


def _convert(values: Mapping[str, Any], sources: Mapping[str, str]) -> Config:
    for name, value in values.items():
        try:
            msgspec.convert({name: value}, Config, strict=False)  # numbers in environment variables are strings
        except msgspec.ValidationError as error:
            problem = str(error).partition(" - at ")[0]
            shown = "this value" if name in _SECRETS else repr(value)  # an invalid secret is still a secret
            raise ConfigError(f"{sources[name]} cannot be {shown}", hint=problem[:1].lower() + problem[1:]) from None
    return msgspec.convert(dict(values), Config, strict=False)


def _validate(config: Config, sources: Mapping[str, str]) -> Config:
    def refuse(name: str, problem: str, hint: str) -> ConfigError:
        return ConfigError(f"{sources.get(name, name)} {problem}", hint=hint)

    for name, (least, most, hint) in _RANGES.items():
        given = getattr(config, name)
        if given is not None and not least <= given <= most:
            raise refuse(name, f"cannot be {given}", hint)
    for name, known in _BACKENDS.items():
        given = getattr(config, name)
        if given is not None and given not in known and not any(given.startswith(k) for k in known if "://" in k):
            raise refuse(name, f"cannot be {given.partition('://')[0]!r}", f"give {' or '.join(known)}…")
    if config.direct_dsn is not None and is_pooled(config.direct_dsn):
        raise refuse("direct_dsn", "leads to a pooler", "give the address of PostgreSQL itself")
    if config.lead > MAX_LEAD:
        raise refuse("lead", f"is {format_duration(config.lead)}", f"at most {format_duration(MAX_LEAD)}")
    if config.lease < MIN_LEASE:
        raise refuse("lease", f"is {format_duration(config.lease)}", f"at least {format_duration(MIN_LEASE)}")
    for source in config.secret_sources:
        parse_source(source)
    return _validate_notifications(_validate_isolation(_validate_auth(config)))


def _validate_notifications(config: Config) -> Config:
    if config.heartbeat_interval < MIN_HEARTBEAT_INTERVAL:
        hint = f"at least {format_duration(MIN_HEARTBEAT_INTERVAL)}"
        raise ConfigError(f"heartbeat_interval is {format_duration(config.heartbeat_interval)}", hint=hint)
    for name in ("public_url", "heartbeat_url"):
        given = getattr(config, name)
        if given is not None and not given.startswith(("http://", "https://")):
            raise ConfigError(f"{name} is not a URL", hint="it begins with https:// or http://")
    return config


def _validate_isolation(config: Config) -> Config:
    if config.isolated_memory and config.isolated_memory < MIN_ISOLATED_MEMORY_MIB:
        hint = f"give at least {MIN_ISOLATED_MEMORY_MIB} MiB, or 0 for no limit"
        raise ConfigError(f"isolated_memory cannot be {config.isolated_memory}", hint=hint)
    return config


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return text == "*"
    return True


def _validate_auth(config: Config) -> Config:
    """Validates settings that depend on each other: an incomplete set would admit too many callers, or none."""
    for proxy in config.trusted_proxies:
        if not _is_network(proxy):
            raise ConfigError(
                f"trusted_proxies cannot be {proxy!r}", hint="give addresses or networks such as 10.1.0.0/16"
            )
    if config.root_key is not None and len(config.root_key) < MIN_ROOT_KEY_LENGTH:
        hint = "create one with `openssl rand -base64 33`"
        raise ConfigError(f"root_key has fewer than {MIN_ROOT_KEY_LENGTH} characters", hint=hint)
    if config.jwt_secret is not None and config.jwt_jwks is not None:
        raise ConfigError("jwt_secret and jwt_jwks are both given", hint="keep the one that the issuer signs with")
    if (config.jwt_secret or config.jwt_jwks) and not (config.jwt_issuer and config.jwt_audience):
        raise ConfigError(
            "JWT authentication needs jwt_issuer and jwt_audience",
            hint="set both to the values of the claims iss and aud",
        )
    return config
