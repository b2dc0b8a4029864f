"""Streaming queries into Delta tables: every micro-batch is one commit, exactly once."""

from __future__ import annotations

from airflow_delta.lazy import face

__getattr__, __dir__, __all__ = face(__name__)
