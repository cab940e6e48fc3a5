"""Benchmarks that size a machine: `bellringer bench`."""
