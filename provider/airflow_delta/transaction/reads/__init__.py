"""What a transaction has read."""
