"""Renders rows of the store as response documents."""
