"""Processes that are restarted and replaced one by one under load, and a record of their work outside the database."""
