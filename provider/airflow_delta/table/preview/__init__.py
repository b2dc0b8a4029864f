"""Previews: what an open transaction has staged, as Delta tables of their own that any engine reads."""
