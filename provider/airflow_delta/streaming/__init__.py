"""Streaming queries into Delta tables: every micro-batch is one commit, exactly once."""

from __future__ import annotations

from typing import Any

__all__ = ["DeltaBatchSink"]


def __getattr__(name: str) -> Any:
    if name != "DeltaBatchSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_delta.streaming.sink import DeltaBatchSink

    return DeltaBatchSink
