"""The address of a Kafka cluster, the configuration of its clients, and their health."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import KafkaError, KafkaException

from bellringer.core.broker import BrokerUnavailable
from bellringer.durations import parse_duration
from bellringer.errors import ConfigError, InvalidInput
from bellringer.telemetry import is_debug_enabled, log

KAFKA_TIMEOUT_SECONDS: Final = 5.0  # for sending a message or creating a topic
MAX_KAFKA_MESSAGE_BYTES: Final = 2 * 1024 * 1024
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SECRET_SETTING_NAMES: Final = re.compile("password|secret|token|pem|key")  # settings whose values are never shown

CLIENT_CONFIG: Final[Mapping[str, Any]] = {
    "client.id": "bellringer",
    "socket.keepalive.enable": True,
    "socket.timeout.ms": 4_000,  # then the client reconnects
    "socket.connection.setup.timeout.ms": 5_000,
    "reconnect.backoff.max.ms": 1_000,  # finds a restarted broker quickly
    "log.connection.close": False,
}
PRODUCER_CONFIG: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.timeout.ms": int(KAFKA_TIMEOUT_SECONDS * 1000),
    "request.timeout.ms": 3_000,  # leaves time for a second try over a new connection
    "message.max.bytes": MAX_KAFKA_MESSAGE_BYTES,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 * 1024,
}
CONSUMER_CONFIG: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 6_000,  # the shortest that brokers allow by default
    "max.poll.interval.ms": 15_000,  # also bounds how long a rebalance waits for a stuck consumer
    "heartbeat.interval.ms": 500,  # consumers learn of a rebalance this fast; moving partitions are not read until then
    "topic.metadata.refresh.interval.ms": 5_000,  # finds new topics
    "fetch.wait.max.ms": 200,  # request rate of an idle consumer; new messages are returned at once
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 20,
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 16 * 1024,
}
# Errors that mean that no broker is usable. The driver does not report when one is usable again.
UNAVAILABLE_ERRORS: Final = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001
_Client = TypeVar("_Client")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """The brokers and options of a Kafka cluster."""

    servers: str
    prefix: str = "bellringer"
    partitions: int = 12
    replication: int = -1  # the brokers' default
    compression: str = "lz4"
    linger: float = 5.0  # milliseconds
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # for librdkafka; may contain passwords

    @classmethod
    def read(cls, url: str) -> KafkaAddress:
        """Parse kafka://host:9092,host:9092/prefix?partitions=12&…. Options with a '.' are settings of librdkafka."""
        parts = urlsplit(url)
        if parts.scheme != "kafka" or not parts.netloc:
            raise ConfigError(
                "the address of Kafka is invalid", hint="write it like kafka://host:9092,host:9092/prefix"
            )
        if "@" in parts.netloc:
            hint = "give them as options: ?security.protocol=sasl_ssl&sasl.mechanism=PLAIN&sasl.username=…"
            raise ConfigError("the address of Kafka must not contain a user name or password", hint=hint)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        options = {name: _read_option(name, text) for name, text in given.items() if "." not in name}
        if prefix := parts.path.strip("/"):
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,80}", prefix):
                hint = "use letters, digits, '.', '_' and '-', 80 at most"
                raise ConfigError(f"{prefix!r} cannot be the prefix of a Kafka topic", hint=hint)
            options["prefix"] = prefix
        settings = {name: text for name, text in given.items() if "." in name}
        return cls(servers=parts.netloc, settings=settings, **options)

    @property
    def address(self) -> str:
        return f"kafka://{self.servers}/{self.prefix}"

    def open(self, client: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any]) -> _Client:
        """Create a client of the driver with these settings and those of the address."""
        chosen = {
            "bootstrap.servers": self.servers,
            **CLIENT_CONFIG,
            "logger": DriverLog(),
            **settings,
            **self.settings,
        }
        try:
            return client(chosen)
        except KafkaException as error:
            described = error_text(error.args[0])
            if any(
                text in described for name, text in self.settings.items() if text and SECRET_SETTING_NAMES.search(name)
            ):
                described = "a setting with a secret value is invalid"
            hint = "options with a '.' are settings of librdkafka"
            raise ConfigError(f"the settings of Kafka are invalid: {described}", hint=hint) from None

    def unavailable(self, reason: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.address}: {reason}", hint="runs wait in the database until it is back")


def _read_option(name: str, text: str) -> Any:
    read = _READERS.get(name)
    if read is None:
        near = get_close_matches(name, _READERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"options are {', '.join(_READERS)} and librdkafka's settings"
        raise ConfigError(f"the address of Kafka has the unknown option {name!r}", hint=hint)
    try:
        value = read(text)
    except (ValueError, InvalidInput):
        value = None
    if value is None:
        hint = f"like partitions=12&replication=3&linger=5ms; compression is one of {', '.join(COMPRESSIONS)}"
        raise ConfigError(f"{name}={text!r} in the address of Kafka is invalid", hint=hint)
    return value


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "partitions": lambda text: int(text) if 1 <= int(text) <= 10_000 else None,
    "replication": lambda text: int(text) if int(text) == -1 or 1 <= int(text) <= 100 else None,
    "compression": lambda text: text if text in COMPRESSIONS else None,
    "linger": lambda text: min(parse_duration(text, what="linger").total_seconds(), 1.0) * 1000,
}


class KafkaHealth:
    """Tracks whether brokers are available, from error callbacks in the client's threads.

    The driver reports that brokers are unavailable, but not that they are back; callers use `recovered` for that.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._since: float | None = None
        self.reason = ""
        self.fatal = False  # the client must be replaced

    def on_error(self, error: KafkaError) -> None:
        self.fatal = self.fatal or error.fatal()
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.reason:  # noqa: SLF001 - has no cause
            self.reason = error_text(error)
        if error.code() in UNAVAILABLE_ERRORS and self._since is None:
            self._since = time.monotonic()
            log.warning("no kafka broker is available", address=self._address, reason=self.reason)

    @property
    def unavailable_seconds(self) -> float:
        """The seconds since all brokers became unavailable; 0 if they are available."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def recovered(self) -> None:
        if self._since is not None:
            log.info("a kafka broker is available again", address=self._address)
        self._since, self.reason = None, ""


class DriverLog:
    """Receives the driver's log lines, for debugging only. Errors also arrive through callbacks."""

    @staticmethod
    def log(_level: int, form: str, *parts: Any) -> None:
        if is_debug_enabled():
            log.debug("kafka", line=form % parts)


def error_text(error: KafkaError) -> str:
    return error.str().rstrip(".")
