"""Kafka as the message broker."""
