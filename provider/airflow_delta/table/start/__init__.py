"""The start of a transaction: its identity, version and location."""
