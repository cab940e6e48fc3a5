"""Bellringer: durable one-shot and recurring jobs, run at their time, over PostgreSQL."""
