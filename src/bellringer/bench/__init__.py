"""Measures the engine on the machine at hand; prints what it saw, as JSON where asked."""
