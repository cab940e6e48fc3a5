"""The scheduler: holds shards by lease and fires what is due in them."""
