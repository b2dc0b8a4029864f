"""Addresses of the pages, and commands that take over where they end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode


def table_url(prefix: str, table: str, **parameters: Any) -> str:
    """Return the URL of a table's page."""
    return f"{prefix}/table?{urlencode({'table': table, **parameters})}"


def commit_url(prefix: str, table: str, version: int, **parameters: Any) -> str:
    """Return the URL of a commit's page."""
    return f"{prefix}/commit?{urlencode({'table': table, 'version': version, **parameters})}"


def rows_url(prefix: str, table: str, version: int, **parameters: Any) -> str:
    """Return the URL of the rows of a commit."""
    return f"{prefix}/rows?{urlencode({'table': table, 'version': version, **parameters})}"


def transaction_url(prefix: str, table: str, transaction_id: str) -> str:
    """Return the URL of an open transaction's page."""
    return f"{prefix}/transaction?{urlencode({'table': table, 'id': transaction_id})}"


def diff_command(table: str, version: int, conn_id: str | None, keys: Sequence[str] = ()) -> str:
    """Return the command that shows the rows of a commit without the pages' limits."""
    connection = [] if conn_id is None else ["--conn-id", conn_id]
    compared = ["--keys", *keys] if keys else []
    return shlex.join(["airflow", "delta", "diff", table, "--version", str(version), *connection, *compared])
