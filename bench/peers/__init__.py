"""Runs Bellringer and comparable systems through the same scenarios: `make bench`, `python -m bench.peers --help`."""
