"""What a transaction reads."""
