"""Makes actions ready for the put: checks, metadata, row ids, timestamps, isolation level."""
