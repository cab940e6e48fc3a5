"""Generates the reference pages in docs/reference from the code: `python -m tools.reference`."""
