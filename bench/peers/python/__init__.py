"""Adapters of the systems in Python. Each runs in the environment of its system, as a process of its own."""
