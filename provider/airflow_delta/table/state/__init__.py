"""What became of a transaction: committed, aborted, open, or no longer known."""
