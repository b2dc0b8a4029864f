"""Optimistic transactions on a Delta log.

The names below are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from airflow_delta.lazy import face

__getattr__, __dir__, __all__ = face(__name__)
