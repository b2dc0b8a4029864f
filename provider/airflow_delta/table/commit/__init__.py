"""Commit or abort what the stages of a transaction left."""
