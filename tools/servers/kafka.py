"""A Kafka broker that is its own controller (KRaft)."""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import uuid
from pathlib import Path
from typing import ClassVar, Final

from tools.servers import kafka_jars
from tools.servers.certificates import CertificateFiles
from tools.servers.listener import Listener, environment
from tools.servers.ports_and_pids import HOST

FORMAT_LIMIT: Final = 60.0
HEAP: Final = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")

# Small buffers, short timeouts and no automatic topics; durability settings keep their defaults.
# A killed broker can register again only after its former session has expired, so the session timeout is short.
SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
listeners=CLIENTS://{host}:{clients},CONTROLLER://{host}:{controller}
advertised.listeners=CLIENTS://{host}:{clients},CONTROLLER://{host}:{controller}
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller}
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
log.dirs={data}
auto.create.topics.enable=false
delete.topic.enable=true
num.partitions=1
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""

# A third listener, for clients with TLS and a password.
SECURE_SETTINGS: Final = """\
listeners=CLIENTS://{host}:{clients},CONTROLLER://{host}:{controller},SECURE://{host}:{secure}
advertised.listeners=CLIENTS://{host}:{clients},CONTROLLER://{host}:{controller},SECURE://{host}:{secure}
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_app="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""

LOGGING: Final = """\
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c: %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""

# A Metadata request (version 4) without topics: the broker lists itself only once it accepts requests.
ASK: Final = struct.pack("!hhih", 3, 4, 1, -1) + struct.pack("!ib", 0, 0)


class Kafka(Listener):
    """One broker. Its jars are kept in `downloads`, by default the server's folder."""

    name: ClassVar[str] = "kafka"
    setting: ClassVar[str] = "BELLRINGER_DISPATCH"
    port_count = 2  # client port and controller port

    def __init__(
        self,
        folder: Path,
        *,
        tied: bool = True,
        downloads: Path | None = None,
        tls: CertificateFiles | None = None,
        password: str = "",
    ) -> None:
        """With `tls`, the port `secure_port` takes clients with TLS that log in as `app` with this password."""
        super().__init__(folder, tied=tied)
        self._tls = tls
        self._password = password
        self.port_count = 2 if tls is None else 3
        self._downloads = (downloads or self._folder).absolute()

    def _prepare(self) -> str:
        self._jars, self._java = kafka_jars.get(self._downloads), kafka_jars.java()
        return kafka_jars.VERSION

    @property
    def secure_port(self) -> int:
        return self.state.ports[2]

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        places = {"host": HOST, "clients": ports[0], "controller": ports[1], "data": self._data}
        text = SETTINGS.format(**places)
        if self._tls is not None:  # the last value of a name applies
            secure = {"secure": ports[2], "password": self._password, "keystore": self._tls.combined}
            text += SECURE_SETTINGS.format(**places, **secure)
        settings = self._folder / "server.properties"
        settings.write_text(text)
        (self._folder / "log4j2.properties").write_text(LOGGING)
        if not (self._data / "meta.properties").exists():
            self._format(settings)
        return self._run("kafka.Kafka", str(settings))

    def _format(self, settings: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        begin = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            done = subprocess.run(  # noqa: S603
                self._run(
                    "kafka.tools.StorageTool",
                    *("format", "--standalone", f"--cluster-id={cluster}", f"--config={settings}"),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                timeout=FORMAT_LIMIT,
                check=False,
            )
        if done.returncode != 0:
            raise self._failure("could not make its data", begin)

    def _run(self, program: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"
        return [self._java, *HEAP, logging, "-cp", f"{self._jars}/*", program, *arguments]

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"kafka://{HOST}:{ports[0]}"

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as client:
                client.sendall(struct.pack("!i", len(ASK)) + ASK)
                answer = client.makefile("rb").read(16)
        except OSError:
            return False
        # Message length, correlation id, throttle time, number of brokers.
        return len(answer) == 16 and struct.unpack("!iiii", answer)[3] > 0
