"""Executes the Dockerfile in an unpacked root and runs its entry point there, without a container engine."""
