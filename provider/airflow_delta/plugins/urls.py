"""Addresses of the pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode


def table_url(prefix: str, table: str, **parameters: Any) -> str:
    """Return the URL of a table's page."""
    return f"{prefix}/table?{urlencode({'table': table, **parameters})}"


def commit_url(prefix: str, table: str, version: int, **parameters: Any) -> str:
    """Return the URL of a commit's page."""
    return f"{prefix}/commit?{urlencode({'table': table, 'version': version, **parameters})}"
