"""`bellringer dev`: everything on one machine, started and stopped by one command."""
