"""Looks at a table that change nothing, and its maintenance."""
