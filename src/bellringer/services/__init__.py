"""Real servers for tests, benches and small clusters: PostgreSQL, Redis, etcd and Kafka, without root or Docker.

with Kafka(folder) as kafka:      # one for a test: it dies with this process; see `Server` for the faults
    connect(kafka.address)

up("kafka")                       # one that stays, in .services, as `bellringer services up` starts it
addresses()                       # {"postgres": dsn, "kafka": "kafka://127.0.0.1:…", …} of those that run, or None
"""

from __future__ import annotations

from bellringer.services.etcd import Etcd
from bellringer.services.fleet import FOLDER, SERVERS, addresses, choose, down, look, up
from bellringer.services.kafka import Kafka
from bellringer.services.postgres import Postgres
from bellringer.services.redis import Redis
from bellringer.services.server import Server

__all__ = [
    "FOLDER",
    "SERVERS",
    "Etcd",
    "Kafka",
    "Postgres",
    "Redis",
    "Server",
    "addresses",
    "choose",
    "down",
    "look",
    "up",
]
