"""The scheduler process: holds leases on shards and fires the jobs that are due in them."""
