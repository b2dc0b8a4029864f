"""Lineage of tables as OpenLineage has it. Only ``facets`` imports OpenLineage, and only a task that is asked imports that."""

from __future__ import annotations

import sys

_PROVIDER = "airflow.providers.openlineage"


def wanted() -> bool:
    """Tell whether anybody may ask for lineage: OpenLineage's provider is loaded before a task begins, or not at all."""
    return _PROVIDER in sys.modules
