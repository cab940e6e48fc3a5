"""Databases that Bellringer can bring along by itself."""
