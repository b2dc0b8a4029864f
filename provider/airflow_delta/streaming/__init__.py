"""Streaming queries into Delta tables: every micro-batch is one commit, exactly once."""

from __future__ import annotations

from airflow_delta.lazy import face

_HOMES = {"DeltaBatchSink": "sink"}

__all__ = ["DeltaBatchSink"]

__getattr__, __dir__ = face(__name__, _HOMES)
