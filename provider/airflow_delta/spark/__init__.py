"""Data work on a cluster: scan plan to DataFrame, DataFrame to staged files.

Needs only the standard library, :mod:`airflow_delta.contract`, and PySpark once it runs; shipped as one zip
(:func:`airflow_delta.spark.package.build_package`).
"""

from __future__ import annotations

from airflow_delta.lazy import face

__getattr__, __dir__, __all__ = face(__name__)
