"""Commit or abort of what the stages of a transaction have left."""
