"""Checks of staged rows, and of the table as the commit would leave it."""
