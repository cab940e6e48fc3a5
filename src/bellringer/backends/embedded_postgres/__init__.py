"""Runs a private PostgreSQL server from a folder, for development and tests."""
