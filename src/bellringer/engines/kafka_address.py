"""Kafka's address: where its brokers are, how they are used, and what they complain of."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import KafkaError, KafkaException

from bellringer.dispatch import Away
from bellringer.durations import parse_duration
from bellringer.errors import ConfigError, InvalidInput
from bellringer.telemetry import log, tells_all

ANSWER: Final = 5.0  # seconds in which a broker that lives has taken a message, or made a topic
LARGEST: Final = 2 * 1024 * 1024  # bytes of a message: the longest specification is 256 Ki characters
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
HIDDEN: Final = re.compile("password|secret|token|pem|key")  # in names of settings whose values nobody shall read

CLIENT: Final[Mapping[str, Any]] = {
    "client.id": "bellringer",
    "socket.keepalive.enable": True,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 1_000,  # who comes back is found soon
    "log.connection.close": False,
}
PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.timeout.ms": int(ANSWER * 1000),
    "message.max.bytes": LARGEST,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 * 1024,
}
CONSUMER: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 6_000,  # the shortest that brokers allow by default
    "max.poll.interval.ms": 15_000,  # also for how long a group that changes waits for one that is stuck
    "heartbeat.interval.ms": 500,  # so soon each hears that partitions change hands; until then nobody reads those
    "topic.metadata.refresh.interval.ms": 5_000,  # so soon a topic that is made later is found
    "fetch.wait.max.ms": 200,  # a broker answers at once when something comes; this is what an idle consumer costs
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 20,
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 16 * 1024,
}
# What the driver tells when it cannot work at all. It never tells that it can again.
GONE: Final = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001
_Client = TypeVar("_Client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the brokers are, and how to use them."""

    servers: str
    prefix: str = "bellringer"
    partitions: int = 12
    replication: int = -1  # as many as the brokers make by default
    compression: str = "lz4"
    linger: float = 5.0  # milliseconds
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # passed on; may hold passwords

    @classmethod
    def read(cls, url: str) -> Address:
        """kafka://host:9092,host:9092/prefix?partitions=12&…; options with a '.' are librdkafka's own settings."""
        parts = urlsplit(url)
        if parts.scheme != "kafka" or not parts.netloc:
            raise ConfigError("this is no address of Kafka", hint="write it like kafka://host:9092,host:9092/prefix")
        if "@" in parts.netloc:
            hint = "give them as options: ?security.protocol=sasl_ssl&sasl.mechanism=PLAIN&sasl.username=…"
            raise ConfigError("the address of Kafka holds a name or a password", hint=hint)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        options = {name: _option(name, text) for name, text in given.items() if "." not in name}
        if prefix := parts.path.strip("/"):
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,80}", prefix):
                hint = "use letters, digits, '.', '_' and '-', 80 at most"
                raise ConfigError(f"no topic of Kafka can begin with {prefix!r}", hint=hint)
            options["prefix"] = prefix
        settings = {name: text for name, text in given.items() if "." in name}
        return cls(servers=parts.netloc, settings=settings, **options)

    @property
    def place(self) -> str:
        return f"kafka://{self.servers}/{self.prefix}"

    def open(self, client: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any]) -> _Client:
        """A client of the driver with these settings, and with those that were given."""
        chosen = {"bootstrap.servers": self.servers, **CLIENT, "logger": Lines(), **settings, **self.settings}
        try:
            return client(chosen)
        except KafkaException as error:
            told = words(error.args[0])
            if any(text in told for name, text in self.settings.items() if text and HIDDEN.search(name)):
                told = "a setting that is not shown cannot be used"
            hint = "options with a '.' are settings of librdkafka"
            raise ConfigError(f"Kafka cannot be used like this: {told}", hint=hint) from None

    def away(self, reason: str) -> Away:
        return Away(f"{self.place}: {reason}", hint="runs wait in the database until it is back")


def _option(name: str, text: str) -> Any:
    read = _READERS.get(name)
    if read is None:
        near = get_close_matches(name, _READERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_READERS)}, and librdkafka's settings"
        raise ConfigError(f"the address of Kafka has the unknown option {name!r}", hint=hint)
    try:
        value = read(text)
    except (ValueError, InvalidInput):
        value = None
    if value is None:
        hint = f"like partitions=12&replication=3&linger=5ms; compression is one of {', '.join(COMPRESSIONS)}"
        raise ConfigError(f"{name}={text!r} in the address of Kafka cannot be used", hint=hint)
    return value


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "partitions": lambda text: int(text) if 1 <= int(text) <= 10_000 else None,
    "replication": lambda text: int(text) if int(text) == -1 or 1 <= int(text) <= 100 else None,
    "compression": lambda text: text if text in COMPRESSIONS else None,
    "linger": lambda text: min(parse_duration(text, what="linger").total_seconds(), 1.0) * 1000,
}


class Health:
    """What a client tells of its brokers, by threads of its own: that they are gone, never that they are back."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._since: float | None = None
        self.reason = ""
        self.fatal = False  # this client will never work again

    def hear(self, error: KafkaError) -> None:
        self.fatal = self.fatal or error.fatal()
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.reason:  # noqa: SLF001 - that names no cause
            self.reason = words(error)
        if error.code() in GONE and self._since is None:
            self._since = time.monotonic()
            log.warning("no broker answers", place=self._place, reason=self.reason)

    @property
    def gone_for(self) -> float:
        """For how many seconds there was none, as far as one knows."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def well(self) -> None:
        if self._since is not None:
            log.info("the broker answers again", place=self._place)
        self._since, self.reason = None, ""


class Lines:
    """The driver's own lines. Whatever matters in them is told as an error too, once."""

    @staticmethod
    def log(_level: int, form: str, *parts: Any) -> None:
        if tells_all():
            log.debug("kafka", line=form % parts)


def words(error: KafkaError) -> str:
    return error.str().rstrip(".")
