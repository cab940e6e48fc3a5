"""Benchmarks of single properties, for the development of Bellringer: `python -m bench --help`.

The benchmarks that size a machine are part of the product: `bellringer bench --help`.
"""
