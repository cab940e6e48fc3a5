"""Real servers for tests, benchmarks and trials: PostgreSQL, Redis, etcd and Kafka, without root or Docker.

with Kafka(folder) as kafka:      # for one test: the server ends with this process; `Server` describes the faults
    connect(kafka.address)

up("kafka")                       # keeps running, in .services, as after `make services`
"""

from __future__ import annotations

from tools.servers.all_servers import FOLDER, SERVERS, choose, down, look, up
from tools.servers.etcd import Etcd
from tools.servers.kafka import Kafka
from tools.servers.pgbouncer import PgBouncer
from tools.servers.postgres import Postgres
from tools.servers.redis import Redis
from tools.servers.server import Server

__all__ = [
    "FOLDER",
    "SERVERS",
    "Etcd",
    "Kafka",
    "PgBouncer",
    "Postgres",
    "Redis",
    "Server",
    "choose",
    "down",
    "look",
    "up",
]
