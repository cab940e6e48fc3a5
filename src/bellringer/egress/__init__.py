"""The way out: calls to addresses that somebody else has named, guarded, bounded and signed."""
