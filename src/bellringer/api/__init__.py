"""The REST API: translates requests into steps of the lifecycle, and rows into responses."""
