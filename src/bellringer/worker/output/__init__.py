"""Captured output of handlers: print, standard error, logging and warnings, stored with the run."""
