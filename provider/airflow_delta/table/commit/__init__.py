"""Commit what the stages of a transaction left."""
