"""Redis as the shared cache of the API and as a time index of schedulers."""
