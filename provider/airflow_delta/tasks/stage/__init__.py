"""What stages share: the transaction that they work for, how their rows go into the table, and what else they read."""
