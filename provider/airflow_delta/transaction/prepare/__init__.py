"""Actions made ready for the put: checks, metadata, row ids, times, isolation."""
