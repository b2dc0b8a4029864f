"""Data work on a cluster: scan plan to DataFrame, DataFrame to staged files.

Needs only the standard library, :mod:`airflow_delta.contract`, and PySpark once it runs; shipped as one zip
(:func:`airflow_delta.spark.package.build_package`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {"DeltaStage": "job", "delta_stage": "job", "read_scan_plan": "read", "stage_dataframe": "stage"}

__all__ = ["DeltaStage", "delta_stage", "read_scan_plan", "stage_dataframe"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
