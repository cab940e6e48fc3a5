"""Servers that Bellringer can use or run: etcd, Kafka, Redis and an embedded PostgreSQL."""
