"""Draws the diagrams in docs/images: `python -m tools.diagrams`."""
