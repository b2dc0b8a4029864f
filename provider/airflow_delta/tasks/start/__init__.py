"""Begin a transaction: its table and its identity, and the place of a new table in a catalog."""
