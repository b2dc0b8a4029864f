"""Lineage of tables for OpenLineage. Only ``facets`` imports OpenLineage, and only when a task is asked for its lineage."""

from __future__ import annotations

import sys

_PROVIDER = "airflow.providers.openlineage"


def is_wanted() -> bool:
    """Return whether lineage may be asked for: OpenLineage's provider is loaded before a task starts, or not at all."""
    return _PROVIDER in sys.modules
