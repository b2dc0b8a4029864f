"""How messages and log lines name the version that a transaction reads; -1 is a table that did not exist when it began."""

from __future__ import annotations


def read_version_name(version: int) -> str:
    """Return "read version 3", or "a new table", for the brackets after the name of a table."""
    return f"read version {version}" if version >= 0 else "a new table"


def what_was_read(version: int) -> str:
    """Return "version 3 was read", or "the table did not exist"."""
    return f"version {version} was read" if version >= 0 else "the table did not exist"


def version_of(table: str, version: int) -> str:
    """Return "version 3 of <table>", or "the new table <table>"."""
    return f"version {version} of {table}" if version >= 0 else f"the new table {table}"
