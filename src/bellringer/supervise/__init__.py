"""Starts child processes, restarts those that die, and stops them together."""
