"""Data work on a cluster: scan plan to DataFrame, DataFrame to staged files.

Needs only the standard library, :mod:`airflow_delta.contract`, and PySpark once it runs; shipped as one zip
(:func:`airflow_delta.spark.package.build_package`).
"""

from __future__ import annotations

from airflow_delta.lazy import face

_HOMES = {"DeltaStage": "job", "delta_stage": "job", "read_scan_plan": "read", "stage_dataframe": "stage"}

__all__ = ["DeltaStage", "delta_stage", "read_scan_plan", "stage_dataframe"]

__getattr__, __dir__ = face(__name__, _HOMES)
